package sandbox

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// helperName is the name of a helper process: this program started anew, only to run sandboxed programs. Forking is safe
// there, unlike in a process with many threads.
const helperName = "rltrain-sandbox"

// jobsFile is the socket for jobs.
const jobsFile = 3

// Open files of a job, in order. Three follow for each box: input, output and error output.
const (
	jobFile     = 0
	controlFile = 1 // closed when the client has gone
	reportFile  = 2
	firstStream = 3
)

// maxBoxes is the maximum number of programs per job.
const maxBoxes = 2

// job is a request to the helper.
type job struct {
	Means  means
	Limits Limits
	Boxes  []box
	Dir    string // folder with the files, without a mount namespace
}

// box is a program of a job. With two boxes, each has two more files: 3 reads from the other one, 4 writes to it.
type box struct {
	Argv, Env []string
	Files     []File
	Read      []string // readable paths, including everything below
	Waits     bool     // it may not change how ended children are handled
	Trial     *attempt // instead of a program
}

// report is the result of a job.
type report struct {
	Boxes []ended
	Error string // why nothing was run
}

// ended is how a program ended.
type ended struct {
	Error    string // why it was not run
	Exited   bool
	Code     int
	Signal   int
	Deadline bool // killed at the time limit
	Memory   bool // killed at the memory limit
	CPU      float64
	Peak     int64 // bytes
}

func init() {
	if len(os.Args) > 0 && os.Args[0] == helperName {
		runtime.LockOSThread()
		if err := help(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// help runs jobs until the socket is closed.
func help() error {
	unix.CloseOnExec(jobsFile)
	// If the machine runs out of memory, the kernel should kill sandboxed programs first.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0)
	for {
		files, err := nextJob()
		if err != nil || files == nil {
			return err
		}
		if err := serve(files); err != nil {
			return err
		}
	}
}

// nextJob receives the open files of a job; nil at the end.
func nextJob() ([]int, error) {
	var one [1]byte
	rights := make([]byte, unix.CmsgSpace(4*(firstStream+3*maxBoxes)))
	for {
		n, size, _, _, err := unix.Recvmsg(jobsFile, one[:], rights, unix.MSG_CMSG_CLOEXEC)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return nil, fmt.Errorf("waiting for a job: %w", err)
		case n == 0:
			return nil, nil
		}
		messages, err := unix.ParseSocketControlMessage(rights[:size])
		if err != nil || len(messages) != 1 {
			return nil, fmt.Errorf("receiving a job: %d messages, %w", len(messages), err)
		}
		return unix.ParseUnixRights(&messages[0])
	}
}

// serve runs a job.
func serve(files []int) error {
	to := os.NewFile(uintptr(files[reportFile]), "report")
	var r report
	var j job
	from := os.NewFile(uintptr(files[jobFile]), "job")
	data, err := io.ReadAll(from)
	_ = from.Close()
	if err == nil {
		err = json.Unmarshal(data, &j)
	}
	if err == nil {
		r.Boxes, err = j.run(files[controlFile], files[firstStream:])
	}
	if err != nil {
		r.Error = err.Error()
	}
	text, err := json.Marshal(r)
	if err == nil {
		_, err = to.Write(text)
	}
	_ = to.Close()
	return err
}

// running is a started box.
type running struct {
	plan   *plan
	pid    int
	errors int // where its record is read
	out    ended
	used   usage // before it was killed
	gone   bool
}

// watched is shared by the watcher and the waiter.
type watched struct {
	sync.Mutex
	boxes []*running
}

// run runs the boxes with the given files and closes the files.
func (j *job) run(control int, files []int) ([]ended, error) {
	if j.Means.Tier != Namespaces {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return nil, fmt.Errorf("becoming a subreaper: %w", err)
		}
	}
	all := make([]streams, len(j.Boxes))
	for i := range all {
		all[i] = slices.Clone(files[3*i : 3*i+3])
	}
	if len(all) == 2 {
		var there, back [2]int
		for _, ends := range []*[2]int{&there, &back} {
			if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
				return nil, fmt.Errorf("connecting the programs: %w", err)
			}
		}
		all[0], all[1] = append(all[0], there[0], back[1]), append(all[1], back[0], there[1])
	}
	w := &watched{}
	for i := range j.Boxes {
		r, err := j.start(j.Boxes[i], all[i], freeUser()+i)
		if err != nil {
			w.kill()
			w.wait(j)
			return nil, err
		}
		w.boxes = append(w.boxes, r)
	}
	for _, list := range all {
		for _, fd := range list {
			_ = unix.Close(fd) // otherwise its reader never sees the end
		}
	}
	go w.untilEnd(control)
	done := make(chan struct{})
	go w.watch(j, done)
	w.wait(j)
	close(done)
	var out []ended
	for _, r := range w.boxes {
		out = append(out, r.out)
	}
	return out, nil
}

// start starts a box, as user if the isolation changes users.
func (j *job) start(b box, at streams, user int) (*running, error) {
	var ready, errors [2]int
	for _, ends := range []*[2]int{&ready, &errors} {
		if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
			return nil, fmt.Errorf("creating a pipe: %w", err)
		}
	}
	if b.Trial != nil {
		b.Trial.Helper = os.Getpid()
	}
	p := confine(j.Means, j.Limits, b, at, errors[1], ready, user, j.Dir)
	pid, err := p.start()
	if err != nil {
		return nil, fmt.Errorf("creating a process: %w", err)
	}
	_, _ = unix.Close(ready[0]), unix.Close(errors[1])
	r := &running{plan: p, pid: pid, errors: errors[0]}
	if j.Means.User {
		if err := mapUser(pid); err != nil {
			_ = unix.Kill(pid, unix.SIGKILL)
			_, _ = unix.Wait4(pid, nil, 0, nil)
			return nil, err
		}
	}
	_, err = unix.Write(ready[1], []byte{1})
	_ = unix.Close(ready[1])
	return r, err
}

// firstUser is the first of the user ids reserved for sandboxes. Each sandbox has its own, so that limits and signals do
// not interfere.
const firstUser = 1_500_000_000

// freeUser returns a user id that no process uses, and neither does the next id, which is for the second program of a job.
// Neither program can exhaust the other's limits or read its memory.
func freeUser() int {
	user := firstUser + os.Getpid()*2
	text, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return user
	}
	most := 0
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 {
			begin, _ := strconv.Atoi(f[0])
			n, _ := strconv.Atoi(f[2])
			if begin <= user && user < begin+n {
				return user
			}
			most = max(most, begin+n)
		}
	}
	return max(1, most-2-2*(os.Getpid()%500))
}

// mapUser maps the first process of a user namespace to nobody.
func mapUser(pid int) error {
	folder := "/proc/" + strconv.Itoa(pid)
	for _, file := range []struct{ name, text string }{
		{"setgroups", "deny"}, {"uid_map", fmt.Sprintf("65534 %d 1", os.Geteuid())}, {"gid_map", fmt.Sprintf("65534 %d 1", os.Getegid())},
	} {
		if err := os.WriteFile(folder+"/"+file.name, []byte(file.text), 0); err != nil {
			return fmt.Errorf("mapping the user of a namespace: %w", err)
		}
	}
	return nil
}

func (w *watched) kill() {
	w.Lock()
	defer w.Unlock()
	for _, r := range w.boxes {
		r.kill()
	}
}

func (r *running) kill() {
	if !r.gone {
		// Resources of a PID namespace that dies with its first process are not reported.
		if u := usageOf(r.pid, 0, true); u.seconds >= r.used.seconds {
			r.used = u
		}
		_ = unix.Kill(r.pid, unix.SIGKILL) // the pid is not reused before it is waited for
	}
}

// untilEnd kills the programs when the control file ends: the client has gone.
func (w *watched) untilEnd(control int) {
	var one [1]byte
	for {
		n, err := unix.Read(control, one[:])
		if err == unix.EINTR || n > 0 {
			continue
		}
		_ = unix.Close(control)
		w.kill()
		return
	}
}

// wait waits for all boxes, and kills those that wait for the last one.
func (w *watched) wait(j *job) {
	last := len(w.boxes) - 1
	for left := len(w.boxes); left > 0; {
		var status unix.WaitStatus
		var rusage unix.Rusage
		pid, err := unix.Wait4(-1, &status, unix.WALL, &rusage)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			break
		}
		w.Lock()
		for i, r := range w.boxes {
			if r.pid != pid {
				continue
			}
			r.gone = true
			left--
			r.end(status, rusage)
			if i == last {
				for _, other := range w.boxes {
					other.kill()
				}
			}
		}
		w.Unlock()
	}
	if j.Means.Tier != Namespaces {
		sweep()
	}
}

// end records how a box ended.
func (r *running) end(status unix.WaitStatus, rusage unix.Rusage) {
	said, told := r.record()
	_ = unix.Close(r.errors)
	if told && said.kind == noteFailed {
		r.out.Error = r.plan.describe(said)
		return
	}
	if told { // of a program below a first process
		status = unix.WaitStatus(said.status)
		rusage = *(*unix.Rusage)(unsafe.Pointer(&said.usage))
	} else if r.plan.target != nil && !r.out.Deadline && !r.out.Memory && !status.Signaled() {
		r.out.Error = fmt.Sprintf("the first process ended with status %d", status)
		return
	}
	r.out.Exited, r.out.Code = status.Exited(), max(0, status.ExitStatus())
	if status.Signaled() {
		r.out.Signal = int(status.Signal())
	}
	r.out.CPU = max(seconds(rusage.Utime)+seconds(rusage.Stime), r.used.seconds)
	r.out.Peak = max(rusage.Maxrss<<10, r.used.peak)
}

func seconds(t unix.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }

// record reads the box's record. All writers are gone or closed.
func (r *running) record() (said record, told bool) {
	buffer := unsafe.Slice((*byte)(unsafe.Pointer(&said)), recordSize)
	for {
		n, err := unix.Read(r.errors, buffer)
		if err == unix.EINTR {
			continue
		}
		return said, n == recordSize
	}
}
