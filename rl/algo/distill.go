package algo

import (
	"errors"
	"fmt"
	"strings"

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

// SelfTeacher says which weights of the policy its teacher has, if that is the policy itself. With ema, after every Every steps
//
//	w_teacher ← Rate · w + (1 − Rate) · w_teacher
//
// for each trained weight w; of an adapter, for its two matrices.
type SelfTeacher struct {
	Kind  string  `option:"teacher_model_kind" default:"ema" allowed:"ema,base,live" needs:"teacher=self" help:"weights of teacher self: an exponential moving average of the policy's (ema), those it started with (base), or its current ones (live)"`
	Rate  float64 `option:"teacher_update_rate" default:"0.05" range:"(0,1]" needs:"teacher=self,teacher_model_kind=ema" help:"weight of the policy in the moving average"`
	Every int     `option:"teacher_sync_steps" default:"1" range:"[1,)" needs:"teacher=self,teacher_model_kind=ema" help:"steps between updates of the moving average"`
}

// Values of SelfTeacher.Kind that need no moving average.
const (
	TeacherBase = "base"
	TeacherLive = "live"
)

// TeacherContext says what the teacher reads besides the prompt. Completions without a context are not learned from.
//
//   - demonstration: the solution of the episode (Shenfeld et al. 2026, "Self-Distillation Enables Continual Learning": SDFT)
//   - sibling: the first other completion of the prompt whose reward is at least Success (Hübotter et al. 2026, "Reinforcement
//     Learning via Self-Distillation": SDPO), and with Feedback what the tests of the completion's program said
type TeacherContext struct {
	Kind     string  `option:"teacher_context" default:"none" allowed:"none,demonstration,sibling" needs:"teacher" help:"what the teacher reads besides the prompt: the task's solution (demonstration), or another completion of the prompt that succeeded (sibling)"`
	Prompt   string  `option:"teacher_prompt" arg:"TEXT" needs:"teacher_context!=none" help:"the teacher's prompt, with {prompt}, {solution} and, with include_environment_feedback, {feedback}; \\n is a newline (default: that of the paper)"`
	Success  float64 `option:"success_reward_threshold" default:"1" needs:"teacher_context=sibling" help:"smallest reward of a completion that others learn from"`
	Feedback bool    `option:"include_environment_feedback" needs:"teacher_context=sibling" help:"the teacher also reads the message of the tests that the completion's program failed (task code)"`
}

// Values of TeacherContext.Kind.
const (
	Demonstration = "demonstration"
	Sibling       = "sibling"
)

// Used says whether there is a context.
func (c TeacherContext) Used() bool { return c.Kind == Demonstration || c.Kind == Sibling }

// Fill returns the teacher's prompt. solution or feedback may be "".
func (c TeacherContext) Fill(prompt, solution, feedback string) string {
	text := strings.ReplaceAll(c.Prompt, `\n`, "\n")
	switch {
	case c.Kind == Sibling:
		if solution != "" {
			solution = "\nCorrect solution:\n\n" + solution + "\n\n"
		}
		if feedback != "" {
			feedback = "\nThe following is feedback from your unsuccessful earlier attempt:\n\n" + feedback + "\n\n"
		}
		if text == "" {
			text = "{prompt}{solution}{feedback}\n\nCorrectly solve the original question.\n"
		}
	case text == "":
		text = "{prompt}\n\nThis is an example for a response to the question:\n{solution}\n\nNow answer with a response of your own, including the thinking process:\n"
	}
	return strings.NewReplacer("{prompt}", prompt, "{solution}", solution, "{feedback}", feedback).Replace(text)
}

// check returns what is wrong with a context, given the number of samples per prompt.
func (c TeacherContext) check(samplesPerPrompt int) error {
	if !c.Used() {
		return nil
	}
	if c.Kind == Sibling && samplesPerPrompt < 2 && !c.Feedback {
		return envs.OptionErrorf("teacher_context", "sibling needs at least 2 samples_per_prompt")
	}
	for _, part := range []struct {
		name string
		want bool
	}{{"{prompt}", true}, {"{solution}", !c.Feedback}} {
		if c.Prompt != "" && part.want && !strings.Contains(c.Prompt, part.name) {
			return envs.OptionErrorf("teacher_prompt", "must contain %s", part.name)
		}
	}
	if c.Prompt != "" && c.Feedback != strings.Contains(c.Prompt, "{feedback}") {
		return envs.OptionErrorf("teacher_prompt", "{feedback} and include_environment_feedback need each other")
	}
	return nil
}

func init() {
	Register(Definition{Name: "distill", Help: "on-policy distillation: the policy's completions, each token compared with a teacher", Tokens: true,
		New: func() Algorithm { return &Distill{} }})
}

// sampled is the divergence that reads the teacher's probability of sampled tokens alone.
const sampled = "sampled"

// TeacherSelf is the name of the policy as its own teacher.
const TeacherSelf = "self"

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
		return fmt.Errorf("teacher self needs teacher_context: without one it knows no more than the policy")
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
