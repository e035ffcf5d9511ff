package sandbox

import (
	"encoding/binary"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// landlockVersion is the kernel's Landlock version, 0 if it has none.
func landlockVersion() int {
	version, _, errno := syscall.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(version)
}

// File access rights.
const (
	mayRead  = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR | unix.LANDLOCK_ACCESS_FS_EXECUTE
	onFiles  = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	onDevice = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE
	baseFS   = 1<<13 - 1
)

// handledFS returns the file access rights known to a Landlock version.
func handledFS(version int) uint64 {
	rights := uint64(baseFS)
	for _, later := range []struct {
		version int
		right   uint64
	}{{2, unix.LANDLOCK_ACCESS_FS_REFER}, {3, unix.LANDLOCK_ACCESS_FS_TRUNCATE}, {5, unix.LANDLOCK_ACCESS_FS_IOCTL_DEV}} {
		if version >= later.version {
			rights |= later.right
		}
	}
	return rights
}

// path is a file or folder that a program may use.
type path struct {
	name   string
	rights uint64
	folder bool
}

// landlock allows the paths and nothing else. If the kernel's version supports it, it also denies the network, and signals
// and abstract sockets of other sandboxes.
func landlock(p *plan, list *[]step, version int, paths []path) {
	handled := handledFS(version)
	rules := make([]byte, 0, 24)
	rules = binary.LittleEndian.AppendUint64(rules, handled)
	if version >= 4 {
		rules = binary.LittleEndian.AppendUint64(rules, unix.LANDLOCK_ACCESS_NET_BIND_TCP|unix.LANDLOCK_ACCESS_NET_CONNECT_TCP)
	}
	if version >= 6 {
		rules = binary.LittleEndian.AppendUint64(rules, unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET|unix.LANDLOCK_SCOPE_SIGNAL)
	}
	var uses []*uintptr
	create := p.do(list, "making rules for files (Landlock)", unix.SYS_LANDLOCK_CREATE_RULESET, rules, len(rules), 0)
	for _, one := range paths {
		rights := one.rights & handled
		if !one.folder {
			rights &= onFiles
		}
		rule := make([]byte, 16) // packed: rights, then the file descriptor
		binary.LittleEndian.PutUint64(rule, rights)
		p.keep = append(p.keep, rule)
		opened := p.do(list, "opening "+one.name, unix.SYS_OPENAT, unix.AT_FDCWD, one.name, unix.O_PATH|unix.O_CLOEXEC, 0)
		opened.into32 = (*uint32)(unsafe.Pointer(&rule[8]))
		add := p.do(list, "allowing "+one.name, unix.SYS_LANDLOCK_ADD_RULE, 0, unix.LANDLOCK_RULE_PATH_BENEATH, rule, 0)
		uses = append(uses, &add.args[0])
	}
	restrict := p.do(list, "keeping to the rules for files (Landlock)", unix.SYS_LANDLOCK_RESTRICT_SELF, 0, 0)
	uses = append(uses, &restrict.args[0])
	create.into = uses
}
