package sandbox

import (
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// step is one system call of a process that has been forked and not yet become another program. Between the two no Go
// code may run that allocates, grows its stack or waits for another goroutine: there is one thread, and what the others
// held stays locked. So all that is to be done is written down as steps before the fork, and performed as they stand.
type step struct {
	what   string // for messages
	number uintptr
	args   [6]uintptr

	into    []*uintptr    // arguments of later steps that get the result
	into32  *uint32       // the same for what a step points to
	may     syscall.Errno // an error that is none
	least   uintptr       // of the result
	refused bool          // of a trial: the call has to fail
}

// plan is a process to be forked.
type plan struct {
	flags uintptr // of clone, beside SIGCHLD
	steps []step
	// What the first process of a PID namespace runs: it forks the target and waits for all that becomes its child.
	target, waiting []step

	errors uintptr // file that a record is written to
	note   record
	keep   []any // what the steps point to
}

// Kinds of records.
const (
	noteFailed = 1 // a step failed: which, and by which error
	noteEnded  = 2 // the target ended
)

// Lists of steps, of a record about one that failed.
const (
	ofTarget  = 1
	ofWaiting = 2
)

// record is what a forked process tells.
type record struct {
	kind, step, errno int64
	status            uint32
	_                 uint32
	usage             syscall.Rusage
}

const recordSize = int(unsafe.Sizeof(record{}))

// do adds a step, with numbers and pointers as arguments.
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
			panic("sandbox: an argument that is none")
		}
	}
	*list = append(*list, s)
	return &(*list)[len(*list)-1]
}

// newList has room for all steps: they are pointed to.
func newList() []step { return make([]step, 0, 512) }

// start forks the process. The caller's goroutine is locked to its thread, which the process dies with.
func (p *plan) start() (pid int, err error) {
	all, before := ^uint64(0), uint64(0)
	mask := func(set, old *uint64) {
		_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(old)), 8, 0, 0)
	}
	// The handlers of the Go runtime must not run in the other process.
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

// initial is the first process of a namespace.
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
		pid, _, errno := syscall.RawSyscall6(unix.SYS_WAIT4, ^uintptr(0), uintptr(unsafe.Pointer(&p.note.status)), unix.WALL,
			uintptr(unsafe.Pointer(&p.note.usage)), 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			p.fail(-2, errno)
		}
		if pid == target {
			p.note.kind = noteEnded
			p.tell()
			p.exit(0)
		}
	}
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

// describe says in words which step failed.
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
		return what + ": it should have been refused"
	}
	return what + ": " + syscall.Errno(r.errno).Error()
}
