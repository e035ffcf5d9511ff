package sandbox

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// step is a system call between fork and exec. There, Go code must not allocate, grow its stack or wait for another
// goroutine: only one thread exists, and locks of the others stay locked. So all steps are prepared before the fork.
type step struct {
	what   string // for error messages
	number uintptr
	args   [6]uintptr

	into    []*uintptr    // arguments of later steps that receive the result
	into32  *uint32       // the same, inside a step's data
	may     syscall.Errno // an error that is acceptable
	least   uintptr       // of the result
	refused bool          // in a trial: the call must fail
}

// plan is a process to fork.
type plan struct {
	flags uintptr // of clone, in addition to SIGCHLD
	steps []step
	// Steps of the first process in a PID namespace, which forks the target and reaps all of its children.
	target, waiting []step

	errors uintptr // file for the record
	note   record
	keep   []any // keeps data of the steps alive
}

// Kinds of records.
const (
	noteFailed = 1 // a step failed: which, and its error
	noteEnded  = 2 // the target ended
)

// Step lists, in the record of a failed step.
const (
	ofTarget  = 1
	ofWaiting = 2
)

// record is the report of a forked process.
type record struct {
	kind, step, errno int64
	status            uint32
	_                 uint32
	usage             syscall.Rusage
}

const recordSize = int(unsafe.Sizeof(record{}))

// do adds a step; arguments are numbers and pointers.
func (p *plan) do(list *[]step, what string, number uintptr, args ...any) *step {
	s := step{what: what, number: number}
	for i, a := range args {
		switch a := a.(type) {
		case int:
			s.args[i] = uintptr(a)
		case uintptr:
			s.args[i] = a
		case string:
			text := append([]byte(a), 0)
			p.keep = append(p.keep, text)
			s.args[i] = uintptr(unsafe.Pointer(unsafe.SliceData(text)))
		case []byte:
			p.keep = append(p.keep, a)
			s.args[i] = uintptr(unsafe.Pointer(unsafe.SliceData(a)))
		case unsafe.Pointer:
			p.keep = append(p.keep, a)
			s.args[i] = uintptr(a)
		default:
			panic("sandbox: invalid argument type")
		}
	}
	*list = append(*list, s)
	return &(*list)[len(*list)-1]
}

// newList has room for all steps, because pointers to them must stay valid.
func newList() []step { return make([]step, 0, 512) }

// start forks the process. The caller's goroutine must be locked to its thread: the process dies with it.
func (p *plan) start() (pid int, err error) {
	all, before := ^uint64(0), uint64(0)
	mask := func(set, old *uint64) {
		_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(old)), 8, 0, 0)
	}
	// The Go runtime's signal handlers must not run in the forked process.
	mask(&all, &before)
	child, errno := p.fork()
	mask(&before, nil)
	runtime.KeepAlive(p)
	if errno != 0 {
		return 0, errno
	}
	return int(child), nil
}

//go:norace
//go:nosplit
//go:noinline
func (p *plan) fork() (pid uintptr, errno syscall.Errno) {
	pid, _, errno = syscall.RawSyscall6(unix.SYS_CLONE, p.flags|uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		return pid, errno
	}
	p.perform(p.steps)
	if p.target != nil {
		p.initial()
	}
	p.exit(0)
	return 0, 0
}

// initial is the first process of a PID namespace.
//
//go:norace
//go:nosplit
func (p *plan) initial() {
	target, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	switch {
	case errno != 0:
		p.fail(-1, errno)
	case target == 0:
		p.note.status = ofTarget
		p.perform(p.target)
		p.exit(0)
	}
	p.note.status = ofWaiting
	p.perform(p.waiting)
	for {
		pid, _, errno := syscall.RawSyscall6(unix.SYS_WAIT4, ^uintptr(0), uintptr(unsafe.Pointer(&p.note.status)), unix.WALL, 0, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			p.fail(-2, errno)
		}
		if pid == target {
			break
		}
	}
	p.note.kind = noteEnded
	status := p.note.status
	p.reap()
	p.note.status = status
	p.tell()
	p.exit(0)
}

// reap ends all processes of the namespace and notes what they used, together with the target and with those that had
// ended before. Without it, the processor time of children that nobody waited for would be lost.
//
//go:norace
//go:nosplit
func (p *plan) reap() {
	_, _, _ = syscall.RawSyscall6(unix.SYS_KILL, ^uintptr(0), uintptr(unix.SIGKILL), 0, 0, 0, 0)
	for {
		_, _, errno := syscall.RawSyscall6(unix.SYS_WAIT4, ^uintptr(0), 0, unix.WALL, 0, 0, 0)
		if errno != 0 && errno != unix.EINTR {
			break
		}
	}
	const children = ^uintptr(0) // RUSAGE_CHILDREN
	_, _, _ = syscall.RawSyscall6(unix.SYS_GETRUSAGE, children, uintptr(unsafe.Pointer(&p.note.usage)), 0, 0, 0, 0)
}

//go:norace
//go:nosplit
func (p *plan) perform(steps []step) {
	for i := range steps {
		s := &steps[i]
		result, _, errno := syscall.RawSyscall6(s.number, s.args[0], s.args[1], s.args[2], s.args[3], s.args[4], s.args[5])
		switch {
		case errno != 0 && !s.refused && errno != s.may:
			p.fail(i, errno)
		case errno == 0 && (s.refused || result < s.least):
			p.fail(i, 0)
		case errno == 0:
			for _, argument := range s.into {
				*argument = result
			}
			if s.into32 != nil {
				*s.into32 = uint32(result)
			}
		}
	}
}

//go:norace
//go:nosplit
func (p *plan) fail(step int, errno syscall.Errno) {
	p.note.kind, p.note.step, p.note.errno = noteFailed, int64(step), int64(errno)
	p.tell()
	p.exit(125)
}

//go:norace
//go:nosplit
func (p *plan) tell() {
	_, _, _ = syscall.RawSyscall6(unix.SYS_WRITE, p.errors, uintptr(unsafe.Pointer(&p.note)), uintptr(recordSize), 0, 0, 0)
}

//go:norace
//go:nosplit
func (p *plan) exit(code uintptr) {
	for {
		_, _, _ = syscall.RawSyscall6(unix.SYS_EXIT_GROUP, code, 0, 0, 0, 0, 0)
	}
}

// describe says which step failed.
func (p *plan) describe(r record) string {
	what := "forking the program"
	switch {
	case r.step == -2:
		what = "waiting for the program"
	case r.step >= 0:
		list := map[uint32][]step{0: p.steps, ofTarget: p.target, ofWaiting: p.waiting}[r.status]
		if int(r.step) < len(list) {
			what = list[r.step].what
		}
	}
	if r.errno == 0 {
		return what + ": expected a refusal"
	}
	return what + ": " + syscall.Errno(r.errno).Error()
}
