package run

import (
	"os"
	"strconv"
	"strings"
)

// PeakMemory is the most memory, in bytes, that this process has held so far, as Linux counts what is resident; 0 where
// the system does not tell.
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
