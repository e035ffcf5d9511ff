package run

import (
	"os"
	"strconv"
	"strings"
)

// PeakMemory returns the peak resident memory of this process in bytes, from /proc/self/status; 0 if unknown.
func PeakMemory() int64 {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kilobytes, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err == nil {
				return kilobytes << 10
			}
		}
	}
	return 0
}
