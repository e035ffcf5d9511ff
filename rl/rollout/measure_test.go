package rollout

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
)

// spoken is a trajectory of texts, the environment's and the policy's in turn.
func spoken(t *testing.T, p *policy.CausalLM, prompt int, rewards []float64, turns ...string) *rl.Trajectory {
	t.Helper()
	x := &rl.Trajectory{Prompt: prompt, Info: &envs.Info{Answer: "70", Truth: "4"}}
	for i, text := range turns {
		ids, _, err := p.Tokenizer.Encode(text, 99)
		must.Do(t, err)
		for _, id := range ids {
			if i%2 == 0 {
				x.AppendGiven(id)
			} else {
				x.AppendSampled(id, 0, 0)
			}
		}
		if i%2 == 1 {
			x.EndTurn(rewards[i/2])
		}
	}
	return x
}

// TestFiguresOfTrajectories has every figure and every input of the alarms, with other values in each place.
func TestFiguresOfTrajectories(t *testing.T) {
	p := tiny(t)
	made := func(reward float64, text string, stop envs.StopReason, info *envs.Info, tools envs.ToolUse, thinking envs.ThinkingUse) *rl.Trajectory {
		x := spoken(t, p, 1, []float64{reward}, "a b c d", text)
		x.Stop, x.Info, x.Tools, x.Thinking = stop, info, tools, thinking
		return x
	}
	all := []*rl.Trajectory{
		made(1, "b c d", envs.StopEnd, &envs.Info{Correct: true, FormatOK: true, FoundBy: "tag", Kind: "easy"}, envs.ToolUse{Offered: true, Calls: 3, Failed: 2, Malformed: 1}, envs.ThinkingUse{Tokens: 9, Thoughts: 2, Closed: 1}),
		made(1, "ef", envs.StopString, &envs.Info{Correct: true, FoundBy: "phrase", Kind: "hard"}, envs.ToolUse{Offered: true, Calls: 1, Malformed: 4}, envs.ThinkingUse{Tokens: 3, Thoughts: 2, Closed: 2}),
		made(0.25, "ghijklm", envs.StopLength, &envs.Info{FoundBy: "tag", Kind: "hard"}, envs.ToolUse{Offered: true}, envs.ThinkingUse{}),
		made(0.75, "n", envs.StopEnd, nil, envs.ToolUse{}, envs.ThinkingUse{}),
		made(math.NaN(), "opqr", envs.StopLength, &envs.Info{FoundBy: "tag", Kind: "failed"}, envs.ToolUse{}, envs.ThinkingUse{}),
	}
	all[1].Segments = []int{7, 8}
	m := rl.Meter{}
	health := must.Get(describe(m, p, all, [][]float64{{1, 1}, {0.25, 0.75, math.NaN()}}))(t)
	mean := func(sum, n float64) rl.Figure { return rl.Figure{Kind: "mean", Value: sum, Count: n} }
	once := func(kind rl.FigureKind, value float64) rl.Figure { return rl.Figure{Kind: kind, Value: value} }
	expect.Equal(t, rl.Meter{
		"reward": mean(3, 4), "reward_std": mean(math.Sqrt(0.125), 1), "reward_stderr": mean(0.25, 1), "failed_rewards": once("total", 1),
		"reward/easy": mean(1, 1), "reward/hard": mean(0.625, 1),
		"accuracy": mean(2, 5), "accuracy/easy": mean(1, 1), "accuracy/hard": mean(1, 2), "accuracy/failed": mean(0, 1), "format_rate": mean(1, 5),
		"completions/echo_ratio": mean(1, 3), "completions/same_ratio": mean(0, 3), "completions/clipped_ratio": mean(2, 5),
		"completions/mean_length": mean(19, 5), "completions/min_length": once("min", 1), "completions/max_length": once("max", 7),
		"completions/mean_terminated_length": mean(8, 3), "completions/min_terminated_length": once("min", 1), "completions/max_terminated_length": once("max", 5),
		"tools/call_frequency": mean(4, 3), "tools/failure_frequency": mean(2, 4), "tools/parse_rate": mean(4, 9),
		"thinking/mean_length": mean(12, 4), "thinking/closed_rate": mean(3, 4), "segments": mean(7, 5),
	}, m, cmpopts.EquateApprox(1e-12, 0))
	expect.Equal(t, &rl.Health{
		ZeroStd: 0.5, Truncated: 0.4, Ended: 0.6, Correct: 0.4, Formatted: 0.2, Length: 3.8, Failed: 0.2,
		Tiers: map[string]float64{"tag": 0.6, "phrase": 0.2, "none": 0.2}, Kinds: map[string]rl.AnswerCount{"easy": {N: 1, Right: 1}, "hard": {N: 2, Right: 1}, "failed": {N: 1}},
		Rewarded: rl.Rewarded{N: 3, Echoes: 1, Echo: "b c d"},
	}, health)

	// Without rewards, answers, calls or completions that ended, there are no figures of them.
	m = rl.Meter{}
	last := all[4]
	last.Info, last.Tools.Offered = nil, true
	health = must.Get(describe(m, p, []*rl.Trajectory{last}, [][]float64{{math.NaN()}}))(t)
	expect.Equal(t, rl.Meter{
		"failed_rewards": once("total", 1), "completions/clipped_ratio": mean(1, 1), "tools/call_frequency": mean(0, 1),
		"completions/mean_length": mean(4, 1), "completions/min_length": once("min", 4), "completions/max_length": once("max", 4),
	}, m)
	expect.Equal(t, &rl.Health{ZeroStd: 1, Truncated: 1, Length: 4, Failed: 1, Tiers: map[string]float64{"none": 1}, Kinds: map[string]rl.AnswerCount{}}, health)
	last.Info, last.Tools = &envs.Info{FreeForm: true, FormatOK: true, FoundBy: "tag"}, envs.ToolUse{Offered: true, Malformed: 2}
	m = rl.Meter{}
	health = must.Get(describe(m, p, []*rl.Trajectory{last}, [][]float64{{math.NaN()}}))(t)
	expect.Equal(t, map[string]rl.AnswerCount{"": {N: 1}}, health.Kinds)
	_, formatted := m["format_rate"]
	expect.True(t, !formatted && m["tools/parse_rate"] == mean(0, 2) && m["accuracy"] == mean(0, 1), "%v", m)
}

// TestFiguresOfAStep: the figures are of all that was played, and the line has them.
func TestFiguresOfAStep(t *testing.T) {
	c := tokensConfig()
	src := tokens(t, sampler(t, tiny(t), 8), fixed, c)
	step := next(t, src, 0)
	var right, prompts float64
	for _, x := range slices.Concat(step.Groups...) {
		prompts += float64(len(x.Tokens))
		right += x.Reward()
	}
	f := step.Figures
	expect.True(t, f.Get("accuracy") == right/32 && f.Get("reward") == right/32 && f.Get("num_tokens") == prompts && f.Get("failed_episodes") == 0 && f.Get("accuracy/even") == 1, "%v", f)
	share := f.Get("frac_reward_zero_std")
	expect.True(t, share >= 0.5 && share == step.Health.ZeroStd && step.Health.Group == 8, "%v of the prompts have equal rewards, the alarms receive %+v", share, step.Health)
	f.Last("step", 7)
	f.Last("loss", 0.5)
	f.Last("policy_version", 3)
	for i, name := range []string{"generation", "environment", "logprobs", "update"} {
		f.Last("time/"+name, float64(int(1)<<i)/8)
	}
	expect.Same(t, fmt.Sprintf("[SYNC  7] %.0f/32 correct %.0f/32 formatted loss=0.5000 reward=%.3f gen=375ms train=1500ms version=3", right, 32*f.Get("format_rate"), right/32), step.Line(f), "the line")
	again := next(t, src, 1)
	more := 0
	for _, x := range slices.Concat(again.Groups...) {
		more += len(x.Tokens)
	}
	expect.Same(t, prompts+float64(more), again.Figures.Get("num_tokens"), "tokens of two steps")
}

// TestOutcomesAreTheLastTurns: the echo alarm sees the last turn and all that came before it, and nothing of samples
// without a reward.
func TestOutcomesAreTheLastTurns(t *testing.T) {
	p := sampler(t, tiny(t), 8).Policy()
	trajectory := func(prompt int, rewards []float64, turns ...string) *rl.Trajectory {
		return spoken(t, p, prompt, rewards, turns...)
	}
	var r rl.Record
	must.Do(t, fillTexts(p, trajectory(1, []float64{1}, "Go!", "a", "And?"), &r))
	expect.Same(t, "Go! aAnd?", r.Shown+" "+r.Written, "a record of a turn and what the environment adds")
	got := must.Get(outcomes(p, []*rl.Trajectory{
		trajectory(1, []float64{1}, "74 - 70?", "74"), trajectory(1, []float64{math.NaN()}, "74 - 70?", "75"), trajectory(1, []float64{0}, "74 - 70?", "70"),
		trajectory(2, []float64{0, 2}, "Go!", "a", "And?", "b"),
	}))(t)
	want := []rl.Outcome{
		{Prompt: "74 - 70?", Text: "74", Answer: "70", Truth: "4", Reward: 1}, {Prompt: "74 - 70?", Text: "70", Answer: "70", Truth: "4"},
		{Prompt: "Go!aAnd?", Text: "b", Answer: "70", Truth: "4", Reward: 2},
	}
	expect.Equal(t, want, got)
	// Rewards of two values are verdicts, and others are not.
	for _, test := range []struct {
		rewards []float64
		want    int
	}{{[]float64{0, 1, 1}, 2}, {[]float64{-1, -0.5, -1}, 1}, {[]float64{1, 1}, 2}, {[]float64{0, 0}, 0}, {[]float64{0, 0.5, 1}, -1}, {[]float64{math.NaN(), 1, 0}, 1}} {
		var played Played
		for _, reward := range test.rewards {
			played.Groups = append(played.Groups, rl.Group{trajectory(1, []float64{reward}, "a", "b")})
		}
		expect.Same(t, test.want, accepted(played), "rewards %v: accepted", test.rewards)
	}
}
