package sandbox

import (
	"os"
	"strconv"
	"strings"
	"time"
)

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
