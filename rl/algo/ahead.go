package algo

import (
	"rltrain/rl"
	"rltrain/rl/policy"
	"rltrain/torch"
)

// lookAhead asks the policy and its target network about the states that transitions lead to, once about each
// transition, however often it was drawn.
func (t *Trainer) lookAhead(samples []*rl.Sample) error {
	var next []*rl.Sample
	leads := map[*rl.Sample]*rl.Sample{} // to the transition
	known := map[*rl.Sample]bool{}
	for _, x := range samples {
		if x.Next != nil && !known[x] {
			known[x] = true
			state := &rl.Sample{Tokens: x.Next, Actions: []int32{0}}
			next, leads[state] = append(next, state), x
			x.Ahead = &rl.Ahead{}
		}
	}
	ask := func(p policy.Policy, base bool, take func(x *rl.Ahead, labels []float32, value float32)) error {
		return t.forward(torch.NoGrad, next, func(s *torch.Scope, part []*rl.Sample, b *rl.Batch) {
			out := p.Forward(s, b, policy.Pass{Base: base, Values: true, Temperature: 1})
			labels, values := s.Read(out.Labels), s.Read(out.Values)
			classes := len(labels) / len(part)
			for i, state := range part {
				take(leads[state].Ahead, labels[i*classes:(i+1)*classes:(i+1)*classes], values[i])
			}
		})
	}
	if len(next) == 0 {
		return nil
	}
	if err := ask(t.policy, false, func(x *rl.Ahead, labels []float32, _ float32) { x.Online = labels }); err != nil {
		return err
	}
	return t.reference.ask(t.policy, func(p policy.Policy, base bool) error {
		return ask(p, base, func(x *rl.Ahead, labels []float32, value float32) { x.Target, x.Value = labels, value })
	})
}
