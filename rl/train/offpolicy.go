package train

import (
	"math"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
)

// OffPolicy corrects for completions that another policy has sampled: an earlier version, or a server with other kernels. With
// w = π_old/π_sampler of a token, each advantage is multiplied by
//
//	token_truncate     min(max(w, low), high)                 truncated importance sampling (TIS)
//	token_mask         w if low ≤ w ≤ high, else 0            masked importance sampling (MIS, IcePop)
//	sequence_truncate  the same of Π w over the completion
//	sequence_mask      the same
//	geometric_mask     1 if low ≤ (Π w)^(1/T) ≤ high, else 0  no weight: only what is too far off is left out
//	none               1
//
// What is left out counts in means over tokens and completions. A product over many tokens has a large spread, a geometric mean a
// small one, so their bounds differ: 0.98 and 1.02 suit geometric_mask.
type OffPolicy struct {
	Mode string  `option:"importance_sampling" default:"auto" allowed:"auto,token_truncate,token_mask,sequence_truncate,sequence_mask,geometric_mask,none" needs:"async or rollout_url or source=recorded" help:"correction for completions of older policies and of servers, by the ratio of the policy's probability to the sampler's: of each token, the whole completion or its geometric mean; truncated to importance_sampling_min and _max, or masked outside of them; auto = sequence_truncate for rloo and vespo, else token_truncate"`
	Low  float64 `option:"importance_sampling_min" default:"0" range:"[0,1]" needs:"async or rollout_url or source=recorded,importance_sampling!=none" help:"smallest importance weight"`
	High float64 `option:"importance_sampling_max" default:"3" range:"[1,)" needs:"async or rollout_url or source=recorded,importance_sampling!=none" help:"largest importance weight"`
}

// mode is the correction for a loss with such a ratio.
func (o OffPolicy) mode(ratio algo.Ratio) string {
	switch {
	case o.Mode != "" && o.Mode != "auto":
		return o.Mode
	case ratio == algo.SequenceRatio:
		return "sequence_truncate"
	}
	return "token_truncate"
}

// Check returns an error if no ratio is within the bounds.
func (o *OffPolicy) Check() error {
	if o.Mode != "none" && o.High <= o.Low {
		return envs.OptionErrorf("importance_sampling_max", "%g must be above importance_sampling_min, %g", o.High, o.Low)
	}
	return nil
}

// weigh multiplies the advantages of a step.
func (o OffPolicy) weigh(step *rl.Step, ratio algo.Ratio) {
	mode := o.mode(ratio)
	if mode == "none" {
		return
	}
	least, most, sum, masked, n := math.Inf(1), 0.0, 0.0, 0.0, 0.0
	for _, x := range step.Samples {
		logs := make([]float64, x.Len())
		whole := 0.0
		for i, sampled := range x.BehaviorLogProbs {
			logs[i] = float64(x.Old[i]) - float64(sampled)
			whole += logs[i]
		}
		for i, log := range logs {
			switch mode {
			case "sequence_truncate", "sequence_mask":
				log = whole
			case "geometric_mask":
				log = whole / float64(len(logs))
			}
			w := math.Exp(log)
			factor := o.factor(mode, w)
			if factor == 0 {
				masked++
			}
			x.Advantage[i] *= float32(factor)
			least, most, sum, n = min(least, w), max(most, w), sum+w, n+1
		}
	}
	if n > 0 {
		const name = "sampling/importance_sampling_ratio/"
		step.Figures.Min(name+"min", least)
		step.Figures.Mean(name+"mean", sum, n)
		step.Figures.Max(name+"max", most)
		step.Figures.Mean("sampling/importance_sampling_masked", masked, n)
	}
}

// factor is what a ratio w makes of an advantage.
func (o OffPolicy) factor(mode string, w float64) float64 {
	outside := w < o.Low || w > o.High
	switch {
	case mode == "token_truncate" || mode == "sequence_truncate":
		return min(max(w, o.Low), o.High)
	case outside:
		return 0
	case mode == "geometric_mask":
		return 1
	}
	return w
}
