package sandbox

import (
	"bytes"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// watchEvery is how often memory is looked at.
const watchEvery = 20 * time.Millisecond

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
				if !r.gone && usageOf(r.pid, 0, false).memory > l.Memory {
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

// usageOf is what a process uses; times are asked for where they are wanted, since it is asked often.
func usageOf(pid, depth int, times bool) usage {
	var u usage
	var room [4096]byte
	folder := "/proc/" + strconv.Itoa(pid)
	threads := int64(1)
	for line := range bytes.Lines(readShort(folder+"/status", room[:])) {
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
	if times {
		// After the name, which may hold anything: state, then fields 4 and on; 14 to 17 are times, in hundredths.
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
		entries, _ := os.ReadDir(folder + "/task")
		for _, entry := range entries {
			if entry.Name() != tasks[0] {
				tasks = append(tasks, entry.Name())
			}
		}
	}
	for _, task := range tasks {
		for _, child := range bytes.Fields(readShort(folder+"/task/"+task+"/children", room[:])) {
			below := usageOf(int(number(child)), depth+1, times)
			u.memory, u.seconds, u.peak = u.memory+below.memory, u.seconds+below.seconds, max(u.peak, below.peak)
		}
	}
	return u
}

// readShort reads a file of the kernel's into room; of one that is gone it reads nothing.
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

// number is the first one of a text, 0 where there is none.
func number(text []byte) int64 {
	fields := bytes.Fields(text)
	if len(fields) == 0 {
		return 0
	}
	n, _ := strconv.ParseInt(string(fields[0]), 10, 64)
	return n
}
