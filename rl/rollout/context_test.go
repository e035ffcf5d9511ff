package rollout

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
)

// TestTeacherPromptsAsTRL compares which completions get a teacher's prompt, and its text, with TRL's trainers.
func TestTeacherPromptsAsTRL(t *testing.T) {
	var want struct {
		Siblings []struct {
			Rewards   []float64
			Feedbacks []string
			Feedback  bool
			Prompts   []string
		}
		Demonstration struct{ Template, Prompt string }
	}
	must.Do(t, files.LoadJSON("testdata/trl_sdpo.json", &want))
	m := sampler(t, tiny(t), 8)
	for _, c := range want.Siblings {
		src := tokens(t, m, letters, tokensConfig())
		src.config.Context = algo.TeacherContext{Kind: algo.Sibling, Success: 1, Feedback: c.Feedback}
		var got []string
		for first := range slices.Chunk([]int{0, 1, 2, 3, 4, 5, 6, 7, 8}, 3) {
			var group rl.Group
			for _, i := range first {
				x := &rl.Trajectory{Info: &envs.Info{Tests: &envs.Tests{Message: c.Feedbacks[i]}}}
				x.AppendGiven(must.Get(m.Policy().EncodeText("question"))(t)...)
				for _, id := range must.Get(m.Policy().Tokenizer.EncodeRaw(fmt.Sprintf("answer %d", i+1), false))(t) {
					x.AppendSampled(id, -1, -1)
				}
				x.EndTurn(c.Rewards[i])
				group = append(group, x)
			}
			for _, known := range must.Get(src.siblings(group))(t) {
				text := ""
				if known != (clue{}) {
					text = src.config.Context.Fill(fmt.Sprintf("question %d", first[0]/3), known.solution, known.feedback)
				}
				got = append(got, text)
			}
		}
		expect.Equal(t, c.Prompts, got, fmt.Sprintf("with feedback %v", c.Feedback))
	}
	d := want.Demonstration
	expect.Equal(t, d.Prompt, algo.TeacherContext{Kind: algo.Demonstration, Prompt: strings.ReplaceAll(d.Template, "\n", `\n`)}.Fill("question", "solved", ""), "demonstration")
}

// solved is letters with a solution: a long one of every second episode, none of the third.
type solved struct{ endless }

func (s solved) Episode(part envs.Part, index int) (envs.Env, error) {
	e, err := s.endless.Episode(part, index)
	return solvedEpisode{e, []string{"abc", strings.Repeat("abc", 3000), ""}[index%3]}, err
}

type solvedEpisode struct {
	envs.Env
	solution string
}

func (e solvedEpisode) Solution() string { return e.solution }

// TestContextsOfAStep: the teacher reads the solution in its prompt, the rest as the policy does. Completions without a solution, or
// with one that is too long, have no context.
func TestContextsOfAStep(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	c := tokensConfig()
	c.Context = algo.TeacherContext{Kind: algo.Demonstration, Prompt: "{solution}:{prompt}"}
	step := next(t, tokens(t, m, solved{letters}, c), 0)
	for _, x := range slices.Concat(step.Groups...) {
		if x.Prompt%3 > 0 {
			expect.True(t, x.Context == nil, "episode %d has a context", x.Prompt)
			continue
		}
		shown := must.Get(envs.Show(t.Context(), letters, envs.Train, x.Prompt))(t)
		expect.Equal(t, must.Get(m.Policy().EncodeText("abc:"+shown.Text))(t), x.Context, "context")
		taught := x.ForTeacher()
		for i, action := range x.Actions {
			expect.True(t, taught.Actions[i] == action && (i == 0 || taught.Tokens[taught.Rows[i]] == x.Actions[i-1]), "action %d of the teacher's", i)
		}
		expect.Equal(t, slices.Concat(x.Context, x.Tokens[x.Rows[0]+1:]), taught.Tokens, "the teacher's tokens")
	}
	expect.True(t, step.Figures.Get("teacher/too_long") == 8 && strings.Contains(strings.Join(step.Notes, ""), "8 completions of step 1"), "%v: %q", step.Figures, step.Notes)
	c.Context.Kind, c.Context.Success = algo.Sibling, 1
	step = next(t, tokens(t, m, letters, c), 0)
	expect.True(t, !strings.Contains(strings.Join(step.Notes, ""), "not learned from"), "%q", step.Notes)
	for _, group := range step.Groups {
		good := 0
		for _, x := range group {
			good += int(x.Reward())
		}
		for _, x := range group {
			expect.True(t, (x.Context != nil) == (float64(good)-x.Reward() > 0), "reward %v in a group with %d successes: context %v", x.Reward(), good, x.Context)
		}
	}
}

// TestTeacherPromptOfMessages: the clue goes into the last message of the user.
func TestTeacherPromptOfMessages(t *testing.T) {
	dir := t.TempDir() + "/chat"
	must.Do(t, policy.TinyChatModel(dir, 1, 32, 3))
	p := must.Open(policy.NewCausalLM(policy.Config{Dir: dir, Full: true}))(t)
	src := tokens(t, sampler(t, p, 1), letters, tokensConfig())
	src.config.Context = algo.TeacherContext{Kind: algo.Demonstration, Prompt: "{prompt}{solution}"}
	user := func(text string) envs.Message { return envs.Message{Role: envs.RoleUser, Content: text} }
	said := []envs.Message{user("a"), {Role: envs.RoleAssistant, Content: "b"}, user("c"), {Role: envs.RoleAssistant, Content: "d"}}
	got := must.Get(src.teacherPrompt(envs.Observation{Messages: said}, clue{solution: "x"}))(t)
	said = slices.Clone(said)
	said[2] = user("cx")
	expect.Equal(t, must.Get(src.sampler.Policy().EncodeObservation(envs.Observation{Messages: said}))(t), got, "tokens")
	_, err := src.teacherPrompt(envs.Observation{Messages: said[1:2]}, clue{solution: "x"})
	expect.Error(t, err, "no message of the user")
}

// TestContextsThatCannotBe: a task without solutions and recorded sessions are refused.
func TestContextsThatCannotBe(t *testing.T) {
	m := sampler(t, tiny(t), 1)
	c := tokensConfig()
	c.Context.Kind = algo.Demonstration
	_, err := NewTokens(m, letters, c)
	expect.Error(t, err, "a task with solutions")
	_, err = NewRecorded(m, letters, c, session(t, func(*Recorded) {}))
	expect.Error(t, err, "recorded sessions")
}
