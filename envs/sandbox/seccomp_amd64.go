package sandbox

import "golang.org/x/sys/unix"

var old = oldCalls{
	arch: unix.AUDIT_ARCH_X86_64,
	forbidden: []uintptr{
		unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_MODIFY_LDT, unix.SYS_USELIB, unix.SYS_USTAT, unix.SYS_SYSFS, unix.SYS__SYSCTL, unix.SYS_MKNOD,
		unix.SYS_INOTIFY_INIT,
	},
	onFilesOfUser: []uintptr{unix.SYS_CHMOD, unix.SYS_CHOWN, unix.SYS_LCHOWN, unix.SYS_UTIME, unix.SYS_UTIMES, unix.SYS_FUTIMESAT},
	creating:      []uintptr{unix.SYS_CREAT},
	forks:         []uintptr{unix.SYS_FORK, unix.SYS_VFORK},
	emptying:      []bits{{unix.SYS_OPEN, 1, unix.O_TRUNC, unix.O_TRUNC}},
}
