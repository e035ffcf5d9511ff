package sandbox

import (
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Offsets in the data of a system call filter.
const (
	dataNumber   = 0
	dataArch     = 4
	dataArgument = 16 // of the first argument; its lower half
)

// forbidden system calls change the machine, reach other processes, outlive the program, or have a history of exploits.
// Computations need none of them.
var forbidden = []uintptr{
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN, unix.SYS_FSCONFIG,
	unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR, unix.SYS_STATMOUNT, unix.SYS_LISTMOUNT, unix.SYS_OPEN_TREE_ATTR, unix.SYS_UNSHARE, unix.SYS_SETNS,
	unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_REBOOT, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD,
	unix.SYS_KEXEC_FILE_LOAD, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD, unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME,
	unix.SYS_ADJTIMEX, unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME, unix.SYS_SYSLOG, unix.SYS_VHANGUP,
	unix.SYS_NFSSERVCTL, unix.SYS_LOOKUP_DCOOKIE, unix.SYS_PERSONALITY,
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_IO_SETUP, unix.SYS_IO_SUBMIT, unix.SYS_VMSPLICE, unix.SYS_FANOTIFY_INIT, unix.SYS_FANOTIFY_MARK,
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PROCESS_MADVISE, unix.SYS_PROCESS_MRELEASE, unix.SYS_KCMP,
	unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_GETFD, unix.SYS_PIDFD_SEND_SIGNAL, unix.SYS_MIGRATE_PAGES, unix.SYS_MOVE_PAGES, unix.SYS_MBIND, unix.SYS_SET_MEMPOLICY,
	unix.SYS_SETPRIORITY, unix.SYS_IOPRIO_SET,
	unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_MEMFD_CREATE, unix.SYS_MEMFD_SECRET,
	unix.SYS_SOCKET, unix.SYS_BIND, unix.SYS_CONNECT, unix.SYS_LISTEN, unix.SYS_ACCEPT, unix.SYS_ACCEPT4,
	unix.SYS_MQ_OPEN, unix.SYS_MQ_UNLINK, unix.SYS_MKNODAT, unix.SYS_INOTIFY_INIT1, unix.SYS_SYNC, unix.SYS_SYNCFS,
	// System V IPC: existing objects are accessible by their number alone.
	unix.SYS_MSGGET, unix.SYS_MSGSND, unix.SYS_MSGRCV, unix.SYS_MSGCTL, unix.SYS_SEMGET, unix.SYS_SEMOP, unix.SYS_SEMTIMEDOP, unix.SYS_SEMCTL,
	unix.SYS_SHMGET, unix.SYS_SHMAT, unix.SYS_SHMCTL, unix.SYS_SHMDT,
}

// onFilesOfUser are system calls that change files without opening them. Landlock has no rules for them, and a program
// without a dedicated user may use them.
var onFilesOfUser = []uintptr{
	unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2, unix.SYS_FCHOWN, unix.SYS_FCHOWNAT, unix.SYS_UTIMENSAT, unix.SYS_SETXATTR, unix.SYS_LSETXATTR, unix.SYS_FSETXATTR, unix.SYS_SETXATTRAT,
	unix.SYS_REMOVEXATTR, unix.SYS_LREMOVEXATTR, unix.SYS_FREMOVEXATTR, unix.SYS_REMOVEXATTRAT, unix.SYS_FILE_SETATTR,
	unix.SYS_TRUNCATE, unix.SYS_FLOCK,
}

// forbiddenValues are argument values that forbid a call.
var forbiddenValues = []argumentValues{
	{unix.SYS_FCNTL, 1, []uint32{unix.F_SETOWN, unix.F_SETSIG, unix.F_SETOWN_EX, unix.F_NOTIFY, unix.F_SETPIPE_SZ, unix.F_SETLEASE}},
	{unix.SYS_PRCTL, 0, []uint32{unix.PR_SET_PDEATHSIG, unix.PR_SET_PTRACER, unix.PR_SET_MM, unix.PR_SET_CHILD_SUBREAPER}},
	// A limit of 1 keeps crash collectors from being started; 0 would not.
	{unix.SYS_SETRLIMIT, 0, []uint32{unix.RLIMIT_CORE}}, {unix.SYS_PRLIMIT64, 1, []uint32{unix.RLIMIT_CORE}},
}

// forbiddenBits forbid a call if an argument, masked by mask, has these bits.
var forbiddenBits = []bits{
	// Shared anonymous memory belongs to no process, so that its size cannot be measured.
	{unix.SYS_MMAP, 3, unix.MAP_SHARED | unix.MAP_ANONYMOUS, unix.MAP_SHARED | unix.MAP_ANONYMOUS},
	{unix.SYS_MMAP, 3, unix.MAP_HUGETLB, unix.MAP_HUGETLB},
	// Sockets that can send to any address without connecting.
	{unix.SYS_SOCKETPAIR, 1, 0xf, unix.SOCK_DGRAM}, {unix.SYS_SOCKETPAIR, 1, 0xf, unix.SOCK_RAW},
}

// emptying truncates files, which Landlock cannot deny before version 3.
var emptying = bits{unix.SYS_OPENAT, 2, unix.O_TRUNC, unix.O_TRUNC}

// oldCalls are the system calls that newer architectures do not have, because others do the same.
type oldCalls struct {
	arch                                      uint32
	forbidden, onFilesOfUser, creating, forks []uintptr
	emptying                                  []bits
}

type argumentValues struct {
	number   uintptr
	argument int
	values   []uint32
}

type bits struct {
	number      uintptr
	argument    int
	mask, value uint32
}

// onlyValues are calls allowed only with one of these argument values. Calls on processes may name only the caller. Calls
// on open files may only ask for a terminal or set read and write flags: others can change a read-only file behind
// Landlock.
var onlyValues = []argumentValues{
	{unix.SYS_SOCKETPAIR, 0, []uint32{unix.AF_UNIX}}, {unix.SYS_PRLIMIT64, 0, own}, {unix.SYS_SCHED_SETAFFINITY, 0, own}, {unix.SYS_SCHED_SETSCHEDULER, 0, own},
	{unix.SYS_SCHED_SETPARAM, 0, own}, {unix.SYS_SCHED_SETATTR, 0, own},
	{unix.SYS_IOCTL, 1, []uint32{unix.TCGETS, unix.TCGETS2, unix.TCSETS, unix.TIOCGWINSZ, unix.TIOCGPGRP, unix.TIOCINQ, 0x5421 /* FIONBIO */, 0x5450 /* FIONCLEX */, 0x5451 /* FIOCLEX */}},
}

// own is the calling process.
var own = []uint32{0}

const namespaceFlags = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// filter is a kernel program that checks each system call.
type filter struct {
	code []unix.SockFilter
	own  []int // positions in code that compare with the program's pid
}

// newFilter forbids what no program needs. Without a PID namespace, it also forbids calls on other processes.
//
// waits also forbids changing how ended children are handled: the processor time of ignored ones would be counted nowhere.
func newFilter(m means, waits bool) *filter {
	alone, f := m.alone(), &filter{}
	f.load(dataArch)
	f.unless(unix.SECCOMP_RET_KILL_PROCESS, old.arch)
	f.load(dataNumber)
	f.code = append(f.code, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, Jf: 1, K: 0x40000000},
		unix.SockFilter{Code: unix.BPF_RET, K: unix.SECCOMP_RET_KILL_PROCESS}) // system calls of the x32 ABI
	const refuse, absent = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM), unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	for _, number := range slices.Concat(forbidden, old.forbidden) {
		f.when(uint32(number), refuse)
	}
	f.when(unix.SYS_CLONE3, absent) // its arguments cannot be checked; libraries fall back to clone
	unruly := forbiddenBits
	if alone {
		for _, number := range slices.Concat(onFilesOfUser, old.onFilesOfUser, old.forks) {
			f.when(uint32(number), refuse)
		}
		if m.Landlock < 3 {
			unruly = slices.Concat(unruly, []bits{emptying}, old.emptying)
			for _, number := range old.creating {
				f.when(uint32(number), refuse)
			}
			f.when(unix.SYS_OPENAT2, absent) // its arguments cannot be checked
		}
	}
	values := forbiddenValues
	if waits {
		values = append(slices.Clone(values), argumentValues{unix.SYS_RT_SIGACTION, 0, []uint32{uint32(unix.SIGCHLD)}})
	}
	for _, v := range values {
		f.of(v.number, func() {
			f.load(dataArgument + 8*v.argument)
			for _, value := range v.values {
				f.when(value, refuse)
			}
		})
	}
	for _, v := range unruly {
		f.of(v.number, func() {
			f.load(dataArgument + 8*v.argument)
			f.code = append(f.code, unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: v.mask})
			f.when(v.value, refuse)
		})
	}
	for _, v := range onlyValues {
		f.of(v.number, func() {
			f.load(dataArgument + 8*v.argument)
			f.unless(refuse, v.values...)
		})
	}
	f.of(unix.SYS_CLONE, func() {
		f.load(dataArgument)
		f.code = append(f.code, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, Jf: 1, K: namespaceFlags}, unix.SockFilter{Code: unix.BPF_RET, K: refuse})
		if alone {
			f.code = append(f.code, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, Jt: 1, K: unix.CLONE_THREAD}, unix.SockFilter{Code: unix.BPF_RET, K: refuse})
		}
	})
	if alone {
		for _, number := range []uintptr{unix.SYS_KILL, unix.SYS_TKILL, unix.SYS_TGKILL, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO} {
			f.of(number, func() {
				f.load(dataArgument)
				f.own = append(f.own, len(f.code))
				f.unless(refuse, 0)
			})
		}
	}
	f.code = append(f.code, unix.SockFilter{Code: unix.BPF_RET, K: unix.SECCOMP_RET_ALLOW})
	return f
}

func (f *filter) load(offset int) {
	f.code = append(f.code, unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: uint32(offset)})
}

func (f *filter) when(value, verdict uint32) {
	f.code = append(f.code, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: value}, unix.SockFilter{Code: unix.BPF_RET, K: verdict})
}

func (f *filter) unless(verdict uint32, values ...uint32) {
	for i, value := range values {
		f.code = append(f.code, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: uint8(len(values) - i), K: value})
	}
	f.code = append(f.code, unix.SockFilter{Code: unix.BPF_RET, K: verdict})
}

// of adds checks for one system call.
func (f *filter) of(number uintptr, checks func()) {
	at := len(f.code)
	f.code = append(f.code, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(number)})
	checks()
	f.load(dataNumber)
	f.code[at].Jf = uint8(len(f.code) - at - 1)
}

// steps install the filter; the process must already be unable to gain privileges.
func (f *filter) steps(p *plan, list *[]step) {
	for _, at := range f.own {
		p.do(list, "asking for the process's number", unix.SYS_GETPID).into32 = &f.code[at].K
	}
	program := &unix.SockFprog{Len: uint16(len(f.code)), Filter: unsafe.SliceData(f.code)}
	p.keep = append(p.keep, f.code, program)
	p.do(list, "filtering system calls (seccomp)", unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, unsafe.Pointer(program))
}
