package sandbox

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// sweep ends what programs left behind, where no namespace has ended it. Processes that multiply take the places of those
// that are ended one by one; so all are stopped first, until a look finds no other.
func sweep() {
	for {
		stopped := map[int]bool{}
		for before := -1; before < len(stopped); {
			before = len(stopped)
			for _, pid := range below(os.Getpid(), 0) {
				if !stopped[pid] {
					stopped[pid] = true
					_ = unix.Kill(pid, unix.SIGSTOP)
				}
			}
		}
		for pid := range stopped {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		for {
			pid, err := unix.Wait4(-1, nil, unix.WALL|unix.WNOHANG, nil)
			if err == unix.ECHILD {
				return
			}
			if err != nil && err != unix.EINTR || pid == 0 {
				break
			}
		}
		time.Sleep(time.Millisecond)
	}
}

// below are all processes that a process has started, and those that they have.
func below(pid, depth int) []int {
	var all []int
	if depth > 64 {
		return nil
	}
	for _, child := range children(pid) {
		all = append(append(all, child), below(child, depth+1)...)
	}
	return all
}
