package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"rltrain/envs"
	"rltrain/envs/reward"
	"rltrain/rl"
	"rltrain/rl/policy"
)

// tokensConfig is a small run.
func tokensConfig() TokensConfig {
	return TokensConfig{Options: Options{PromptsPerStep: 4, SamplesPerPrompt: 8, Sampling: Sampling{Temperature: 1}}, Steps: 25, MaxNew: 3, Seed: 1}
}

func tokens(t *testing.T, m *policy.Sampler, task envs.Task, c TokensConfig) *Tokens {
	t.Helper()
	src, err := NewTokens(m, task, c)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// encoded is a step as JSON, with rewards that failed as null.
func encoded(t *testing.T, step *rl.Step) string {
	t.Helper()
	text := ""
	for _, x := range step.Samples {
		line, err := json.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		text += string(line) + "\n"
	}
	figures, err := json.Marshal(step.Figures)
	if err != nil {
		t.Fatal(err)
	}
	return text + string(figures) + strings.Join(step.Notes, "\n")
}

// TestSamplesOfAStep looks at what becomes of trajectories.
func TestSamplesOfAStep(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	c := tokensConfig()
	c.PromptsPerStep, c.SamplesPerPrompt, c.MaxNew, c.MaxTotal, c.OverlongBuffer = 2, 3, 2, 6, 4
	src := tokens(t, m, spelling, c)
	step, err := src.Next(t.Context(), rl.At{Step: 3, Version: 7})
	if err != nil {
		t.Fatal(err)
	}
	if len(step.Groups) != 2 || len(step.Samples) != 6 || step.Prefetched || step.Greedy != nil || src.Generations() != 6 {
		t.Fatalf("%d groups, %d samples, %d generations", len(step.Groups), len(step.Samples), src.Generations())
	}
	for i, x := range step.Samples {
		if x != step.Groups[i/3][i%3] || x.Episode != i || x.Prompt != i/3 || x.Index != i%3 || x.Version != 7 {
			t.Errorf("sample %d: prompt %d, sample %d, episode %d, version %d", i, x.Prompt, x.Index, x.Episode, x.Version)
		}
		// Three turns of at most two tokens: the limit is the episode's, not the turn's.
		if want := rl.OverlongPenalty(x.Len(), 6, 4); x.Overlong != want || x.Len() < 3 {
			t.Errorf("sample %d: penalty %v of %d tokens, want %v", i, x.Overlong, x.Len(), want)
		}
		paid := 0
		for _, r := range x.Rewards {
			if r != 0 {
				paid++
			}
		}
		if len(x.Rewards) != x.Len() || x.Reward() != float64(paid) {
			t.Errorf("sample %d: rewards %v", i, x.Rewards)
		}
	}
}

// TestOverlongCountsTheEpisode: five lines that each reach the limit of a line, within that of an episode.
func TestOverlongCountsTheEpisode(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	c := tokensConfig()
	c.PromptsPerStep, c.SamplesPerPrompt, c.MaxNew, c.MaxTotal, c.OverlongBuffer, c.MaskOverlong = 1, 4, 2, 40, 16, true
	var steps []envs.Step
	for i := range 5 {
		steps = append(steps, envs.Step{Append: ";", Reward: 1, Done: i == 4})
	}
	for _, x := range next(t, tokens(t, m, script(scripted{steps: steps, whole: true}), c), 0).Groups[0] {
		if x.Overlong != 0 || x.Len() > 10 {
			t.Errorf("%d tokens have the penalty %v", x.Len(), x.Overlong)
		}
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
	if want == 0 || want == 32 {
		t.Fatalf("%d of 32 end: the test shows nothing", want)
	}
	if len(masked.Samples) != want || len(slices.Concat(masked.Groups...)) != 32 {
		t.Errorf("%d samples to learn from, want %d; %d to compare", len(masked.Samples), want, len(slices.Concat(masked.Groups...)))
	}
	if slices.ContainsFunc(masked.Samples, func(x *rl.Sample) bool { return x.Truncated }) {
		t.Error("a sample that was cut off is learnt from")
	}
	if got, want := masked.Figures.Get("completions/clipped_ratio"), 1-float64(want)/32; got != want || masked.Health.Truncated != want {
		t.Errorf("%v are cut off, want %v", got, want)
	}
}

// fixed pays the same for every answer to an even episode, and by chance for others.
var fixed = endless(func(part envs.Part, index int) envs.Env {
	if index%2 == 0 {
		return &scripted{whole: true, steps: []envs.Step{{Done: true, Reward: 1, Info: &envs.Info{Correct: true, Tier: "tag", Kind: "even"}}}}
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
		if g[0].Prompt%2 == 0 || !rl.Differ([]float64{slices.MinFunc(g, byReward).Reward(), slices.MaxFunc(g, byReward).Reward()}) {
			t.Errorf("episode %d is kept", g[0].Prompt)
		}
	}
	if len(step.Groups) != 4 || dropped < 3 || src.state.Cursor != 4+dropped || src.Generations() != 8*(4+dropped) {
		t.Errorf("%d groups are kept, %d dropped, the next episode is %d, %d generations", len(step.Groups), dropped, src.state.Cursor, src.Generations())
	}
	// Where nothing differs there is an end to it.
	none := next(t, tokens(t, m, script(scripted{whole: true, steps: []envs.Step{{Done: true}}}), c), 0)
	if len(none.Groups) != 0 || none.Figures.Get("dropped_prompts") != maxOversampling*4 {
		t.Errorf("%d groups are kept, %v dropped", len(none.Groups), none.Figures.Get("dropped_prompts"))
	}
}

func byReward(a, b *rl.Sample) int { return int(a.Reward() - b.Reward()) }

func TestGreedyAnswersOfAStep(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	c := tokensConfig()
	plain := next(t, tokens(t, m, letters, c), 0)
	c.Greedy = true
	step := next(t, tokens(t, m, letters, c), 0)
	if diff := cmp.Diff(plain.Groups, step.Groups); diff != "" {
		t.Errorf("the answers are others (-without +with):\n%s", diff)
	}
	greedy := sampled.Greedy()
	greedy.Samples, greedy.MaxNew = 1, 3
	for i, g := range played(t, m, letters, []int{0, 1, 2, 3}, greedy).Groups {
		if step.Greedy[i] != g[0].Reward() {
			t.Errorf("episode %d: the greedy answer earns %v, want %v", i, step.Greedy[i], g[0].Reward())
		}
	}
}

// TestRewardsJudgeTurns has two rewards of three turns, of which one fails where a turn begins with a small letter.
func TestRewardsJudgeTurns(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	c := sampled
	c.Samples, c.MaxNew = 8, 2
	var seen []envs.Completion
	own := map[string]envs.Reward{
		"size": func(_ context.Context, c envs.Completion) (float64, error) { return float64(len(c.Action.Text)), nil },
		"flaky": func(_ context.Context, c envs.Completion) (float64, error) {
			if small(c.Action.Text) {
				return 0, errors.New("a letter")
			}
			return 10, nil
		},
	}
	parse := func(list string) *reward.Text {
		t.Helper()
		r, err := reward.ParseText(list, own, reward.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	plain := played(t, m, spelling, []int{0, 1}, c)
	c.Rewards = parse("size=2,flaky")
	judged := played(t, m, spelling, []int{0, 1}, c)
	failures := 0
	for i, x := range slices.Concat(judged.Groups...) {
		before := slices.Concat(plain.Groups...)[i]
		if diff := cmp.Diff(before.Tokens, x.Tokens); diff != "" {
			t.Errorf("rewards change what is written:\n%s", diff)
		}
		for turn := range x.Turns {
			text := turnText(t, m.Policy(), x, turn)
			want := 2*float64(len(text)) + 10
			if small(text) {
				want = math.NaN()
				failures++
			}
			if diff := cmp.Diff(want, x.Turns[turn].Reward, cmpopts.EquateNaNs()); diff != "" {
				t.Errorf("turn %q: %s", text, diff)
			}
		}
	}
	if len(judged.Scores.Total) != 2*8*3 || failures == 0 || judged.Scores.Rewards[1].Failures != failures || judged.Scores.Rewards[0].Failures != 0 {
		t.Errorf("%d judgements, %d failures: %+v", len(judged.Scores.Total), failures, judged.Scores.Rewards)
	}

	// What a reward sees: the prompt, all that was written, the turn, and what the task itself says.
	own["look"] = func(_ context.Context, c envs.Completion) (float64, error) { seen = append(seen, c); return 1, nil }
	c.Samples, c.Rewards = 1, parse("look")
	x := played(t, m, spelling, []int{4}, c).Groups[0][0]
	written := ""
	slices.SortFunc(seen, func(a, b envs.Completion) int { return len(a.Text) - len(b.Text) }) // they are judged side by side
	for turn, s := range seen {
		text := turnText(t, m.Policy(), x, turn)
		earned := 0.0
		if small(text) {
			earned = 1
		}
		if written += text; s.Observation.Text != "train 4:" || s.Text != written || s.Action.Text != text || s.Reward != earned || (s.Info != nil) != (turn == 2) {
			t.Errorf("turn %d: the reward sees %+v, want the turn %q of %q", turn, s, text, written)
		}
		written += ";"
	}
	if len(seen) != 3 || x.Reward() != 3 {
		t.Errorf("%d judgements, a reward of %v", len(seen), x.Reward())
	}
}

// turnText is what the policy wrote in a turn.
func turnText(t *testing.T, p *policy.Token, x *rl.Trajectory, turn int) string {
	t.Helper()
	text, err := p.Tokenizer.Decode(x.TurnSample(turn, 1).Actions, true)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestRewardsOfAStep looks at the figures, the samples that are left, and the note.
func TestRewardsOfAStep(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	c := tokensConfig()
	own := map[string]envs.Reward{"flaky": func(_ context.Context, c envs.Completion) (float64, error) {
		if !small(c.Action.Text) {
			return 0, errors.New("no letter")
		}
		return float64(c.Action.Text[0]), nil
	}}
	var err error
	if c.Rewards, err = reward.ParseText("flaky,expr:'length'=0.5", own, reward.Options{}); err != nil {
		t.Fatal(err)
	}
	for _, greedy := range []bool{false, true} {
		c.Greedy = greedy
		step := next(t, tokens(t, m, letters, c), 0)
		f := step.Figures
		failed := f.Get("failed_rewards")
		if failed == 0 || failed == 32 || len(step.Samples) != 32-int(failed) || f.Get("rewards/flaky/failures") != failed || f.Get("rewards/expr:length/failures") != 0 {
			t.Errorf("%v of 32 failed, %d samples: %v", failed, len(step.Samples), f)
		}
		var flaky, length, total []float64
		for _, x := range slices.Concat(step.Groups...) {
			text, err := m.Policy().Tokenizer.Decode(x.Actions, true)
			if err != nil {
				t.Fatal(err)
			}
			length = append(length, float64(len([]rune(text))))
			if small(text) {
				flaky = append(flaky, float64(text[0]))
				total = append(total, flaky[len(flaky)-1]+0.5*length[len(length)-1])
			}
		}
		for name, values := range map[string][]float64{"rewards/flaky": flaky, "rewards/expr:length": length} {
			mean, std := moments(values)
			if math.Abs(f.Get(name+"/mean")-mean) > 1e-9 || math.Abs(f.Get(name+"/std")-std) > 1e-9 {
				t.Errorf("%s: mean %v, deviation %v, want %v and %v", name, f.Get(name+"/mean"), f.Get(name+"/std"), mean, std)
			}
		}
		mean, std := moments(total)
		if math.Abs(f.Get("reward")-mean) > 1e-9 || math.Abs(f.Get("reward_std")-std) > 1e-9 {
			t.Errorf("reward %v, deviation %v, want %v and %v", f.Get("reward"), f.Get("reward_std"), mean, std)
		}
		want := fmt.Sprintf("warning: %v of 32 judgements by reward flaky failed, and their samples are left out; the first: reward flaky: no letter", failed)
		if !slices.Contains(step.Notes, want) {
			t.Errorf("notes %q, want %q", step.Notes, want)
		}
	}
}

// moments are the mean and the unbiased standard deviation.
func moments(values []float64) (mean, std float64) {
	for _, v := range values {
		mean += v / float64(len(values))
	}
	for _, v := range values {
		std += (v - mean) * (v - mean) / float64(len(values)-1)
	}
	return mean, math.Sqrt(std)
}

// TestNoRewardAtAllIsAnError for every source that plays episodes.
func TestNoRewardAtAllIsAnError(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	rewards, err := reward.ParseText("expr:'1/(length-length)'", nil, reward.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, async := range []bool{false, true} {
		c := tokensConfig()
		c.Rewards, c.Async, c.MaxStaleness = rewards, async, 1
		if _, err := tokens(t, m, letters, c).Next(t.Context(), rl.At{}); err == nil || !strings.Contains(err.Error(), "none of 32 samples could be rewarded: reward expr:") {
			t.Errorf("async %t: error %v", async, err)
		}
	}
	replay, err := NewReplay(m, spelling, ReplayConfig{ReplayOptions: replayOptions(), MaxNew: 2, Rewards: rewards})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := replay.Next(t.Context(), rl.At{}); err == nil || !strings.Contains(err.Error(), "none of 24 samples could be rewarded") {
		t.Errorf("replay: error %v", err)
	}
}

// TestFiguresOfAStep counts them from the trajectories.
func TestFiguresOfAStep(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	c := tokensConfig()
	c.MaxNew, c.Temperature = 20, 2
	src := tokens(t, m, fixed, c)
	step := next(t, src, 0)
	var right, formatted, ended, even, sum, prompts float64
	longest, shortest := 0, 99
	for _, x := range slices.Concat(step.Groups...) {
		n := x.Len()
		sum, longest, shortest = sum+float64(n), max(longest, n), min(shortest, n)
		prompts += float64(len(x.Tokens))
		right += x.Reward()
		if !x.Truncated {
			ended++
		}
		if x.Prompt%2 == 0 {
			even++
		} else if !x.Truncated {
			formatted++
		}
	}
	f := step.Figures
	for name, want := range map[string]float64{
		"accuracy": right / 32, "reward": right / 32, "format_rate": formatted / 32, "accuracy/even": 1, "failed_rewards": 0, "failed_episodes": 0,
		"completions/mean_length": sum / 32, "completions/max_length": float64(longest), "completions/min_length": float64(shortest),
		"completions/clipped_ratio": 1 - ended/32, "num_tokens": prompts,
	} {
		if got := f.Get(name); math.Abs(got-want) > 1e-12 {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if share := f.Get("frac_reward_zero_std"); share < 0.5 || share != step.Health.ZeroStd {
		t.Errorf("%v of the prompts have equal rewards, the alarms hear %v", share, step.Health.ZeroStd)
	}
	if line := step.Line(f); !strings.HasPrefix(line, fmt.Sprintf("[SYNC  0] %.0f/32 correct %.0f/32 formatted ", right, formatted)) {
		t.Errorf("line %q", line)
	}
	again := next(t, src, 1)
	if n := again.Figures.Get("num_tokens"); n <= prompts {
		t.Errorf("%v tokens after another step, %v before", n, prompts)
	}
}

func TestVerboseNotesEverySample(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	c := tokensConfig()
	c.Verbose, c.PromptsPerStep, c.SamplesPerPrompt = true, 2, 2
	step := next(t, tokens(t, m, letters, c), 0)
	if len(step.Notes) != 4 || !strings.HasPrefix(step.Notes[3], "  episode 1, sample 1: reward ") {
		t.Errorf("notes %q", step.Notes)
	}
}

// TestTokensGoOnExactly takes a source up again after each step, and divides its work over other slots.
func TestTokensGoOnExactly(t *testing.T) {
	p := tiny(t)
	c := tokensConfig()
	c.DynamicSampling = true
	whole := tokens(t, sampler(t, p, 32), fixed, c)
	parts := tokens(t, sampler(t, p, 3), fixed, c)
	for i := range 4 {
		if diff := cmp.Diff(encoded(t, next(t, whole, i)), encoded(t, next(t, parts, i))); diff != "" {
			t.Errorf("step %d (-uninterrupted +resumed):\n%s", i+1, diff)
		}
		state, err := json.Marshal(parts.State())
		if err != nil {
			t.Fatal(err)
		}
		parts = tokens(t, sampler(t, p, 3), fixed, c)
		if err := parts.Restore(state); err != nil {
			t.Fatal(err)
		}
	}
	if err := parts.Restore(json.RawMessage(`{"cursor":"x"}`)); err == nil {
		t.Error("a state that is none is taken")
	}
}

func TestTokensRefuse(t *testing.T) {
	for want, change := range map[string]func(c *TokensConfig){
		"0 prompts a step":        func(c *TokensConfig) { c.PromptsPerStep = 0 },
		"at most 0 tokens":        func(c *TokensConfig) { c.MaxNew = 0 },
		"temperature 0":           func(c *TokensConfig) { c.Temperature = 0 },
		"dynamic sampling cannot": func(c *TokensConfig) { c.Async, c.DynamicSampling = true, true },
		"baseline greedy cannot":  func(c *TokensConfig) { c.Async, c.Greedy = true, true },
		"choose no top_k":         func(c *TokensConfig) { c.Async, c.TopK = true, 5 },
		"step_timeout -1":         func(c *TokensConfig) { c.StepTimeout = -1 },
		"step_timeout 1e-12":      func(c *TokensConfig) { c.StepTimeout = 1e-12 },
		"step_timeout 1e+300":     func(c *TokensConfig) { c.StepTimeout = 1e300 },
		"step_timeout NaN":        func(c *TokensConfig) { c.StepTimeout = math.NaN() },
		"a buffer of 4 of at":     func(c *TokensConfig) { c.OverlongBuffer = 4 },
		"a buffer of -1":          func(c *TokensConfig) { c.OverlongBuffer = -1 },
	} {
		c := tokensConfig()
		change(&c)
		if _, err := NewTokens(nil, letters, c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
