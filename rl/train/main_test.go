package train_test

import (
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/rltrain/rltrain/torch"
)

// TestMain computes on one thread: the models are tiny, and waking a second one costs more than it gives.
func TestMain(m *testing.M) {
	threads := 1
	if n, err := strconv.Atoi(os.Getenv("RLTRAIN_TEST_THREADS")); err == nil {
		threads = n
	}
	if err := torch.Open(threads); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
