package train

import (
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/dist/disttest"
	"github.com/rltrain/rltrain/rl/epochs"
)

// TestRanksBeginAlike: a rank with another row, or with other weights, ends the run.
func TestRanksBeginAlike(t *testing.T) {
	for want, differ := range map[string]struct{ row, weights bool }{
		"other training rows": {row: true},
		"other weights":       {weights: true},
	} {
		groups, errs := disttest.Groups(t, 2), make([]error, 2)
		disttest.Each(2, func(rank int) {
			p := tinyToken(t, 0)
			sample := &rl.Sample{Tokens: []int32{1, 2, 3}, Rows: []int{0, 1}, Actions: []int32{2, 3}}
			if rank == 1 && differ.row {
				sample.Actions[1] = 4
			}
			if rank == 1 && differ.weights {
				x := must.Get(p.Params()[0].Read())(t)
				x[0]++
				must.Do(t, p.Params()[0].Write(x))
			}
			h := (&recorded{}).hooks()
			h.Group = groups[rank]
			_, errs[rank] = Run(t.Context(), p, must.Get(epochs.New([]*rl.Sample{sample}, 1, 0, 1))(t), &algo.SFT{}, Config{Steps: 1, Optimisation: Optimisation{LearningRate: 0.1, Schedule: "constant"}}, h)
		})
		for _, err := range errs {
			expect.Error(t, err, "rank 1", want)
		}
	}
}
