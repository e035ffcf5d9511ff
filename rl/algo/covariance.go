package algo

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
)

// Entropy falls by the covariance of log π and advantage, to which few tokens contribute nearly all (arXiv 2505.22617). Over the
// tokens of a minibatch, with log π before the update,
//
//	cov_t = (A_t − mean A)·(log π_t − mean log π)

// ClipCov is GRPO that leaves out some of the tokens with a high covariance: max(1, ⌊Fraction·N⌋) of the N tokens of a minibatch, at
// random among those with Low < cov < High whose ratio PPO's clip does not hold back already.
type ClipCov struct {
	AdvantageScale
	Reduction
	Clip
	Fraction float64 `option:"clip_cov_ratio" default:"2e-4" range:"(0,1]" help:"fraction of a minibatch's tokens, at least one, that is left out"`
	Low      float64 `option:"clip_cov_lb" default:"1" help:"lower bound of the covariance of these tokens"`
	High     float64 `option:"clip_cov_ub" default:"5" help:"upper bound of the covariance of these tokens"`
}

// KLCov is GRPO without a clip that penalises the tokens with the highest covariance, max(1, ⌊Fraction·N⌋) of the N tokens of a
// minibatch:
//
//	L = −Σ w·(ρ·A − s·Coef·|log ρ|),   s = 1 for these tokens, else 0
//
// In the first update of a rollout ρ = 1, so the penalty has no gradient: it needs several updates.
type KLCov struct {
	AdvantageScale
	Reduction
	Fraction float64 `option:"kl_cov_ratio" default:"2e-4" range:"(0,1]" help:"fraction of a minibatch's tokens, at least one, that is penalised: those of the highest covariance of log π and advantage"`
	Coef     float64 `option:"kl_cov_coef" default:"0.1" range:"(0,)" help:"weight of the penalty, |log ρ| of a token"`
}

func init() {
	Register(Definition{Name: "clip_cov", Help: "GRPO without some of the tokens that reduce the entropy most (Clip-Cov)", Tokens: true,
		New: func() Algorithm { return &ClipCov{} }})
	Register(Definition{Name: "kl_cov", Help: "GRPO with a penalty on the tokens that reduce the entropy most, for several updates per rollout (KL-Cov)", Tokens: true,
		New: func() Algorithm { return &KLCov{} }})
}

// Needs implements Algorithm.
func (a *ClipCov) Needs() Needs {
	return Needs{Rewards: true, Ratio: ActionRatio, Clip: a.Clip, Reduction: a.Reduction.or(ReduceToken), ByAction: true, ByAdvantage: true, Select: a.pick}
}

// Needs implements Algorithm.
func (a *KLCov) Needs() Needs {
	return Needs{Rewards: true, Ratio: ActionRatio, Clip: Clip{Low: 1, High: math.Inf(1)}, Reduction: a.Reduction.or(ReduceToken), ByAction: true, ByAdvantage: true, Select: a.pick}
}

// covaried is the covariance of an action.
type covaried struct {
	x   *rl.Sample
	at  int
	cov float64
}

// covariances are those of all actions of a minibatch, of which now are log π.
func covariances(batch []*rl.Sample, now Selection) (all []covaried) {
	advantage, logProb, n := 0.0, 0.0, 0.0
	for _, x := range batch {
		for t, lp := range now[x] {
			advantage, logProb, n = advantage+float64(x.Advantage[t]), logProb+float64(lp), n+1
		}
	}
	for _, x := range batch {
		for t, lp := range now[x] {
			all = append(all, covaried{x, t, (float64(x.Advantage[t]) - advantage/n) * (float64(lp) - logProb/n)})
		}
	}
	return all
}

// mark sets the first of some actions to 1, a fraction of n and at least one, and all others to 0.
func mark(some []covaried, batch []*rl.Sample, fraction float64, n int) Selection {
	chosen := Selection{}
	for _, x := range batch {
		chosen[x] = make([]float32, x.Len())
	}
	for _, c := range some[:min(len(some), max(1, int(fraction*float64(n))))] {
		chosen[c.x][c.at] = 1
	}
	return chosen
}

func (a *ClipCov) pick(batch []*rl.Sample, now Selection, rng *rand.Rand) Selection {
	all := covariances(batch, now)
	n := len(all)
	candidates := slices.DeleteFunc(all, func(c covaried) bool {
		ratio, advantage := 1.0, float64(c.x.Advantage[c.at])
		if c.x.Old != nil {
			ratio = math.Exp(float64(now[c.x][c.at]) - float64(c.x.Old[c.at]))
		}
		held := advantage > 0 && ratio > 1+a.Clip.High || advantage < 0 && ratio < 1-a.Clip.Low
		return held || c.cov <= a.Low || c.cov >= a.High
	})
	rng.Shuffle(len(candidates), func(i, j int) { candidates[i], candidates[j] = candidates[j], candidates[i] })
	return mark(candidates, batch, a.Fraction, n)
}

func (a *KLCov) pick(batch []*rl.Sample, now Selection, _ *rand.Rand) Selection {
	all := covariances(batch, now)
	slices.SortStableFunc(all, func(x, y covaried) int { return cmp.Compare(y.cov, x.cov) })
	return mark(all, batch, a.Fraction, len(all))
}

// Loss implements Algorithm.
func (a *ClipCov) Loss(s *torch.Scope, b *Batch) torch.Tensor {
	kept := b.Constant(s, func(x *rl.Sample, _, values []float32) {
		for t, chosen := range b.Selected[x] {
			values[t] = 1 - chosen
			b.Add("clip_cov/left_out_ratio", float64(chosen)/float64(b.Actions))
		}
	})
	ratio := b.Ratio(s)
	clipped := s.Clamp(ratio, 1-a.Clip.Low, 1+a.Clip.High)
	return s.Neg(s.Sum(s.Mul(s.Mul(b.Weight, kept), s.Minimum(s.Mul(ratio, b.Advantage), s.Mul(clipped, b.Advantage)))))
}

// Loss implements Algorithm.
func (a *KLCov) Loss(s *torch.Scope, b *Batch) torch.Tensor {
	slope := b.Constant(s, func(x *rl.Sample, now, values []float32) { // of |log ρ|, times its weight
		for t, chosen := range b.Selected[x] {
			values[t] = chosen * float32(a.Coef)
			if now[t] < x.Old[t] {
				values[t] = -values[t]
			} else if now[t] == x.Old[t] {
				values[t] = 0
			}
		}
	})
	gain := s.Sub(s.Mul(b.Ratio(s), b.Advantage), s.Mul(slope, s.Sub(b.LogProbs, b.Old)))
	return s.Neg(s.Sum(s.Mul(b.Weight, gain)))
}
