package algo

import (
	"strings"

	"github.com/rltrain/rltrain/envs"
)

// TeacherServer is where a teacher is that another program serves.
type TeacherServer struct {
	URL         string  `option:"teacher_url" needs:"teacher,divergence=sampled" incidental:"true" help:"server of the teacher with OpenAI's API, such as http://host:8000/v1: rltrain serve or vLLM; empty = in this process. TEACHER_API_KEY sets the API key"`
	Concurrency int     `option:"teacher_concurrency" default:"16" range:"[1,1024]" needs:"teacher_url" incidental:"true" help:"requests to the teacher at the same time"`
	Timeout     float64 `option:"teacher_timeout" default:"600" range:"[1,1e6]" needs:"teacher_url" incidental:"true" help:"seconds that the teacher may take for one completion"`
}

// TeacherSelf is the name of the policy as its own teacher.
const TeacherSelf = "self"

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
	has := func(part string) bool { return c.Prompt == "" || strings.Contains(c.Prompt, part) }
	switch {
	case c.Kind == Sibling && samplesPerPrompt < 2 && !c.Feedback:
		return envs.OptionErrorf("teacher_context", "sibling needs at least 2 samples_per_prompt")
	case !has("{prompt}"):
		return envs.OptionErrorf("teacher_prompt", "must contain {prompt}")
	case !has("{solution}") && !c.Feedback:
		return envs.OptionErrorf("teacher_prompt", "must contain {solution}")
	case c.Prompt != "" && has("{feedback}") != c.Feedback:
		return envs.OptionErrorf("teacher_prompt", "{feedback} and include_environment_feedback need each other")
	}
	return nil
}
