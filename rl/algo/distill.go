package algo

import (
	"errors"

	"github.com/rltrain/rltrain/envs"
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
//
// The divergence "sampled" needs the teacher's probability of the sampled token alone, so the teacher may be on a server (Lu et al.
// 2025, On-Policy Distillation). With the advantage A = log q − log π_old of each token and ρ = π/π_old,
//
//	L = −Σ w·ρ·A
//
// whose gradient at ρ = 1 is that of the reverse KL in expectation, without the later tokens' divergence.
//
// With a TeacherContext, q is the teacher's distribution after another prompt, and the policy itself can be the teacher.
type Distill struct {
	Teacher    string  `option:"teacher" arg:"DIR|NAME" help:"teacher of algorithm distill: a language model with the same tokenizer; self = the policy, with teacher_context; with teacher_url the server's name of it"`
	Divergence string  `option:"divergence" default:"reverse" allowed:"reverse,forward,jsd,sampled" help:"divergence to the teacher: reverse KL (mode-seeking), forward KL (mode-covering), Jensen-Shannon, or the reverse KL as estimated by the sampled tokens (sampled)"`
	Mix        float64 `option:"jsd_beta" default:"0.5" range:"(0,1)" needs:"divergence=jsd" help:"weight of the teacher in the mixture of the Jensen-Shannon divergence"`
	Self       SelfTeacher
	Context    TeacherContext
	Server     TeacherServer
	Reduction
}

func init() {
	Register(Definition{Name: "distill", Help: "on-policy distillation: the policy's completions, each token compared with a teacher", Tokens: true,
		New: func() Algorithm { return &Distill{} }})
}

// sampled is the divergence that reads the teacher's probability of sampled tokens alone.
const sampled = "sampled"

// Check implements Algorithm.
func (a *Distill) Check(samplesPerPrompt int) error {
	switch {
	case a.Teacher == "":
		return errors.New("algorithm distill needs teacher, a language model with the policy's tokenizer")
	case a.Server.URL != "" && a.Divergence != sampled:
		return envs.OptionErrorf("teacher_url", "needs divergence sampled: a server returns the probabilities of sampled tokens alone")
	case a.Server.URL != "" && (a.Teacher == TeacherSelf || a.Context.Used()):
		return envs.OptionErrorf("teacher_url", "is for a teacher that reads what the policy reads: leave out teacher self and teacher_context")
	case a.Teacher == TeacherSelf && !a.Context.Used():
		return errors.New("teacher self needs teacher_context: without one it knows no more than the policy")
	}
	return a.Context.check(samplesPerPrompt)
}

// Needs implements Algorithm.
func (a *Distill) Needs() Needs {
	needs := Needs{Rewards: true, Teacher: a.Teacher, Context: a.Context, Repeats: true, Reduction: a.Reduction.or(ReduceToken)}
	if a.Teacher == TeacherSelf {
		needs.Self = a.Self
	}
	if a.Context.Used() {
		needs.Choose, needs.Reduction = withContext, a.Reduction.or(ReduceSequence)
	}
	if a.Divergence == sampled {
		needs.Repeats, needs.Ratio, needs.Clip = false, ActionRatio, unclipped
		needs.Sampled, needs.Server, needs.ByAction = true, a.Server, true
	}
	return needs
}

// withContext keeps the samples for which the teacher has a context. Means over samples count the others.
func withContext(step *rl.Step) {
	var kept []*rl.Sample
	for _, x := range step.Samples {
		if x.Context != nil {
			kept = append(kept, x)
		}
	}
	step.Figures.Mean("teacher/context_ratio", float64(len(kept)), float64(len(step.Samples)))
	step.Masked += len(step.Samples) - len(kept)
	step.Samples = kept
}

// Prepare implements Algorithm: rewards do not count.
func (a *Distill) Prepare(step *rl.Step) error {
	student, teacher, n := 0.0, 0.0, 0.0 // sums of log π, and the number of actions
	for _, x := range step.Samples {
		x.Fill(0)
		for i, q := range x.Teacher {
			x.Advantage[i] = q - x.Old[i]
			student, teacher, n = student+float64(x.Old[i]), teacher+float64(q), n+1
		}
	}
	if n > 0 {
		step.Figures.Mean("divergence", student-teacher, n)
		step.Figures.Mean("logps/teacher", teacher, n)
	}
	return nil
}

// Loss implements Algorithm.
func (a *Distill) Loss(s *torch.Scope, b *Batch) torch.Tensor {
	if a.Divergence == sampled {
		return s.Neg(s.Sum(s.Mul(b.Weight, s.Mul(b.Ratio(s), b.Advantage))))
	}
	loss := b.Divergence(policy.Divergence{Kind: a.Divergence, Mix: a.Mix})
	b.Note(s, "divergence", loss)
	return loss
}
