package sandbox

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// watchEvery is the interval of checks of memory and processor time.
const watchEvery = 20 * time.Millisecond

// watch kills the programs at their time limit, or when their processes use too much memory or processor time together.
func (w *watched) watch(j *job, done chan struct{}) {
	deadline := time.After(j.Limits.Wall)
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
			var astray int64
			if j.Means.Tier != Namespaces {
				astray = w.astray()
			}
			for _, r := range w.boxes {
				if r.gone {
					continue
				}
				u := usageOf(r.pid, 0, j.Limits.CPU > 0)
				switch {
				case astray+u.memory > j.Limits.Memory:
					r.out.Memory = true
					r.kill()
				case j.Limits.CPU > 0 && u.seconds > j.Limits.seconds():
					r.out.Deadline = true
					r.kill()
				}
			}
			w.Unlock()
		}
	}
}

// astray is the memory of orphaned processes, which are now the helper's children; their program is unknown.
func (w *watched) astray() int64 {
	var memory int64
	for _, child := range children(os.Getpid()) {
		if !slices.ContainsFunc(w.boxes, func(r *running) bool { return r.pid == child }) {
			memory += usageOf(child, 0, false).memory
		}
	}
	return memory
}

// usage is the resource use of a process and its descendants.
type usage struct {
	memory  int64   // bytes not backed by files
	peak    int64   // largest memory of a single process
	seconds float64 // processor time
}

// usageOf measures a process. Times are optional, because it runs often.
func usageOf(pid, depth int, times bool) usage {
	var u usage
	var room [4096]byte
	folder := "/proc/" + strconv.Itoa(pid)
	threads := u.read(readShort(folder+"/status", room[:]))
	if times {
		// After the name, which may contain anything: state, then fields from 4; fields 14 to 17 are times in hundredths.
		stat := readShort(folder+"/stat", room[:])
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		for i := 11; i < 15 && i < len(fields); i++ {
			u.seconds += float64(number(fields[i])) / 100
		}
	}
	if depth > 64 {
		return u
	}
	tasks := []string{strconv.Itoa(pid)}
	if threads > 1 {
		tasks = tasksOf(folder)
	}
	for _, task := range tasks {
		if u.memory == 0 && threads > 1 { // the first thread has ended, so the process's file is empty
			u.read(readShort(folder+"/task/"+task+"/status", room[:]))
		}
		for _, child := range childrenOf(folder, task) {
			below := usageOf(child, depth+1, times)
			u.memory, u.seconds, u.peak = u.memory+below.memory, u.seconds+below.seconds, max(u.peak, below.peak)
		}
	}
	return u
}

// tasksOf returns the threads of a process, given its folder.
func tasksOf(folder string) []string {
	var tasks []string
	entries, _ := os.ReadDir(folder + "/task")
	for _, entry := range entries {
		tasks = append(tasks, entry.Name())
	}
	return tasks
}

func childrenOf(folder, task string) []int {
	var all []int
	var room [4096]byte
	for _, child := range bytes.Fields(readShort(folder+"/task/"+task+"/children", room[:])) {
		all = append(all, int(number(child)))
	}
	return all
}

// children returns the children of a process.
func children(pid int) []int {
	var all []int
	folder := "/proc/" + strconv.Itoa(pid)
	for _, task := range tasksOf(folder) {
		all = append(all, childrenOf(folder, task)...)
	}
	return all
}

// read adds the values of a status file and returns the number of threads.
func (u *usage) read(status []byte) (threads int64) {
	for line := range bytes.Lines(status) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		switch string(name) {
		case "RssAnon", "RssShmem", "VmSwap", "VmPTE":
			u.memory += number(value) << 10
		case "VmHWM":
			u.peak = number(value) << 10
		case "Threads":
			threads = number(value)
		}
	}
	return threads
}

// readShort reads a kernel file into room; a missing file is empty.
func readShort(name string, room []byte) []byte {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = unix.Close(fd) }()
	n, err := unix.Read(fd, room)
	if err != nil {
		return nil
	}
	return room[:n]
}

// number returns the first number in a text, or 0.
func number(text []byte) int64 {
	fields := bytes.Fields(text)
	if len(fields) == 0 {
		return 0
	}
	n, _ := strconv.ParseInt(string(fields[0]), 10, 64)
	return n
}
