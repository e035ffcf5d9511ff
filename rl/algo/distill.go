package algo

import (
	"errors"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// Distill teaches a student by its own answers (Agarwal et al. 2024, GKD with λ = 1; Gu et al. 2024): of each token that
// the student wrote, the distribution p that it was drawn from is drawn to that q of a teacher, which reads the same,
//
//	L = Σ w·D(p, q)
//
// with D the reverse KL divergence, the forward one, or the Jensen–Shannon divergence between them. The answers are taken
// as they are: no gradient goes through what was drawn, and rewards are only measured.
type Distill struct {
	Teacher    string  `option:"teacher" arg:"DIR|NAME" help:"language model of the same tokenizer that the policy learns to be like, by algorithm distill"`
	Divergence string  `option:"divergence" default:"reverse" allowed:"reverse,forward,jsd" help:"how far the policy is from its teacher: reverse KL, which keeps to what the teacher finds likely, forward KL, which covers all of it, or Jensen-Shannon"`
	Mix        float64 `option:"jsd_beta" default:"0.5" range:"(0,1)" needs:"divergence=jsd" help:"share of the teacher in the mixture that divergence jsd measures from"`
	Reduction
}

func init() {
	Register(Definition{Name: "distill", Help: "the policy's own answers, each token of which a teacher judges (on-policy distillation)", Tokens: true,
		New: func() Algorithm { return &Distill{} }})
}

// Check implements Algorithm.
func (a *Distill) Check(int) error {
	if a.Teacher == "" {
		return errors.New("algorithm distill needs teacher, a language model of the policy's tokenizer")
	}
	return nil
}

// Needs implements Algorithm.
func (a *Distill) Needs() Needs {
	return Needs{Rewards: true, Teacher: a.Teacher, Repeats: true, Reduction: a.Reduction.or(ReduceToken)}
}

// Prepare implements Algorithm: what an answer earns changes nothing.
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
