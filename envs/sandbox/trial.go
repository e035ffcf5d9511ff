package sandbox

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// attempt is the input of a trial.
type attempt struct {
	Secret string // a file that must not be readable
	Helper int    // the helper's pid, which must not be reachable
}

const passed = "the trial has passed\n"

// trial tries everything that a program must not be able to do, and reports success if all is refused.
func trial(p *plan, list *[]step, m means, a attempt) {
	refuse := func(what string, number uintptr, args ...any) { p.do(list, what, number, args...).refused = true }
	if m.Tier != Unsafe {
		refuse("the trial opens a socket", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, 0)
		refuse("the trial opens a socket of the machine", unix.SYS_SOCKET, unix.AF_UNIX, unix.SOCK_STREAM, 0)
		for _, name := range []string{a.Secret, "/etc/passwd", "/proc/self/status", "/proc/cpuinfo", "/sys/kernel"} {
			refuse("the trial reads "+name, unix.SYS_OPENAT, unix.AT_FDCWD, name, unix.O_RDONLY, 0)
		}
		for _, name := range []string{"/usr/trial", "/trial", "/etc/trial", "/dev/shm/trial", "/var/tmp/trial"} {
			refuse("the trial writes "+name, unix.SYS_OPENAT, unix.AT_FDCWD, name, unix.O_CREAT|unix.O_WRONLY, 0o600)
		}
		refuse("the trial changes "+a.Secret, unix.SYS_FCHMODAT, unix.AT_FDCWD, a.Secret, 0o666)
		refuse("the trial mounts", unix.SYS_MOUNT, "tmpfs", home, "tmpfs", 0, 0)
		refuse("the trial makes a namespace", unix.SYS_UNSHARE, unix.CLONE_NEWUSER)
		refuse("the trial traces", unix.SYS_PTRACE, unix.PTRACE_ATTACH, a.Helper, 0, 0)
		refuse("the trial signals the helper", unix.SYS_KILL, a.Helper, 0)
		if m.IDs || m.User || os.Geteuid() != 0 {
			refuse("the trial becomes root", unix.SYS_SETRESUID, 0, 0, 0)
		}
		refuse("the trial sets up io_uring", unix.SYS_IO_URING_SETUP, 1, make([]byte, 256))
		refuse("the trial makes a process too many", unix.SYS_CLONE, int(unix.SIGCHLD), 0, 0, 0, 0)
	}
	p.do(list, "the trial writes", unix.SYS_WRITE, 1, passed, len(passed)).least = uintptr(len(passed))
	p.do(list, "the trial ends", unix.SYS_EXIT_GROUP, 0)
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }
