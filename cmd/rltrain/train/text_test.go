package train

import (
	"context"
	"errors"
	"testing"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/digits"
	"github.com/rltrain/rltrain/internal/must"
)

// TestSolutionsStop: many are generated before the first step.
func TestSolutionsStop(t *testing.T) {
	task := must.Get(digits.New(digits.Sum, 1, digits.Defaults(digits.Sum)))(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	for _, err := range solutions(ctx, task, envs.Warmup, 100) {
		if n++; n == 3 {
			cancel()
		}
		if want := n > 3; errors.Is(err, context.Canceled) != want {
			t.Errorf("solution %d: %v", n, err)
		}
	}
	if n != 4 {
		t.Errorf("%d solutions, want 3 and the error", n)
	}
}
