package rollout

import (
	"context"
	"testing"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

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
