package train

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/run"
)

// partLimit is the context key of a token limit.
type partLimit struct{}

// limitOf is the number of tokens allowed in a forward pass: the limit in ctx, or else tokens.
func limitOf(ctx context.Context, tokens int) int {
	if limit, ok := ctx.Value(partLimit{}).(int); ok {
		return limit
	}
	return tokens
}

// TestPartsChangeNoStep takes the first step of every source with every algorithm in forward passes of one sequence, of
// 7 tokens, and of any size: all metrics agree, including the gradient norm.
func TestPartsChangeNoStep(t *testing.T) {
	for name, begin := range everyRun() {
		if strings.HasPrefix(name, "little memory") || strings.HasPrefix(name, "servers") || strings.HasPrefix(name, "programs") {
			continue // these runs of another row need other conditions
		}
		t.Run(name, func(t *testing.T) {
			first := func(limit int) report.Row {
				ctx, cancel := context.WithCancel(context.WithValue(t.Context(), partLimit{}, limit))
				defer cancel()
				var row report.Row
				h := (&recorded{}).hooks()
				h.LogEvery = 1
				h.Row = func(r report.Row) error {
					if _, ok := r["learning_rate"]; ok && row == nil {
						row = maps.Clone(r)
						cancel()
					}
					return nil
				}
				h.Save = func(int, func(string) error) error { return nil }
				if _, _, err := begin(ctx, t, h); err != nil && !errors.Is(err, run.ErrStopped) {
					t.Fatal(err)
				}
				return row
			}
			want := first(0)
			if norm, _ := want["grad_norm"].(float64); !(norm > 0) {
				t.Fatalf("the norm of the gradient is %v", want["grad_norm"])
			}
			for _, tokens := range []int{1, 7} {
				if diff := cmp.Diff(want, first(tokens), cmpopts.EquateApprox(1e-3, 1e-5), cmpopts.EquateNaNs()); diff != "" {
					t.Errorf("passes of %d tokens (-any number +parts):\n%s", tokens, diff)
				}
			}
		})
	}
}
