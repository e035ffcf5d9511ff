package train

import (
	"context"
	"errors"
	"testing"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/digits"
	"github.com/rltrain/rltrain/internal/expect"
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
		expect.Same(t, n > 3, errors.Is(err, context.Canceled), "solution %d: %v", n, err)
	}
	expect.Same(t, 4, n, "%d solutions, want 3 and the error", n)
}
