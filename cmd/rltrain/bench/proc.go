package bench

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/rltrain/rltrain/torch"
)

// memoryStatus returns a field of /proc/PROCESS/status in MiB.
func memoryStatus(process, field string) (float64, error) {
	path := "/proc/" + process + "/status"
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			kilobytes, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
			return kilobytes / 1024, err
		}
	}
	return 0, fmt.Errorf("%s has no field %s", path, field)
}

// held returns the anonymous memory of this process in MiB, after releasing free memory.
func held() (float64, error) {
	torch.ReleaseMemory()
	return memoryStatus("self", "RssAnon")
}

// busy returns the CPU time used so far in seconds: by other processes, and by this one with its finished children.
func busy() (others, own float64, err error) {
	const ticksPerSecond = 100 // of /proc/stat: fixed on Linux for user space
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	line, _, _ := strings.Cut(string(data), "\n")
	fields := strings.Fields(line)
	for i, text := range fields[1:min(len(fields), 9)] {
		ticks, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("/proc/stat: %w", err)
		}
		if idle := i == 3 || i == 4; !idle {
			others += ticks / ticksPerSecond
		}
	}
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var used syscall.Rusage
		if err := syscall.Getrusage(who, &used); err != nil {
			return 0, 0, fmt.Errorf("getrusage: %w", err)
		}
		own += float64(used.Utime.Nano()+used.Stime.Nano()) / 1e9
	}
	return others - own, own, nil
}

func loadAverage() (float64, error) {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(data), " ")
	return strconv.ParseFloat(first, 64)
}
