// Package terminaltest opens pseudo-terminals for tests.
package terminaltest

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rltrain/rltrain/internal/must"
)

// Open opens a terminal of 80 columns: what a user types into and reads, and what a program sees. Both are closed when the
// test ends.
func Open(t testing.TB) (user, program *os.File) {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals: %v", err)
	}
	t.Cleanup(func() { user.Close() })
	must.Do(t, unix.IoctlSetPointerInt(int(user.Fd()), unix.TIOCSPTLCK, 0))
	must.Do(t, unix.IoctlSetWinsize(int(user.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}))
	number := must.Get(unix.IoctlGetInt(int(user.Fd()), unix.TIOCGPTN))(t)
	program = must.Get(os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0))(t)
	t.Cleanup(func() { program.Close() })
	return user, program
}
