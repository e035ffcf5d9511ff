// Package disttest runs the ranks of a group as goroutines of one process.
package disttest

import (
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/rltrain/rltrain/rl/dist"
)

// FreePort returns a free port of the loopback interface.
func FreePort(t testing.TB) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// Join joins ranks with the given members and returns their groups and errors.
func Join(t testing.TB, size int, timeout time.Duration, member func(rank int) dist.Member) ([]*dist.Group, []error) {
	t.Helper()
	port := FreePort(t)
	groups, errs := make([]*dist.Group, size), make([]error, size)
	Each(size, func(rank int) {
		groups[rank], errs[rank] = dist.Join(t.Context(), dist.Place{Rank: rank, Size: size, Host: "127.0.0.1", Port: port}, member(rank), timeout)
	})
	return groups, errs
}

// Groups returns the groups of matching ranks. The test closes them.
func Groups(t testing.TB, size int) []*dist.Group {
	t.Helper()
	groups, errs := Join(t, size, time.Minute, func(int) dist.Member { return dist.Member{} })
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { Each(size, func(rank int) { groups[rank].Close() }) })
	return groups
}

// Each runs do for all ranks concurrently.
func Each(size int, do func(rank int)) {
	var all sync.WaitGroup
	for rank := range size {
		all.Add(1)
		go func() {
			defer all.Done()
			do(rank)
		}()
	}
	all.Wait()
}
