package sandbox

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// sweep kills processes that a program left behind outside a PID namespace. A fork bomb could replace processes that are
// killed one by one, so sweep first stops all until it finds no new one.
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

// below returns all descendants of a process.
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
