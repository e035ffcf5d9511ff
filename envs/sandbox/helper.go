package sandbox

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// helperName is what a process of this program is called that does nothing but run programs in a sandbox. Starting
// anew, and not from the middle of a process with many threads, is what makes it safe to fork.
const helperName = "rltrain-sandbox"

// Open files of the helper. Three for each box follow: what it reads, writes, and writes as errors.
const (
	jobFile     = 3
	controlFile = 4 // its end says that nobody waits any more
	reportFile  = 5
	firstStream = 6
)

// job is what the helper is asked to do.
type job struct {
	Means  means
	Limits Limits
	Boxes  []box
	Dir    string // folder with the files, where there is no file system to put them in
}

// box is one program of a job. Where there are two, each has two files more: 3, from the other one, and 4, to it.
type box struct {
	Argv, Env []string
	Files     []File
	Read      []string // paths that it may read, with all below them
	Trial     *attempt // instead of a program
}

// report is what became of a job.
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
	Deadline bool // it was ended at its time
	Memory   bool // it was ended for its memory
	CPU      float64
	Peak     int64 // bytes
}

func init() {
	if len(os.Args) > 0 && os.Args[0] == helperName {
		runtime.LockOSThread()
		debug.SetGCPercent(-1)
		help()
		os.Exit(0)
	}
}

// help runs the job of this process.
func help() {
	var r report
	var j job
	data, err := io.ReadAll(os.NewFile(jobFile, "job"))
	if err == nil {
		err = json.Unmarshal(data, &j)
	}
	if err == nil {
		r.Boxes, err = j.run()
	}
	if err != nil {
		r.Error = err.Error()
	}
	text, err := json.Marshal(r)
	if err == nil {
		_, err = os.NewFile(reportFile, "report").Write(text)
	}
	if err != nil {
		os.Exit(1)
	}
}

// running is a box under way.
type running struct {
	plan   *plan
	pid    int
	errors int // where its record is read
	out    ended
	used   usage // before it was ended
	gone   bool
}

// watched guards what the watch and the waiting both use.
type watched struct {
	sync.Mutex
	boxes []*running
}

func (j *job) run() ([]ended, error) {
	for fd := jobFile; fd < firstStream+3*len(j.Boxes); fd++ {
		unix.CloseOnExec(fd)
	}
	if j.Means.Tier != Namespaces {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return nil, fmt.Errorf("becoming the parent of orphans: %w", err)
		}
	}
	all := make([]streams, len(j.Boxes))
	for i := range all {
		first := firstStream + 3*i
		all[i] = streams{first, first + 1, first + 2}
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
		r, err := j.start(j.Boxes[i], all[i])
		if err != nil {
			w.kill()
			w.wait(j)
			return nil, err
		}
		w.boxes = append(w.boxes, r)
	}
	for _, list := range all {
		for _, fd := range list {
			_ = unix.Close(fd) // else what is read from it has no end
		}
	}
	go w.untilControlEnds()
	done := make(chan struct{})
	go w.watch(j.Limits, done)
	w.wait(j)
	close(done)
	var out []ended
	for _, r := range w.boxes {
		out = append(out, r.out)
	}
	return out, nil
}

// start begins a box.
func (j *job) start(b box, at streams) (*running, error) {
	var ready, errors [2]int
	for _, ends := range []*[2]int{&ready, &errors} {
		if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
			return nil, fmt.Errorf("making a pipe: %w", err)
		}
	}
	if b.Trial != nil {
		b.Trial.Helper = os.Getpid()
	}
	p := confine(j.Means, j.Limits, b, at, errors[1], ready, freeUser(), j.Dir)
	pid, err := p.start()
	if err != nil {
		return nil, fmt.Errorf("making a process: %w", err)
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

// firstUser is the least number of the users that sandboxes have. Each has its own, so that limits and signals of one
// are not those of another.
const firstUser = 1_500_000_000

// freeUser is the number of a user that nothing else on the machine runs as.
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
	return max(1, most-2-os.Getpid()%1000)
}

// mapUser gives the first process of a user namespace a user in it: nobody.
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
		// What ends with its first process tells nobody what it has used.
		if u := usageOf(r.pid, 0); u.seconds >= r.used.seconds {
			r.used = u
		}
		_ = unix.Kill(r.pid, unix.SIGKILL) // its number is not given to another one before it is waited for
	}
}

// untilControlEnds ends the programs when nobody waits for them any more.
func (w *watched) untilControlEnds() {
	var one [1]byte
	for {
		n, err := unix.Read(controlFile, one[:])
		if err == unix.EINTR || n > 0 {
			continue
		}
		w.kill()
		return
	}
}

// wait waits for all boxes, and ends those that wait for the last.
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

// end says how a box ended.
func (r *running) end(status unix.WaitStatus, rusage unix.Rusage) {
	said, told := r.record()
	_ = unix.Close(r.errors)
	if told && said.kind == noteFailed {
		r.out.Error = r.plan.describe(said)
		return
	}
	if told { // of a program with a first process before it
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

// record is what the box told. All that could write is gone, or has its end closed.
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

// sweep ends what programs left behind, where no namespace has ended it.
func sweep() {
	me := strconv.Itoa(os.Getpid())
	for {
		children, _ := os.ReadFile("/proc/self/task/" + me + "/children")
		for _, child := range strings.Fields(string(children)) {
			if pid, err := strconv.Atoi(child); err == nil {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		if _, err := unix.Wait4(-1, nil, unix.WALL, nil); err != nil && err != unix.EINTR {
			return
		}
	}
}

// watchEvery is how often memory is looked at.
const watchEvery = 10 * time.Millisecond

// watch ends the programs at their time, or when they hold too much memory together.
func (w *watched) watch(l Limits, done chan struct{}) {
	deadline := time.After(l.Wall)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-deadline:
			w.Lock()
			for _, r := range w.boxes {
				if !r.gone {
					r.out.Deadline = true
					r.kill()
				}
			}
			w.Unlock()
			return
		case <-tick.C:
			w.Lock()
			for _, r := range w.boxes {
				if !r.gone && usageOf(r.pid, 0).memory > l.Memory {
					r.out.Memory = true
					r.kill()
				}
			}
			w.Unlock()
		}
	}
}

// usage is what a process and all below it use.
type usage struct {
	memory  int64   // bytes that are no file's
	peak    int64   // the most that one of them held
	seconds float64 // of processor time
}

func usageOf(pid, depth int) usage {
	var u usage
	folder := "/proc/" + strconv.Itoa(pid)
	if text, err := os.ReadFile(folder + "/status"); err == nil {
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(line, ":")
			kibi := func() int64 {
				n, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
				return n << 10
			}
			switch name {
			case "RssAnon", "RssShmem", "VmSwap", "VmPTE":
				u.memory += kibi()
			case "VmHWM":
				u.peak = kibi()
			}
		}
	}
	if text, err := os.ReadFile(folder + "/stat"); err == nil {
		// After the name, which may hold anything: state, then fields 4 and on; 14 to 17 are times, in hundredths.
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		for i := 11; i < 15 && i < len(fields); i++ {
			n, _ := strconv.ParseFloat(fields[i], 64)
			u.seconds += n / 100
		}
	}
	if depth > 64 {
		return u
	}
	tasks, _ := os.ReadDir(folder + "/task")
	for _, task := range tasks {
		children, _ := os.ReadFile(folder + "/task/" + task.Name() + "/children")
		for _, child := range strings.Fields(string(children)) {
			if pid, err := strconv.Atoi(child); err == nil {
				below := usageOf(pid, depth+1)
				u.memory, u.seconds, u.peak = u.memory+below.memory, u.seconds+below.seconds, max(u.peak, below.peak)
			}
		}
	}
	return u
}
