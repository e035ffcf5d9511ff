package rollout

import (
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

// TestKeptTokens takes back every token of a character that is not complete. The first three tokens are one character of
// three bytes, the last two one of two.
func TestKeptTokens(t *testing.T) {
	a := &action{}
	a.IDs, a.ends = make([]int32, 6), []int{0, 0, 3, 4, 4, 6}
	for bytes, want := range []int{0, 0, 0, 3, 4, 4, 6} {
		got := keptTokens(a, bytes)
		expect.True(t, got == want, "%d tokens are within %d bytes, want %d", got, bytes, want)
	}
}
