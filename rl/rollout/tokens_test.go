package rollout

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
)

// tokensConfig is a small run.
func tokensConfig() TokensConfig {
	return TokensConfig{Options: Options{PromptsPerStep: 4, SamplesPerPrompt: 8, Sampling: Sampling{Temperature: 1}}, Steps: 25, MaxNew: 3, Seed: 1}
}

func tokens(t *testing.T, m *policy.Sampler, task envs.Task, c TokensConfig) *Tokens {
	t.Helper()
	return must.Get(NewTokens(m, task, c))(t)
}

// encoded is a step as JSON, with failed rewards as null.
func encoded(t *testing.T, step *rl.Step) string {
	t.Helper()
	text := ""
	for _, x := range step.Samples {
		line := must.Get(json.Marshal(x))(t)
		text += string(line) + "\n"
	}
	figures := must.Get(json.Marshal(step.Figures))(t)
	return text + string(figures) + strings.Join(step.Notes, "\n")
}

// TestSamplesOfAStep checks the samples made from trajectories.
func TestSamplesOfAStep(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	c := tokensConfig()
	c.PromptsPerStep, c.SamplesPerPrompt, c.MaxNew, c.MaxTotal, c.OverlongBuffer = 2, 3, 2, 6, 4
	src := tokens(t, m, spelling, c)
	step := must.Get(src.Next(t.Context(), rl.At{Step: 3, Version: 7}))(t)
	expect.Require(t, len(step.Groups) == 2 && len(step.Samples) == 6 && !step.Prefetched && step.Greedy == nil && src.Generations() == 6,
		"%d groups, %d samples, %d generations", len(step.Groups), len(step.Samples), src.Generations())
	for i, x := range step.Samples {
		expect.True(t, x == step.Groups[i/3][i%3] && x.Episode == i && x.Prompt == i/3 && x.Index == i%3 && x.Version == 7,
			"sample %d: prompt %d, sample %d, episode %d, version %d", i, x.Prompt, x.Index, x.Episode, x.Version)
		// Three turns of at most two tokens: the limit applies to the episode, not to the turn.
		want := rl.OverlongPenalty(x.Len(), 6, 4)
		expect.True(t, x.Overlong == want && x.Len() >= 3, "sample %d: penalty %v of %d tokens, want %v", i, x.Overlong, x.Len(), want)
		paid := 0
		for _, r := range x.Rewards {
			if r != 0 {
				paid++
			}
		}
		expect.True(t, len(x.Rewards) == x.Len() && x.Reward() == float64(paid), "sample %d: rewards %v", i, x.Rewards)
	}
}

// TestSamplesHaveTheTrainersTemperature: log-probabilities sampled at another temperature than 1 are compared at that
// temperature.
func TestSamplesHaveTheTrainersTemperature(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	c := tokensConfig()
	c.Temperature = 0.5
	config := sampled
	config.Samples, config.MaxNew, config.Seed, config.Step, config.Sampling.Temperature = 8, 3, c.Seed, 0, 0.5
	groups := played(t, m, letters, []int{0, 1, 2, 3}, config).Groups
	for i, x := range next(t, tokens(t, m, letters, c), 0).Samples {
		expect.Equal(t, slices.Concat(groups...)[i].Sample(0.5).BehaviorLogProbs, x.BehaviorLogProbs, fmt.Sprintf("sample %d", i))
	}
	// A filter's distribution at that temperature is not one that the trainer can compute.
	c.TopK = 5
	for i, x := range next(t, tokens(t, m, letters, c), 0).Samples {
		expect.True(t, x.BehaviorLogProbs == nil && x.Len() > 0, "filtered sample %d has log-probabilities %v", i, x.BehaviorLogProbs)
	}
}

func TestMaskOverlong(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	c := tokensConfig()
	c.MaxNew, c.Temperature = 20, 2 // hot enough for some to end
	all := next(t, tokens(t, m, letters, c), 0)
	c.MaskOverlong = true
	masked := next(t, tokens(t, m, letters, c), 0)
	want := 0
	for _, x := range all.Samples {
		if !x.Truncated {
			want++
		}
	}
	expect.Require(t, want != 0 && want != 32, "%d of 32 end: the test shows nothing", want)
	expect.True(t, len(masked.Samples) == want && len(slices.Concat(masked.Groups...)) == 32,
		"%d samples to learn from, want %d; %d to compare", len(masked.Samples), want, len(slices.Concat(masked.Groups...)))
	expect.True(t, all.Masked == 0 && masked.Masked == 32-want, "%d and %d masked samples, want none and %d", all.Masked, masked.Masked, 32-want)
	expect.True(t, !slices.ContainsFunc(masked.Samples, func(x *rl.Sample) bool { return x.Truncated }), "a truncated sample is trained on")
	if got, want := masked.Figures.Get("completions/clipped_ratio"), 1-float64(want)/32; got != want || masked.Health.Truncated != want {
		t.Errorf("%v are cut off, want %v", got, want)
	}
}

// fixed gives every completion of an even episode the same reward, and random rewards in the others.
var fixed = endless(func(part envs.Part, index int) envs.Env {
	if index%2 == 0 {
		return &scripted{whole: true, steps: []envs.Step{{Done: true, Reward: 1, Info: &envs.Info{Correct: true, FoundBy: "tag", Kind: "even"}}}}
	}
	return letters(part, index)
})

func TestDynamicSampling(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	c := tokensConfig()
	c.DynamicSampling = true
	src := tokens(t, m, fixed, c)
	step := next(t, src, 0)
	dropped := int(step.Figures.Get("dropped_prompts"))
	for _, g := range step.Groups {
		expect.True(t, g[0].Prompt%2 != 0 && rl.Differ([]float64{slices.MinFunc(g, byReward).Reward(), slices.MaxFunc(g, byReward).Reward()}), "episode %d is kept", g[0].Prompt)
	}
	expect.True(t, len(step.Groups) == 4 && dropped >= 3 && src.state.Cursor == 4+dropped && src.Generations() == 8*(4+dropped),
		"%d groups are kept, %d dropped, the next episode is %d, %d generations", len(step.Groups), dropped, src.state.Cursor, src.Generations())
	// Resampling ends if no rewards differ.
	none := next(t, tokens(t, m, script(scripted{whole: true, steps: []envs.Step{{Done: true}}}), c), 0)
	expect.True(t, len(none.Groups) == 0 && none.Figures.Get("dropped_prompts") == maxOversampling*4, "%d groups are kept, %v dropped", len(none.Groups), none.Figures.Get("dropped_prompts"))
}

func byReward(a, b *rl.Sample) int { return int(a.Reward() - b.Reward()) }

func TestGreedyAnswersOfAStep(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	c := tokensConfig()
	plain := next(t, tokens(t, m, letters, c), 0)
	c.Greedy = true
	step := next(t, tokens(t, m, letters, c), 0)
	expect.Equal(t, plain.Groups, step.Groups, "the answers are others")
	greedy := sampled.Greedy()
	greedy.Samples, greedy.MaxNew = 1, 3
	for i, g := range played(t, m, letters, []int{0, 1, 2, 3}, greedy).Groups {
		expect.Same(t, g[0].Reward(), step.Greedy[i], "episode %d: reward of the greedy answer", i)
	}
	c.SamplesPerPrompt = 1
	expect.Equal(t, step.Greedy, next(t, tokens(t, m, letters, c), 0).Greedy, "beside single samples")
}

func TestVerboseNotesEverySample(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	c := tokensConfig()
	c.Verbose, c.PromptsPerStep, c.SamplesPerPrompt = true, 2, 2
	step := next(t, tokens(t, m, letters, c), 0)
	expect.True(t, len(step.Notes) == 4 && strings.HasPrefix(step.Notes[3], "  episode 1, sample 1: reward "), "notes %q", step.Notes)
}

func TestTokensRefuse(t *testing.T) {
	for want, change := range map[string]func(c *TokensConfig){
		"0 prompts per step": func(c *TokensConfig) { c.PromptsPerStep = 0 },
		"0 new tokens":       func(c *TokensConfig) { c.MaxNew = 0 },
		"temperature 0":      func(c *TokensConfig) { c.Temperature = 0 },
		"dynamic_sampling does not work with async": func(c *TokensConfig) { c.Async, c.DynamicSampling = true, true },
		"baseline greedy does not work with async":  func(c *TokensConfig) { c.Async, c.Greedy = true, true },
		"leave out top_k":                           func(c *TokensConfig) { c.Async, c.TopK = true, 5 },
		"step_timeout -1":                           func(c *TokensConfig) { c.StepTimeout = -1 },
		"step_timeout 1e-12":                        func(c *TokensConfig) { c.StepTimeout = 1e-12 },
		"step_timeout 1e+300":                       func(c *TokensConfig) { c.StepTimeout = 1e300 },
		"step_timeout NaN":                          func(c *TokensConfig) { c.StepTimeout = math.NaN() },
		"overlong_buffer 4":                         func(c *TokensConfig) { c.OverlongBuffer = 4 },
		"overlong_buffer -1":                        func(c *TokensConfig) { c.OverlongBuffer = -1 },
	} {
		c := tokensConfig()
		change(&c)
		expect.Failure(NewTokens(nil, letters, c))(t, want)
	}
	unset := tokensConfig()
	unset.MaxTotal, unset.OverlongBuffer = 0, 4
	expect.NoError(t, unset.Check(), "a limit that is not known yet")
}

// TestRecordsOfTurns: the completions of a record are those of its turns, with text of the environment between them or
// none, and everything together is what was written.
func TestRecordsOfTurns(t *testing.T) {
	for between, task := range map[string]envs.Task{";": spelling, "": endless(func(envs.Part, int) envs.Env { return &silent{} })} {
		c := tokensConfig()
		c.MaxNew = 2
		step := must.Get(tokens(t, sampler(t, tiny(t), 8), task, c).Next(t.Context(), rl.At{}))(t)
		all, err := step.Records(-1)
		expect.Require(t, err == nil && len(all) == c.PromptsPerStep*c.SamplesPerPrompt, "%d records, %v", len(all), err)
		written := 0
		for _, r := range all {
			expect.True(t, len(r.Actions) == 3 && strings.Join(r.Actions, between) == strings.TrimSuffix(r.Written, between), "actions %q of %q", r.Actions, r.Written)
			expect.Same(t, strings.Join(r.Actions, ""), strings.NewReplacer("<unk>", "", "<pad>", "").Replace(strings.Join(r.Tokens, "")), "tokens %q", r.Tokens)
			expect.True(t, r.Tools == nil, "%+v without tools", r.Tools)
			written += len(r.Written)
		}
		expect.True(t, written >= len(all), "nothing was written")
	}
}

// TestRecordOfATrajectory has all that a record can have. Tokens that are given within a message are part of its action.
func TestRecordOfATrajectory(t *testing.T) {
	p := tiny(t)
	x := &rl.Trajectory{Prompt: 4, Index: 2, Version: 9, Stop: envs.StopString, Joined: []int{4}}
	x.AppendGiven(4, 5)
	x.AppendSampled(6, -1, -1)
	x.AppendGiven(7)
	x.AppendSampled(8, -1, -1)
	x.EndTurn(0.5)
	x.AppendGiven(9)
	x.AppendSampled(10, -1, -1)
	x.EndTurn(1)
	x.Info = &envs.Info{Correct: true, FormatOK: true, FoundBy: "tag", Kind: "easy"}
	x.Tools, x.Thinking = envs.ToolUse{Offered: true, Calls: 1}, envs.ThinkingUse{Tokens: 3, Thoughts: 1}
	x.Parts = []rl.RecordedValue{{Name: "a", Value: 1}}
	text := func(ids ...int32) string { return must.Get(p.Tokenizer.Decode(ids, false))(t) }
	want := rl.Record{
		Step: 4, Version: 9, Prompt: 4, Sample: 2, Stop: string(envs.StopString), Reward: 1.5, Advantage: rl.Number(math.NaN()), Correct: true, Form: true, Tier: "tag", Kind: "easy",
		Tools: &x.Tools, Thinking: &x.Thinking, Each: x.Parts, Shown: text(4, 5), Written: text(6, 7, 8, 9, 10), Actions: []string{text(6, 7, 8), text(10)}, Tokens: []string{text(6), text(8), text(10)},
	}
	groups := []rl.Group{{x}, {x}}
	nan := cmp.Comparer(func(a, b rl.Number) bool { return a == b || a != a && b != b })
	expect.Equal(t, []rl.Record{want}, must.Get(records(p, rl.At{Step: 3}, groups, nil, nil, 1))(t), nan)
	greedy, sample := rl.Number(0.25), x.Sample(1)
	sample.Advantage = []float32{2, 2, 2}
	want.Greedy, want.Advantage, want.PerAction = &greedy, 2, []rl.Number{0, 0.5, 1}
	x.Tools, x.Thinking.Thoughts, want.Tools, want.Thinking = envs.ToolUse{}, 0, nil, nil
	samples := [][]*rl.Sample{{sample}, {sample}}
	for prompts, n := range map[int]int{-1: 2, 0: 0, 1: 1, 2: 2, 3: 2} {
		expect.Equal(t, slices.Repeat([]rl.Record{want}, n), must.Get(records(p, rl.At{Step: 3}, groups, samples, []float64{0.25, 0.25}, prompts))(t), cmpopts.EquateEmpty())
	}
	for at := range x.Tokens { // given, sampled or only among several
		x.Tokens[at] += 1 << 20
		expect.Failure(records(p, rl.At{}, groups, nil, nil, 1))(t, fmt.Sprint(x.Tokens[at]))
		expect.Failure(describe(rl.Meter{}, p, groups[0], nil))(t, fmt.Sprint(x.Tokens[at]))
		x.Tokens[at] -= 1 << 20
	}
}

// TestKeptTokens takes back every token of a character that is not complete. The first three tokens are one character of
// three bytes, the last two one of two.
func TestKeptTokens(t *testing.T) {
	for bytes, want := range []int{0, 0, 0, 3, 4, 4, 6} {
		expect.Same(t, want, keptTokens([]int{0, 0, 3, 4, 4, 6}, bytes), "tokens are within %d bytes", bytes)
	}
}

// TestFiltered: each filter alone, since importance weights would compare what it leaves of a distribution with all of it.
func TestFiltered(t *testing.T) {
	for _, c := range []Sampling{{TopK: 1}, {TopP: 0.9}, {MinP: 0.1}, {RepetitionPenalty: 1.1}, {RepetitionPenalty: 0.9}} {
		expect.True(t, c.Filtered(), "%+v", c)
	}
	for _, c := range []Sampling{{}, {Temperature: 0.5}, {TopP: 1, RepetitionPenalty: 1}} {
		expect.True(t, !c.Filtered(), "%+v", c)
	}
}

// finite is endless with n training episodes.
type finite struct {
	endless
	n int
}

func (f finite) Len(envs.Part) int { return f.n }

// TestSettledPromptsAreSampledLess compares how often each prompt is a step's first or second with its probability.
func TestSettledPromptsAreSampledLess(t *testing.T) {
	c := tokensConfig()
	c.PromptsPerStep, c.Pools = 2, Pools{ByDifficulty: true, Floor: 0.25}
	src := tokens(t, sampler(t, tiny(t), 8), finite{letters, 6}, c)
	src.state.Settled = []int{1, 4}
	const steps = 20000
	var first, second [6]float64
	for step := range steps {
		chosen := src.upcoming(step)(src.state.Cursor, 2)
		first[chosen[0]] += 1. / steps
		second[chosen[1]] += 1. / steps
	}
	weights := [6]float64{1, 0.25, 1, 1, 0.25, 1}
	const all = 4.5
	for i, w := range weights {
		then := 0.0
		for j, other := range weights {
			if j != i {
				then += other / all * w / (all - other)
			}
		}
		expect.True(t, math.Abs(first[i]-w/all) < 0.015 && math.Abs(second[i]-then) < 0.015,
			"prompt %d is first in %.3f of the steps, want %.3f, and second in %.3f, want %.3f", i, first[i], w/all, second[i], then)
	}
	expect.Equal(t, []int{0, 1, 2, 3, 4, 5}, slices.Sorted(slices.Values(src.upcoming(3)(0, 9))), "the prompts of a step that asks for more than there are")
}

func TestPromptsSettleAndUnsettle(t *testing.T) {
	group := func(prompt int, rewards ...float64) (g rl.Group) {
		for _, r := range rewards {
			g = append(g, &rl.Trajectory{Prompt: prompt, Turns: []rl.Turn{{Reward: r}}})
		}
		return g
	}
	src := &Tokens{config: TokensConfig{Options: Options{Pools: Pools{ByDifficulty: true, Floor: 0.2}}}}
	for _, step := range []struct {
		played []rl.Group
		want   []int
	}{
		{[]rl.Group{group(7, 1, 1), group(2, 0, 0), group(3, 0, 1)}, []int{2, 7}},
		{[]rl.Group{group(3, 0.5, 0.5, math.NaN()), group(2, 0, 0)}, []int{2, 3, 7}},
		{[]rl.Group{group(2, 0, 1), group(9, math.NaN(), math.NaN()), group(7, math.NaN(), math.NaN())}, []int{3, 7}},
		{[]rl.Group{group(7, 1, 0), group(3, 0, 1)}, nil},
	} {
		src.settle(step.played)
		expect.Equal(t, step.want, src.state.Settled, cmpopts.EquateEmpty())
	}
}

// TestPoolsOfASource: a step has different prompts, also with dynamic sampling and ahead.
func TestPoolsOfASource(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	for name, change := range map[string]func(c *TokensConfig){
		"plain": func(*TokensConfig) {}, "dynamic": func(c *TokensConfig) { c.DynamicSampling = true },
		"ahead": func(c *TokensConfig) { c.Async, c.MaxStaleness = true, 2 },
	} {
		c := tokensConfig()
		c.Pools = Pools{ByDifficulty: true, Floor: 0.05}
		change(&c)
		src := tokens(t, m, finite{fixed, 12}, c)
		for step := range 6 {
			taken := next(t, src, step)
			prompts := map[int]bool{}
			for _, g := range taken.Groups {
				prompts[g[0].Prompt] = true
			}
			expect.True(t, len(prompts) == len(taken.Groups), "%s: step %d has a prompt twice", name, step)
		}
		expect.True(t, len(src.state.Settled) > 0, "%s: no prompt is settled", name)
		taken := next(t, src, 6)
		expect.Same(t, float64(len(src.state.Settled))/12, taken.Figures.Get("settled_prompts"), "%s: settled prompts", name)
	}
}

func TestPoolsThatCannotBe(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	c := tokensConfig()
	c.Pools = Pools{ByDifficulty: true, Floor: 0.2}
	expect.Failure(NewTokens(m, letters, c))(t, "difficulty_pools")
	expect.Failure(NewTokens(m, finite{letters, c.PromptsPerStep - 1}, c))(t, "prompts_per_step")
	tokens(t, m, finite{letters, c.PromptsPerStep}, c)
	c.SamplesPerPrompt = 1
	expect.Failure(NewTokens(m, finite{letters, 9}, c))(t, "samples_per_prompt")
}
