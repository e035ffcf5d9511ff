package algo

import (
	"math"

	"rltrain/rl"
	"rltrain/torch"
)

// importanceCap bounds the weights of samples that an older policy drew, as truncated importance sampling does
// (Ionides 2008; the bound is TRL's).
const importanceCap = 3

// weighByImportance weighs each advantage by π_old/π_sampler, of the action, or of the whole sample where that is what
// the loss has the ratio of, up to importanceCap.
func (t *Trainer) weighByImportance(step *rl.Step) {
	const name = "sampling/importance_sampling_ratio/"
	for _, x := range step.Samples {
		logs := make([]float64, x.Len())
		sum := 0.0
		for i, drawn := range x.Drawn {
			logs[i] = float64(x.Old[i]) - float64(drawn)
			sum += logs[i]
		}
		for i := range logs {
			if t.needs.Ratio == SequenceRatio {
				logs[i] = sum
			}
			w := math.Exp(logs[i])
			x.Advantage[i] *= float32(min(w, importanceCap))
			step.Figures.Min(name+"min", w)
			step.Figures.Mean(name+"mean", w, 1)
			step.Figures.Max(name+"max", w)
		}
	}
}

// measure compares, over all actions learnt from, the trainer with the policy that acted, where it was this version of
// it, and the policy with its reference, both as they were before the updates.
func (t *Trainer) measure(step *rl.Step, acted uint64) {
	if !t.needs.Rewards || len(step.Samples) == 0 {
		return
	}
	m := step.Figures
	sequence := 0.0
	for _, x := range step.Samples {
		size := 0.0
		for i, a := range x.Advantage {
			size += math.Abs(float64(a))
			now := float64(x.Old[i])
			if x.Drawn != nil && x.Version == acted {
				gap := math.Abs(now - float64(x.Drawn[i]))
				m.Mean("sampling/sampling_logp_difference/mean", gap, 1)
				m.Max("sampling/sampling_logp_difference/max", gap)
			}
			if x.Reference != nil {
				reference := float64(x.Reference[i])
				for name, kind := range map[string]rl.KLKind{"kl/k1": rl.K1, "kl/k2": rl.K2, "kl/k3": rl.K3} {
					m.Mean(name, kind.Value(now, reference), 1)
				}
				sequence += now - reference
			}
		}
		m.Mean("advantage_abs_mean", size, float64(x.Len()))
	}
	if t.config.KLCoef > 0 {
		t.kl.Update(sequence/float64(len(step.Samples)), len(step.Samples))
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
