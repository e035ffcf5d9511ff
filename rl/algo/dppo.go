package algo

import (
	"math"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
)

// DPPO is REINFORCE with importance weights that leaves out the tokens whose probability has moved too far already. PPO's clip
// bounds the ratio, which lets likely tokens move far and unlikely ones hardly at all; DPPO bounds a divergence (arXiv
// 2602.04879). With A as in GRPO, p = π_old and q = π of the sampled token and ρ = q/p,
//
//	L = −Σ w·M·sg(min(ρ, cap))·A·log π
//	M = 0 where the step would go further in A's direction and D(p, q) > δ, else 1
//	D = |p − q| (tv), or p·log(p/q) + (1−p)·log((1−p)/(1−q)) (kl)
type DPPO struct {
	AdvantageScale
	Reduction
	Divergence string  `option:"trust_region" default:"tv" allowed:"tv,kl" help:"what says how far a token has moved: tv = the difference of its probabilities, kl = the KL of sampling it or not"`
	Delta      float64 `option:"trust_region_delta" default:"0" range:"[0,)" help:"distance at which a token is left out (0 = 0.2 for tv, 0.05 for kl)"`
	Cap        float64 `option:"trust_region_cap" default:"20" range:"(0,)" help:"largest importance weight of dppo"`
}

func init() {
	Register(Definition{Name: "dppo", Help: "REINFORCE with importance weights, without the tokens whose probability moved too far (DPPO)", Tokens: true,
		New: func() Algorithm { return &DPPO{} }})
}

// Needs implements Algorithm.
func (a *DPPO) Needs() Needs {
	return Needs{Rewards: true, Ratio: ActionRatio, Clip: Clip{Low: 1, High: a.Cap - 1}, Reduction: a.Reduction.or(ReduceToken), ByAction: true, ByAdvantage: true}
}

// Loss implements Algorithm.
func (a *DPPO) Loss(s *torch.Scope, b *Batch) torch.Tensor {
	masked := 0
	weight := b.Constant(s, func(x *rl.Sample, now, values []float32) {
		for t := range values {
			p, q := math.Exp(float64(x.Old[t])), math.Exp(float64(now[t]))
			if further := q != p && (q > p) == (x.Advantage[t] > 0); further && a.distance(p, q) > a.delta() {
				masked++
				continue
			}
			values[t] = float32(min(q/p, a.Cap))
		}
	})
	b.Add("dppo/masked_ratio", float64(masked)/float64(b.Actions))
	return reinforceLoss(s, b.LogProbs, b.Advantage, s.Mul(b.Weight, weight))
}

func (a *DPPO) delta() float64 {
	switch {
	case a.Delta > 0:
		return a.Delta
	case a.Divergence == "kl":
		return 0.05
	}
	return 0.2
}

// distance is D(p, q).
func (a *DPPO) distance(p, q float64) float64 {
	if a.Divergence == "kl" {
		const tiny = 1e-12 // keeps logarithms finite where a probability is 0 or 1
		p, q = min(max(p, tiny), 1-tiny), min(max(q, tiny), 1-tiny)
		return p*math.Log(p/q) + (1-p)*math.Log((1-p)/(1-q))
	}
	return math.Abs(p - q)
}
