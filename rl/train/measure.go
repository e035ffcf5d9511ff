package train

import (
	"math"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// importanceCap bounds the weights of samples that an older policy drew, as truncated importance sampling does
// (Ionides 2008; the bound is TRL's).
const importanceCap = 3

// weighByImportance weighs each advantage by π_old/π_sampler, of the action, or of the whole sample where that is what
// the loss has the ratio of, up to importanceCap.
func (t *Trainer) weighByImportance(step *rl.Step) {
	least, most, sum, n := math.Inf(1), 0.0, 0.0, 0.0
	for _, x := range step.Samples {
		logs := make([]float64, x.Len())
		whole := 0.0
		for i, drawn := range x.BehaviorLogProbs {
			logs[i] = float64(x.Old[i]) - float64(drawn)
			whole += logs[i]
		}
		for i := range logs {
			if t.needs.Ratio == algo.SequenceRatio {
				logs[i] = whole
			}
			w := math.Exp(logs[i])
			x.Advantage[i] *= float32(min(w, importanceCap))
			least, most, sum, n = min(least, w), max(most, w), sum+w, n+1
		}
	}
	if n > 0 {
		const name = "sampling/importance_sampling_ratio/"
		step.Figures.Min(name+"min", least)
		step.Figures.Mean(name+"mean", sum, n)
		step.Figures.Max(name+"max", most)
	}
}

// compareSampler compares what the trainer says of a batch, before its weights move, with the policy that acted, where
// it was this version of it.
func (t *Trainer) compareSampler(m rl.Meter, batch []*rl.Sample) {
	if !t.needs.Rewards {
		return
	}
	sum, widest, n := 0.0, 0.0, 0.0
	for _, x := range batch {
		if x.BehaviorLogProbs == nil || x.Version != t.state.Version {
			continue
		}
		for i, drawn := range x.BehaviorLogProbs {
			gap := math.Abs(float64(x.Old[i]) - float64(drawn))
			sum, widest, n = sum+gap, max(widest, gap), n+1
		}
	}
	if n > 0 {
		m.Mean("sampling/sampling_logp_difference/mean", sum, n)
		m.Max("sampling/sampling_logp_difference/max", widest)
	}
}

// measure compares, over all actions learnt from, the policy as it was first asked about each with its reference.
func (t *Trainer) measure(step *rl.Step) {
	if !t.needs.Rewards || len(step.Samples) == 0 || t.needs.SharedValues {
		return
	}
	m := step.Figures
	size, actions := 0.0, 0.0
	var kl [3]float64 // k1, k2, k3
	refers := step.Samples[0].Reference != nil
	for _, x := range step.Samples {
		actions += float64(x.Len())
		for i, a := range x.Advantage {
			size += math.Abs(float64(a))
			if refers {
				now, reference := float64(x.Old[i]), float64(x.Reference[i])
				for k, kind := range []rl.KLKind{rl.K1, rl.K2, rl.K3} {
					kl[k] += kind.Value(now, reference)
				}
			}
		}
	}
	m.Mean("advantage_abs_mean", size, actions)
	if refers {
		for k, name := range []string{"kl/k1", "kl/k2", "kl/k3"} {
			m.Mean(name, kl[k], actions)
		}
	}
	if t.config.KLCoef > 0 {
		n := len(step.Samples)
		t.kl.Update(kl[0]/float64(n), n)
	}
}

// klBound is where k3 stops to grow exponentially, as in rl.KLKind.Value.
const klBound = 20

// klOf is the estimate k(d) of the divergence from d = log π − log π_ref.
func klOf(s *torch.Scope, kind string, d torch.Tensor) torch.Tensor {
	switch rl.KLKind(kind) {
	case rl.K2:
		return s.Scale(s.Mul(d, d), 0.5)
	case rl.K3:
		near := s.Clamp(d, -klBound, math.MaxFloat32)
		beyond := s.Shift(s.Clamp(d, -math.MaxFloat32, -klBound), klBound)
		return s.Add(s.Shift(s.Add(s.Exp(s.Neg(near)), near), -1), s.Scale(beyond, 1-math.Exp(klBound)))
	}
	return d
}

// lossOfKL is Σ w·k(log π − log π_ref) over actions, all [M]. Below −20 the third estimator goes on along its tangent:
// it stays finite, and still pulls back the actions that have run away, which a clamp would let go.
func lossOfKL(s *torch.Scope, kind string, logProbs, reference, weight torch.Tensor) torch.Tensor {
	return s.Sum(s.Mul(weight, klOf(s, kind, s.Sub(logProbs, reference))))
}

// update is what one update of the weights measured: sums over its minibatch.
type update struct {
	figures         map[string]float64 // terms of the loss, as they are weighted there
	entropy, kl     float64            // nats; kl is ρ − 1 − log ρ
	low, high       float64            // ratios that the clip holds back
	ratios, actions float64            // how many there are
	right, judged   float64            // actions that were the likeliest, of so many that are to be
	idle            bool               // there is no gradient
}

// forget begins the passes of an update anew.
func (u *update) forget() {
	*u = update{figures: map[string]float64{}, actions: u.actions, idle: u.idle}
}

// fill adds the update to the figures of its step.
func (u *update) fill(m rl.Meter, norm float64, needs algo.Needs, accuracy string) {
	for name, sum := range u.figures {
		m.Mean(name, sum, 1)
	}
	m.Mean("grad_norm", norm, 1)
	if needs.Scores {
		return
	}
	m.Mean("entropy", u.entropy, u.actions)
	if !needs.Rewards {
		m.Mean(accuracy, u.right, u.judged)
	}
	if needs.Ratio != algo.NoRatio {
		m.Mean("approx_kl", u.kl, u.actions)
		m.Mean("clip_ratio/low_mean", u.low, u.ratios)
		m.Mean("clip_ratio/high_mean", u.high, u.ratios)
		m.Min("clip_ratio/low_min", u.low/u.ratios)
		m.Max("clip_ratio/high_max", u.high/u.ratios)
		m.Mean("clip_ratio/region_mean", u.low+u.high, u.ratios)
	}
}

// count adds what a pass says of a part. Where nothing was asked before, what it says is log π_old.
func (u *update) count(s *torch.Scope, part []*rl.Sample, out policy.Output, needs algo.Needs) {
	if needs.Scores {
		return
	}
	u.entropy += s.Item(s.Sum(out.Entropy))
	if !needs.Rewards {
		ranks := out.Rank(s)
		for _, x := range part {
			if needs.Together && x.Index > 0 { // what is rejected is not to be likely
				ranks = ranks[x.Len():]
				continue
			}
			for _, rank := range ranks[:x.Len()] {
				if rank == 0 {
					u.right++
				}
			}
			u.judged += float64(x.Len())
			ranks = ranks[x.Len():]
		}
		return
	}
	rl.PerSample(part, s.Read(out.LogProbs), func(x *rl.Sample, v []float32) {
		if x.Old == nil {
			x.Old = v
		}
		sum := 0.0
		for i := range v {
			d := float64(v[i]) - float64(x.Old[i])
			u.kl += math.Expm1(d) - d
			sum += d
			if needs.Ratio == algo.ActionRatio {
				u.clip(d, float64(x.Advantage[i]), needs.Clip)
			}
		}
		if needs.Ratio == algo.SequenceRatio {
			u.clip(sum, float64(x.Advantage[0]), needs.Clip)
		}
	})
}

// clip counts a ratio e^d, and whether the clip holds it back.
func (u *update) clip(d, advantage float64, c algo.Clip) {
	switch ratio := math.Exp(d); {
	case ratio < 1-c.Low && advantage < 0:
		u.low++
	case ratio > 1+c.High && advantage > 0:
		u.high++
	}
	u.ratios++
}
