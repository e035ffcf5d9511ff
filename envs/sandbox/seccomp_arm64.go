package sandbox

import "golang.org/x/sys/unix"

// arm64 has no old calls.
var old = oldCalls{arch: unix.AUDIT_ARCH_AARCH64}
