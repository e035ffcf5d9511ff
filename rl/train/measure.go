package train

import (
	"fmt"
	"math"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// compareSampler compares the trainer's log-probabilities of a batch, before the first update, with those of the sampler
// that had the same version of the policy.
func compareSampler(m rl.Meter, batch []*rl.Sample, version uint64) {
	sum, widest, n := 0.0, 0.0, 0.0
	for _, x := range batch {
		if x.BehaviorLogProbs == nil || x.Version != version {
			continue
		}
		for i, sampled := range x.BehaviorLogProbs {
			gap := math.Abs(float64(x.Old[i]) - float64(sampled))
			sum, widest, n = sum+gap, max(widest, gap), n+1
		}
	}
	if n > 0 {
		m.Mean("sampling/sampling_logp_difference/mean", sum, n)
		m.Max("sampling/sampling_logp_difference/max", widest)
	}
}

// measureAdvantages reports the size of the advantages and the KL of π_old to the reference, and returns the KL per
// sample by k1.
func measureAdvantages(m rl.Meter, samples []*rl.Sample) float64 {
	size, actions := 0.0, 0.0
	var kl [3]float64 // k1, k2, k3
	refers := samples[0].Reference != nil
	for _, x := range samples {
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
	return kl[0] / float64(len(samples))
}

// measureGPU reports the memory of the GPU, in bytes, and how busy it is, in percent, if a GPU computes.
func measureGPU(m rl.Meter) error {
	memory, err := torch.MemoryOfGPU()
	if err != nil || memory == nil {
		return err
	}
	m.Last("gpu/memory_allocated", float64(memory.Allocated))
	m.Last("gpu/memory_peak", float64(memory.Peak))
	m.Last("gpu/memory_reserved", float64(memory.Reserved))
	// Not every driver reports its use.
	if use, err := torch.UseOfGPU(); err == nil {
		m.Last("gpu/busy", float64(use.Busy))
		m.Last("gpu/memory_busy", float64(use.Memory))
	}
	return nil
}

// klBound is where k3 stops growing exponentially, as in rl.KLKind.Value.
const klBound = 20

// klOf is the KL estimate k(d) of d = log π − log π_ref.
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

// lossOfKL is Σ w·k(log π − log π_ref) over actions, all [M]. Below −20 k3 continues along its tangent: it stays finite
// and still has a gradient, which a clamp would not have.
func lossOfKL(s *torch.Scope, kind string, logProbs, reference, weight torch.Tensor) torch.Tensor {
	return s.Sum(s.Mul(weight, klOf(s, kind, s.Sub(logProbs, reference))))
}

// focus says which actions of a minibatch are learned from.
type focus struct {
	kept      map[*rl.Sample][]float32 // [M], 1 or 0
	threshold float64                  // nats
	entropy   float64                  // mean of the kept actions, in nats
}

// quarter is the entropy at a quarter of the tokens of each completion.
type quarter struct{ entropy, actions float64 }

// update is what an update of the weights measures: sums over its minibatch.
type update struct {
	figures         map[string]float64 // terms of the loss, as weighted there
	bounds          rl.Meter           // smallest and largest values
	entropy, kl     float64            // nats; kl is ρ − 1 − log ρ
	low, high       float64            // clipped ratios
	ratios, actions float64            // counts
	right, judged   float64            // actions that were the most likely, of those that should be
	quarters        [4]quarter         // of completions of four tokens and more
	idle            bool               // there is no gradient
	blind           bool               // the policy gives log π alone, no entropies and ranks
	focus           *focus             // nil = all actions are learned from
	selected        algo.Selection     // by the algorithm
}

// sums are the figures that count adds to.
func (u *update) sums() []*float64 {
	all := []*float64{&u.entropy, &u.kl, &u.low, &u.high, &u.ratios, &u.right, &u.judged}
	for i := range u.quarters {
		all = append(all, &u.quarters[i].entropy, &u.quarters[i].actions)
	}
	return all
}

// forget starts the passes of an update again.
func (u *update) forget() {
	*u = update{figures: map[string]float64{}, bounds: rl.Meter{}, actions: u.actions, idle: u.idle, focus: u.focus, selected: u.selected}
}

// certainty is the mean entropy of the actions that are learned from.
func (u *update) certainty() float64 {
	if u.focus != nil {
		return u.focus.entropy
	}
	return u.entropy / u.actions
}

// fill adds the update to the figures of its step.
func (u *update) fill(m rl.Meter, norm float64, needs algo.Needs, accuracy string) {
	for name, sum := range u.figures {
		m.Mean(name, sum, 1)
	}
	m.Merge(u.bounds)
	m.Mean("grad_norm", norm, 1)
	if needs.Scores {
		return
	}
	if !u.blind {
		m.Mean("entropy", u.entropy, u.actions)
	}
	for i, q := range u.quarters {
		if q.actions > 0 {
			m.Mean(fmt.Sprintf("entropy/quarter_%d", i+1), q.entropy, q.actions)
		}
	}
	if u.focus != nil {
		m.Mean("top_entropy/threshold", u.focus.threshold, 1)
		m.Mean("top_entropy/mean", u.focus.entropy, 1)
	}
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

// count adds the figures of a pass. A sample without log π_old gets it from this pass.
func (u *update) count(s *torch.Scope, part []*rl.Sample, out policy.Output, needs algo.Needs) {
	if needs.Scores {
		return
	}
	u.blind = out.Rank == nil
	if !u.blind {
		u.entropy += s.Item(s.Sum(out.Entropy))
	}
	if !needs.Rewards {
		if u.blind {
			return
		}
		ranks := out.Rank(s)
		for _, x := range part {
			if needs.Together && x.Index > 0 { // the rejected side should not be likely
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
	if !u.blind {
		rl.PerSample(part, s.Read(out.Entropy), u.divide)
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
		switch needs.Ratio {
		case algo.SequenceRatio:
			u.clip(sum, float64(x.Advantage[0]), needs.Clip)
		case algo.MeanRatio:
			u.clip(sum/float64(len(v)), float64(x.Advantage[0]), needs.Clip)
		}
	})
}

// divide adds the entropies of a sample's actions to the quarters.
func (u *update) divide(_ *rl.Sample, entropies []float32) {
	if len(entropies) < len(u.quarters) {
		return
	}
	for i, h := range entropies {
		q := &u.quarters[len(u.quarters)*i/len(entropies)]
		q.entropy, q.actions = q.entropy+float64(h), q.actions+1
	}
}

// clip counts a ratio e^d, and whether it is clipped.
func (u *update) clip(d, advantage float64, c algo.Clip) {
	switch ratio := math.Exp(d); {
	case ratio < 1-c.Low && advantage < 0:
		u.low++
	case ratio > 1+c.High && advantage > 0:
		u.high++
	}
	u.ratios++
}
