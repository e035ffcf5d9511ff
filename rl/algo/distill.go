package algo

import (
	"errors"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// Distill is on-policy distillation (Agarwal et al. 2024, GKD with λ = 1; Gu et al. 2024). With p the policy's distribution
// at each token of its own completions, and q the teacher's at the same place,
//
//	L = Σ w·D(p, q)
//
// with D the reverse KL, the forward KL or the Jensen–Shannon divergence. There is no gradient through the sampling, and
// rewards are only measured.
type Distill struct {
	Teacher    string  `option:"teacher" arg:"DIR|NAME" help:"teacher of algorithm distill: a language model with the same tokenizer"`
	Divergence string  `option:"divergence" default:"reverse" allowed:"reverse,forward,jsd" help:"divergence to the teacher: reverse KL (mode-seeking), forward KL (mode-covering) or Jensen-Shannon"`
	Mix        float64 `option:"jsd_beta" default:"0.5" range:"(0,1)" needs:"divergence=jsd" help:"weight of the teacher in the mixture of the Jensen-Shannon divergence"`
	Reduction
}

func init() {
	Register(Definition{Name: "distill", Help: "on-policy distillation: the policy's completions, each token compared with a teacher", Tokens: true,
		New: func() Algorithm { return &Distill{} }})
}

// Check implements Algorithm.
func (a *Distill) Check(int) error {
	if a.Teacher == "" {
		return errors.New("algorithm distill needs teacher, a language model with the policy's tokenizer")
	}
	return nil
}

// Needs implements Algorithm.
func (a *Distill) Needs() Needs {
	return Needs{Rewards: true, Teacher: a.Teacher, Repeats: true, Reduction: a.Reduction.or(ReduceToken)}
}

// Prepare implements Algorithm: rewards do not count.
func (a *Distill) Prepare(step *rl.Step) error {
	for _, x := range step.Samples {
		x.Fill(0)
	}
	return nil
}

// Loss implements Algorithm.
func (a *Distill) Loss(s *torch.Scope, b *Batch) torch.Tensor {
	loss := b.Divergence(policy.Divergence{Kind: a.Divergence, Mix: a.Mix})
	b.Note(s, "divergence", loss)
	return loss
}
