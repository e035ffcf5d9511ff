package algo

import (
	"math"
	"slices"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
)

// pairs are the P pairs of a batch. Its samples are chosen and rejected in turn.
type pairs struct {
	chosen, rejected side
	n                int
	share            float64 // weight of each pair in the mean over the minibatch
	whole            []*rl.Sample
	tokens           torch.Tensor // [M] 1 for actions of a chosen response
	logProbs         torch.Tensor // [M]
}

// side is the chosen or the rejected responses.
type side struct {
	sum       torch.Tensor  // [P] Σ log π
	reference *torch.Tensor // [P] Σ log π_ref; nil if none is needed
	perToken  torch.Tensor  // [P] 1/tokens
}

func pairsOf(s *torch.Scope, b *Batch) pairs {
	p := pairs{n: len(b.Part) / 2, share: 2 / float64(b.Samples), whole: b.Whole, logProbs: b.LogProbs}
	var isChosen []float32
	var perToken [2][]float32
	var rows [2][]int64
	refers := b.Part[0].Reference != nil
	var reference [2][]float32
	for i, x := range b.Part {
		at := i % 2
		rows[at], perToken[at] = append(rows[at], int64(i)), append(perToken[at], 1/float32(x.Len()))
		isChosen = append(isChosen, slices.Repeat([]float32{1 - float32(at)}, x.Len())...)
		if refers {
			reference[at] = append(reference[at], float32(rl.Total(x.Reference)))
		}
	}
	p.tokens = s.Floats(isChosen, int64(len(isChosen)))
	sums := s.SumLast(s.Mul(b.Members(s), b.LogProbs))
	n := int64(p.n)
	for at, into := range []*side{&p.chosen, &p.rejected} {
		into.sum, into.perToken = s.Rows(sums, s.Ints(rows[at], n)), s.Floats(perToken[at], n)
		if refers {
			r := s.Floats(reference[at], n)
			into.reference = &r
		}
	}
	return p
}

// ratio is h = L − L_ref, [P]; L without a reference.
func (x side) ratio(s *torch.Scope) torch.Tensor {
	if x.reference == nil {
		return x.sum
	}
	return s.Sub(x.sum, *x.reference)
}

// mean is L/tokens, [P].
func (x side) mean(s *torch.Scope) torch.Tensor { return s.Mul(x.sum, x.perToken) }

// ratios is h_c − h_r, [P].
func (p pairs) ratios(s *torch.Scope) torch.Tensor {
	return s.Sub(p.chosen.ratio(s), p.rejected.ratio(s))
}

// nll is −Σ L_c / Σ tokens_c over the whole minibatch, divided evenly among the pairs of the batch, [1].
func (p pairs) nll(s *torch.Scope) torch.Tensor {
	tokens := 0
	for i := 0; i < len(p.whole); i += 2 {
		tokens += p.whole[i].Len()
	}
	sum := s.Sum(s.Mul(p.tokens, p.logProbs))
	return s.Scale(s.Add(s.Floats([]float32{0}, 1), sum), -1/(float64(tokens)*p.share*float64(p.n)))
}

// meanRatio is the mean of h over samples, at least 0.
func meanRatio(samples []*rl.Sample) float64 {
	sum := 0.0
	for _, x := range samples {
		sum += rl.Total(x.Old) - rl.Total(x.Reference)
	}
	return max(0, sum/math.Max(1, float64(len(samples))))
}
