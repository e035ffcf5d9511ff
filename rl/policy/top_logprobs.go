package policy

import (
	"context"
	"fmt"
	"slices"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
)

// TopLogProbs are the log-prob of a token and the most likely tokens in its place.
type TopLogProbs struct {
	LogProb  float32
	IDs      []int32   // most likely first; of equal ones the lowest first
	LogProbs []float32 // of IDs
}

// TopLogProbs evaluates the tokens of a text from index from, at least 1, at a temperature above 0, with the n most likely
// tokens in place of each.
func (p *CausalLM) TopLogProbs(ctx context.Context, ids []int32, from, n int, temperature float64) ([]TopLogProbs, error) {
	x := &rl.Sample{Tokens: ids}
	for t := from; t < len(ids); t++ {
		x.Rows, x.Actions = append(x.Rows, t-1), append(x.Actions, ids[t])
	}
	if len(x.Rows) == 0 {
		return nil, nil
	}
	all := make([]TopLogProbs, len(x.Rows))
	var wrong error
	err := p.predict(ctx, []*rl.Sample{x}, temperature, func(s *torch.Scope, _ []*rl.Sample, out Output) {
		if n == 0 {
			for i, l := range s.Read(out.LogProbs) {
				all[i].LogProb = l
			}
			return
		}
		v := out.vocabulary
		most := max(1, defaultPartLogits/v.size)
		for begin := 0; begin < len(all) && wrong == nil; begin += most {
			wrong = torch.Do(torch.NoGrad, func(part *torch.Scope) error {
				rows := make([]int64, 0, most)
				for i := begin; i < min(begin+most, len(all)); i++ {
					rows = append(rows, int64(i))
				}
				logProbs := part.Read(v.logProbs(part, part.Rows(v.states, part.Ints(rows, int64(len(rows))))))
				for i := range rows {
					row := logProbs[i*v.size : (i+1)*v.size]
					one := &all[begin+i]
					one.LogProb = row[x.Actions[begin+i]]
					one.IDs = highest(row, n)
					one.LogProbs = each(one.IDs, func(id int32) float32 { return row[id] })
				}
				return ctx.Err()
			})
		}
	})
	if err == nil {
		err = wrong
	}
	if err != nil {
		return nil, fmt.Errorf("log-probs of a text of %d tokens: %w", len(ids), err)
	}
	return all, nil
}

// highest returns the indices of the n highest values, highest first; of equal values the lowest index first.
func highest(values []float32, n int) []int32 {
	best := make([]int32, 0, n+1)
	for i, v := range values {
		if len(best) == n && !(v > values[best[n-1]]) {
			continue
		}
		at, _ := slices.BinarySearchFunc(best, v, func(other int32, v float32) int {
			if values[other] >= v {
				return -1
			}
			return 1
		})
		best = slices.Insert(best, at, int32(i))
		best = best[:min(n, len(best))]
	}
	return best
}
