package train

import (
	"fmt"
	"math"
	"slices"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// entropyCoef is the weight of the entropy bonus in the next update.
func (t *training) entropyCoef() float64 {
	c, e := t.config, t.state.Entropy
	switch {
	case !c.Adaptive:
		return c.EntropyCoef
	case e == nil || e.Last > c.Target:
		return 0
	}
	return e.Coef
}

// adaptEntropy adapts the coefficient to the mean entropy of an update.
func (t *training) adaptEntropy(mean float64) {
	c := t.config
	if !c.Adaptive {
		return
	}
	coef := c.EntropyCoef
	if t.state.Entropy != nil {
		coef = t.state.Entropy.Coef
	}
	if mean <= c.Target {
		coef = min(coef+c.Delta, c.Max)
	} else {
		coef = max(coef-c.Delta, c.Min)
	}
	t.state.Entropy = &entropyState{Coef: coef, Last: mean}
}

// survey evaluates the actions of a minibatch's parts before its update, with a pass of its own; all ranks get all values.
func (t *passes) survey(parts [][]*rl.Sample, field func(out policy.Output) torch.Tensor) (algo.Selection, error) {
	found := map[*rl.Sample]*[]float32{}
	of := func(x *rl.Sample) *[]float32 {
		if found[x] == nil {
			found[x] = new([]float32)
		}
		return found[x]
	}
	for _, part := range parts {
		if err := t.ask(t.own(part), func(s *torch.Scope, part []*rl.Sample, b *rl.Batch) {
			out := t.policy.Forward(s, b, policy.Pass{Temperature: t.config.Temperature})
			rl.PerSample(part, s.Read(field(out)), func(x *rl.Sample, v []float32) { *of(x) = v })
		}); err != nil {
			return nil, err
		}
	}
	if err := t.exchange(parts, of); err != nil {
		return nil, err
	}
	values := algo.Selection{}
	for x, list := range found {
		values[x] = *list
	}
	return values, nil
}

// pick has the algorithm select actions of a minibatch, the number-th of its step; nil = it does not.
func (t *passes) pick(batch []*rl.Sample, parts [][]*rl.Sample, number int) (algo.Selection, error) {
	if t.needs.Select == nil {
		return nil, nil
	}
	now, err := t.survey(parts, func(out policy.Output) torch.Tensor { return out.LogProbs })
	if err != nil {
		return nil, fmt.Errorf("log-probabilities: %w", err)
	}
	return t.needs.Select(batch, now, rl.Stream(t.config.Seed, rl.StreamSelection, uint64(t.state.Step), uint64(number))), nil
}

// focus finds the actions of the highest entropy, with a pass over the parts of a minibatch; nil = all are learned from.
func (t *passes) focus(parts [][]*rl.Sample) (*focus, error) {
	if t.config.TopEntropy == 1 {
		return nil, nil
	}
	entropies, err := t.survey(parts, func(out policy.Output) torch.Tensor { return out.Entropy })
	if err != nil {
		return nil, fmt.Errorf("entropies: %w", err)
	}
	var all []float64
	for _, x := range slices.Concat(parts...) {
		for _, h := range entropies[x] {
			all = append(all, float64(h))
		}
	}
	f := &focus{kept: map[*rl.Sample][]float32{}, threshold: quantile(all, 1-t.config.TopEntropy)}
	for x, list := range entropies {
		f.kept[x] = make([]float32, len(list))
		for i, h := range list {
			if float64(h) >= f.threshold {
				f.kept[x][i] = 1
			}
		}
	}
	n := 0.0
	for _, h := range all {
		if h >= f.threshold {
			f.entropy, n = f.entropy+h, n+1
		}
	}
	f.entropy /= n
	return f, nil
}

// quantile is the q quantile of values, between the two nearest in proportion, as torch.quantile has it.
func quantile(values []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	below := int(math.Floor(at))
	above := min(below+1, len(sorted)-1)
	return sorted[below] + (at-float64(below))*(sorted[above]-sorted[below])
}
