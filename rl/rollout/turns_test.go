package rollout

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// TestSegmentsOfAnEpisode: where the environment writes the conversation anew, the model reads that alone, and each segment is a
// sample of the log-probabilities that the model has there.
func TestSegmentsOfAnEpisode(t *testing.T) {
	p := tiny(t)
	anew := &envs.Observation{Text: "another text"}
	task := script(scripted{whole: true, steps: []envs.Step{{Append: ";", Reward: 1}, {Anew: anew, Reward: 2}, {Append: ";"}, {Done: true, Reward: 3}}})
	var samples []*rl.Sample
	for _, x := range played(t, sampler(t, p, 4), task, []int{0, 1}, sampled).Groups[0] {
		must.Do(t, x.Validate())
		expect.True(t, len(x.Segments) == 1 && x.Reward() == 6, "segments at %v, reward %v", x.Segments, x.Reward())
		s := x.Sample(1)
		expect.True(t, len(s.Earlier) == 1 && s.Reward() == 6 && s.Earlier[0].Len()+s.Len() == x.Len(), "%+v", s)
		shown := must.Get(p.EncodeObservation(*anew))(t)
		expect.True(t, slices.Equal(shown, s.Tokens[:len(shown)]), "the segment begins with %v, want %v", s.Tokens, shown)
		samples = append(samples, s.Earlier[0], s)
	}
	sampledAs(t, p, samples, 1)
}

// TestMaskedActions: the policy reads a masked action later and does not learn from it; the episode's reward is as before.
func TestMaskedActions(t *testing.T) {
	p := tiny(t)
	play := func(masked bool) *rl.Trajectory {
		task := script(scripted{whole: true, steps: []envs.Step{{Append: ";", Continues: true}, {Append: ";", Continues: true, Masked: masked}, {Done: true, Reward: 3}}})
		return played(t, sampler(t, p, 4), task, []int{0}, sampled).Groups[0][0]
	}
	plain, masked := play(false), play(true)
	must.Do(t, masked.Validate())
	expect.Equal(t, plain.Tokens, masked.Tokens)
	a, b := plain.Sample(1), masked.Sample(1)
	var skipped []int
	for _, row := range a.Rows {
		if !slices.Contains(b.Rows, row) {
			skipped = append(skipped, row)
		}
	}
	expect.True(t, len(skipped) > 0 && len(skipped)+b.Len() == a.Len() && skipped[len(skipped)-1]-skipped[0] == len(skipped)-1, "rows %v, masked %v", a.Rows, b.Rows)
	expect.True(t, a.Reward() == 3 && b.Reward() == 3, "rewards %v and %v", a.Reward(), b.Reward())
	sampledAs(t, p, []*rl.Sample{b}, 1)
}

// thinker is an episode in which the user answers a thought.
type thinker struct{ said []envs.Message }

func (e *thinker) Reset(context.Context) (envs.Observation, error) {
	e.said = []envs.Message{{Role: envs.RoleUser, Content: "1"}}
	return envs.Observation{Messages: slices.Clone(e.said)}, nil
}

func (e *thinker) Step(_ context.Context, a envs.Action) (envs.Step, error) {
	e.said = append(e.said, a.Message(), envs.Message{Role: envs.RoleUser, Content: "2"})
	return envs.Step{Keep: len(a.Text), Reply: "2", Said: slices.Clone(e.said), Done: len(e.said) > 4, Reward: 1}, nil
}

// TestDroppedThoughts: a chat template that drops thoughts begins a segment after each, as the model will read it when it is used; a
// template that keeps them, and a message without a thought, do not.
func TestDroppedThoughts(t *testing.T) {
	for _, c := range []struct {
		template, text string
		segments       int
	}{
		{"{% for m in messages %}{{ m.role }}:{{ m.content.split('</think>')[-1] }};{% endfor %}", "<think>a</think>b", 1},
		{"{% for m in messages %}{{ m.role }}:{{ m.content.split('</think>')[-1] }};{% endfor %}", "b", 0},
		{"{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}", "<think>a</think>b", 0},
	} {
		torchtest.NoLeaks(t)
		dir := t.TempDir() + "/tiny"
		must.Do(t, policy.TinyChatModel(dir, 1, 32, 3))
		must.Do(t, os.WriteFile(dir+"/chat_template.jinja", []byte(c.template), 0o600))
		p := must.Open(policy.NewCausalLM(policy.Config{Dir: dir, Full: true, Seed: 5}))(t)
		m := &parted{sampler(t, p, 1), []string{c.text, "c"}}
		played := must.Get(Play(t.Context(), m, endless(func(envs.Part, int) envs.Env { return &thinker{} }), envs.Train, []int{0}, Config{Samples: 1, MaxNew: 30}))(t)
		x := played.Groups[0][0]
		expect.Same(t, c.segments, len(x.Segments), "%s", c.text)
		if c.segments > 0 {
			text := must.Get(p.Tokenizer.Decode(x.Context(), false))(t)
			expect.Same(t, "user:1;assistant:b;user:2;c;user:2;", text, "the last segment")
		}
	}
}

// parted generates a message, as far as the limits let it; every call goes on where the last one was cut.
type parted struct {
	*policy.Sampler
	parts []string
}

func (s *parted) Generate(_ context.Context, prompts [][]int32, o policy.GenerateOptions, done func(int, []policy.Completion) error) error {
	for i := range prompts {
		one, _ := o.Prompt(i)
		ids, _, err := s.Policy().Tokenizer.Encode(s.parts[0], 99)
		if err != nil {
			return err
		}
		c := policy.Completion{IDs: ids, Reason: torch.ReasonStop}
		if s.parts = s.parts[1:]; len(ids) >= one.MaxNew {
			c.IDs, c.Reason = ids[:one.MaxNew], torch.ReasonLength
		}
		c.LogProbs, c.BehaviorLogProbs = make([]float32, len(c.IDs)), make([]float32, len(c.IDs))
		if err := done(i, []policy.Completion{c}); err != nil {
			return err
		}
	}
	return nil
}

// hearing is a task of one action, which it keeps.
type hearing struct {
	prompt string
	heard  []envs.Action
}

func (h *hearing) Len(envs.Part) int                        { return 0 }
func (h *hearing) Episode(envs.Part, int) (envs.Env, error) { return h, nil }
func (h *hearing) Reset(context.Context) (envs.Observation, error) {
	return envs.Observation{Text: h.prompt}, nil
}
func (h *hearing) Step(_ context.Context, a envs.Action) (envs.Step, error) {
	h.heard = append(h.heard, a)
	return envs.Step{Keep: len(a.Text), Done: true, Reward: 1}, nil
}

// TestThinkingLimit: the thought is a span of its own; at its limit the end tag is given, and the message goes on.
func TestThinkingLimit(t *testing.T) {
	m := sampler(t, tiny(t), 1)
	for _, c := range []struct {
		name, prompt   string
		parts          []string
		thinking, text string
		source         string // s sampled, g given
		use            envs.ThinkingUse
	}{
		{"cut", "p", []string{"<think>abcdefgh", "ok"}, "abc", "ok", "ssssssssssgggggggggggss", envs.ThinkingUse{Tokens: 10, Thoughts: 1}},
		{"opened", "p<think>", []string{"abcdefghijkl", "ok"}, "abcdefghij", "ok", "ssssssssssgggggggggggss", envs.ThinkingUse{Tokens: 10, Thoughts: 1}},
		{"short", "p<think>", []string{"a</think>"}, "a", "", "sssssssss", envs.ThinkingUse{Tokens: 9, Thoughts: 1, Closed: 1}},
		{"closed before", "p<think>", []string{"a</think>b", "cd"}, "a", "bcd", "ssssssssssss", envs.ThinkingUse{Tokens: 9, Thoughts: 1, Closed: 1}},
		{"no thought", "p", []string{"abcdefghij", "kl"}, "", "abcdefghijkl", "ssssssssssss", envs.ThinkingUse{}},
		{"end of the message", "p<think>", []string{"abc"}, "abc", "", "sss", envs.ThinkingUse{Tokens: 3, Thoughts: 1}},
	} {
		task := &hearing{prompt: c.prompt}
		p := must.Get(Play(t.Context(), &parted{m, c.parts}, task, envs.Train, []int{0}, Config{Samples: 1, MaxNew: 30, MaxThinking: 10}))(t)
		x, got := p.Groups[0][0], ""
		for _, source := range x.Source[len(x.Source)-len(c.source):] {
			got += map[rl.Source]string{rl.Sampled: "s", rl.Given: "g"}[source]
		}
		expect.Equal(t, []envs.Action{{Text: c.text, Thinking: c.thinking, Stop: envs.StopEnd}}, task.heard, c.name)
		expect.Equal(t, c.source, got, c.name)
		expect.Equal(t, c.use, x.Thinking, c.name)
		records := must.Get(records(m.Policy(), rl.At{}, p.Groups, nil, nil, 1))(t)
		expect.True(t, records[0].Actions == nil, "%s: one message, %q", c.name, records[0].Actions)
	}
}

// TestTeacherPromptsAsTRL compares which completions get a teacher's prompt, and its text, with TRL's trainers.
func TestTeacherPromptsAsTRL(t *testing.T) {
	want := must.Into[struct {
		Siblings []struct {
			Rewards   []float64
			Feedbacks []string
			Feedback  bool
			Prompts   []string
		}
		Demonstration struct{ Template, Prompt string }
	}](t, files.LoadJSON, "testdata/trl_sdpo.json")
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

// solved is letters with a solution: a short one, the longest for completions of two tokens and for one more, none.
type solved struct{ endless }

func (s solved) Episode(part envs.Part, index int) (envs.Env, error) {
	e, err := s.endless.Episode(part, index)
	return solvedEpisode{e, []string{"abc", strings.Repeat("a", 2036), strings.Repeat("a", 2037), ""}[index%4]}, err
}

type solvedEpisode struct {
	envs.Env
	solution string
}

func (e solvedEpisode) Solution() string { return e.solution }

// TestContextsOfAStep: the teacher reads the solution in its prompt, the rest as the policy does. Completions without a solution, or
// with one that is too long by a token, have no context.
func TestContextsOfAStep(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	c := tokensConfig()
	c.Context = algo.TeacherContext{Kind: algo.Demonstration, Prompt: "{solution}:{prompt}"}
	step := next(t, tokens(t, m, solved{letters}, c), 0)
	long, longest := 0, 0
	for _, x := range slices.Concat(step.Groups...) {
		e := must.Get(solved{letters}.Episode(envs.Train, x.Prompt))(t).(solvedEpisode)
		shown := must.Get(envs.Show(t.Context(), letters, envs.Train, x.Prompt))(t)
		prompt := must.Get(m.Policy().EncodeText(e.solution + ":" + shown.Text))(t)
		n := len(prompt) + len(x.Tokens) - x.Rows[0] - 1
		if e.solution == "" || n > 2048 {
			expect.True(t, x.Context == nil, "episode %d has a context", x.Prompt)
			if e.solution != "" {
				long++
			}
			continue
		}
		longest = max(longest, n)
		expect.Equal(t, prompt, x.Context, "context")
		taught := x.ForTeacher()
		for i, action := range x.Actions {
			expect.True(t, taught.Actions[i] == action && (i == 0 || taught.Tokens[taught.Rows[i]] == x.Actions[i-1]), "action %d of the teacher's", i)
		}
		expect.Equal(t, slices.Concat(x.Context, x.Tokens[x.Rows[0]+1:]), taught.Tokens, "the teacher's tokens")
	}
	expect.True(t, longest == 2048 && long > 0, "%d are too long, the longest other one has %d tokens", long, longest)
	expect.Same(t, float64(long), step.Figures.Get("teacher/too_long"), "completions that are too long")
	expect.Contains(t, strings.Join(step.Notes, ""), fmt.Sprintf("%d completions of step 1", long), "2048 positions")
	c.Context.Kind, c.Context.Success, c.Context.Feedback = algo.Sibling, 1, true
	step = next(t, tokens(t, m, tested, c), 0)
	expect.True(t, !strings.Contains(strings.Join(step.Notes, ""), "not learned from"), "%q", step.Notes)
	solved, fed := 0.0, 0.0
	for _, group := range step.Groups {
		good := 0
		for _, x := range group {
			good += int(x.Reward())
		}
		for _, x := range group {
			expect.True(t, (x.Context != nil) == (good > 1 || x.Reward() == 0), "reward %v in a group with %d successes: context %v", x.Reward(), good, x.Context)
			fed += 1 - x.Reward()
		}
		if good > 0 {
			solved++
		}
	}
	expect.True(t, solved > 0 && fed > 0 && step.Figures.Get("teacher/solved_ratio") == solved/4 && step.Figures.Get("teacher/feedback_ratio") == fed/32, "%v solved, %v with feedback: %v", solved, fed, step.Figures)
}

// tested is letters whose tests explain what is wrong with an action.
var tested = endless(func(part envs.Part, index int) envs.Env { return testedEpisode{letters(part, index)} })

type testedEpisode struct{ envs.Env }

func (e testedEpisode) Step(ctx context.Context, a envs.Action) (envs.Step, error) {
	step, err := e.Env.Step(ctx, a)
	step.Info.Tests = &envs.Tests{Message: "no letter"}
	return step, err
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
	expect.Failure(src.teacherPrompt(envs.Observation{Messages: said[1:2]}, clue{solution: "x"}))(t, "no message of the user")
	said[2].Fields = dataset.Object{{Name: "x", Value: "y"}}
	expect.Failure(src.teacherPrompt(envs.Observation{Messages: said}, clue{solution: "x"}))(t, "not only a text")
}

// TestContextsThatCannotBe: a task without solutions, episodes of several segments and recorded sessions are refused.
func TestContextsThatCannotBe(t *testing.T) {
	m := sampler(t, tiny(t), 1)
	c := tokensConfig()
	c.Context.Kind = algo.Demonstration
	_, err := NewTokens(m, letters, c)
	expect.Error(t, err, "a task with solutions")
	_, err = NewRecorded(m, letters, c, session(t, func(*Recorded) {}))
	expect.Error(t, err, "recorded sessions")
	c.Context.Kind = algo.Sibling
	anew := script(scripted{whole: true, steps: []envs.Step{{Anew: &envs.Observation{Text: "b"}}, {Done: true}}})
	expect.Failure(tokens(t, m, anew, c).Next(t.Context(), rl.At{}))(t, "episode 0 has several segments")
}
