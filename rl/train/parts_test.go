package train

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/rl/dist"
	"github.com/rltrain/rltrain/rl/dist/disttest"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch/torchtest"
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

// TestTrafficIsOfOneStep: a step does not count what steps before it exchanged.
func TestTrafficIsOfOneStep(t *testing.T) {
	groups, exchanges, gradients := disttest.Groups(t, 2), []any{}, []any{}
	disttest.Each(2, func(rank int) {
		h := (&recorded{}).hooks()
		h.LogEvery, h.Group = 1, groups[rank]
		h.Row = func(r report.Row) error {
			if n, ok := r["dist/exchanges"]; ok && rank == 0 {
				exchanges, gradients = append(exchanges, n), append(gradients, r["dist/gradient_bytes"])
			}
			return nil
		}
		_, _, err := everyRun()["packed epochs × sft"](t.Context(), t, h)
		expect.True(t, err == nil, "rank %d: %v", rank, err)
	})
	expect.True(t, len(exchanges) >= 7 && !slices.ContainsFunc(exchanges, func(n any) bool { return n.(float64) < 3 || n.(float64) > 5 }), "exchanges %v", exchanges)
	expect.True(t, gradients[0] != nil && gradients[0].(float64) > 4*100 && !slices.ContainsFunc(gradients, func(n any) bool { return n != gradients[0] }), "bytes of gradients %v", gradients)
}

// TestPartsAndRanksChangeNoStep takes the first step of every source with every algorithm in forward passes of one
// sequence, of 7 tokens, and of any size, and with two and three ranks: all metrics agree, including the gradient norm.
func TestPartsAndRanksChangeNoStep(t *testing.T) {
	alone, groups := []*dist.Group{nil}, map[string][]*dist.Group{"2 ranks": disttest.Groups(t, 2), "3 ranks": disttest.Groups(t, 3)}
	for name, begin := range everyRun() {
		if strings.HasPrefix(name, "little memory") || strings.HasPrefix(name, "servers") || strings.HasPrefix(name, "programs") {
			continue // these runs of another row need other conditions
		}
		t.Run(name, func(t *testing.T) {
			first := func(limit int, ranks []*dist.Group) (row report.Row) {
				ctx, cancel := context.WithCancel(context.WithValue(t.Context(), partLimit{}, limit))
				defer cancel()
				disttest.Each(len(ranks), func(rank int) {
					h := (&recorded{}).hooks()
					h.LogEvery, h.Group = 1, ranks[rank]
					h.Row = func(r report.Row) error {
						if _, ok := r["learning_rate"]; ok && row == nil && rank == 0 {
							row = maps.Clone(r)
							cancel()
						}
						return nil
					}
					h.Save = func(int, func(string) error) error { return nil }
					if _, _, err := begin(ctx, t, h); err != nil && !errors.Is(err, run.ErrStopped) {
						t.Errorf("rank %d: %v", rank, err)
						cancel()
					}
				})
				maps.DeleteFunc(row, func(name string, _ any) bool {
					return strings.HasPrefix(name, "dist/") || strings.HasPrefix(name, "time/")
				})
				return row
			}
			torchtest.NoLeaks(t)
			want := first(0, alone)
			norm, _ := want["grad_norm"].(float64)
			expect.Require(t, norm > 0, "the norm of the gradient is %v", want["grad_norm"])
			compare := func(what string, got report.Row) {
				expect.Equal(t, want, got, cmpopts.EquateApprox(1e-3, 1e-5), cmpopts.EquateNaNs(), what)
			}
			compare("passes of one sequence", first(1, alone))
			compare("passes of 7 tokens", first(7, alone))
			for what, ranks := range groups {
				compare(what, first(0, ranks))
			}
		})
	}
}
