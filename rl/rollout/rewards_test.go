package rollout

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/reward"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
)

// TestRewardsJudgeTurns scores three turns with two rewards; one fails on turns that start with a small letter.
func TestRewardsJudgeTurns(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	c := sampled
	c.Samples, c.MaxNew = 8, 2
	var seen []envs.Completion
	own := []reward.Definition{
		reward.Function("size", "bytes", func(_ context.Context, c envs.Completion) (float64, error) { return float64(len(c.Action.Text)), nil }),
		reward.Function("flaky", "10", func(_ context.Context, c envs.Completion) (float64, error) {
			if small(c.Action.Text) {
				return 0, errors.New("a letter")
			}
			return 10, nil
		}),
	}
	parse := func(list string) *reward.Text {
		t.Helper()
		return must.Get(reward.ParseText(list, own, reward.Options{}))(t)
	}
	plain := played(t, m, spelling, []int{0, 1}, c)
	c.Rewards = parse("size=2,flaky")
	judged := played(t, m, spelling, []int{0, 1}, c)
	failures := 0
	for i, x := range slices.Concat(judged.Groups...) {
		expect.Equal(t, slices.Concat(plain.Groups...)[i].Tokens, x.Tokens, "rewards change what is written")
		for turn := range x.Turns {
			text := turnText(t, m.Policy(), x, turn)
			want := 2*float64(len(text)) + 10
			if small(text) {
				want = math.NaN()
				failures++
			}
			expect.Equal(t, want, x.Turns[turn].Reward, cmpopts.EquateNaNs(), fmt.Sprintf("turn %q", text))
		}
	}
	expect.True(t, len(judged.Scores.Total) == 2*8*3 && failures != 0 && judged.Scores.Rewards[1].Failures == failures && judged.Scores.Rewards[0].Failures == 0,
		"%d scores, %d failures: %+v", len(judged.Scores.Total), failures, judged.Scores.Rewards)

	// The input of a reward: the prompt, the full text, the turn, and the task's reward.
	var lock sync.Mutex // turns are scored concurrently
	own = append(own, reward.Function("look", "1", func(_ context.Context, c envs.Completion) (float64, error) {
		lock.Lock()
		defer lock.Unlock()
		seen = append(seen, c)
		return 1, nil
	}))
	c.Samples, c.Rewards = 1, parse("look")
	x := played(t, m, spelling, []int{4}, c).Groups[0][0]
	written := ""
	slices.SortFunc(seen, func(a, b envs.Completion) int { return len(a.Text) - len(b.Text) })
	for turn, s := range seen {
		text := turnText(t, m.Policy(), x, turn)
		earned := 0.0
		if small(text) {
			earned = 1
		}
		written += text
		expect.True(t, s.Observation.Text == "train 4:" && s.Text == written && s.Action.Text == text && s.Reward == earned && (s.Info != nil) == (turn == 2), "turn %d: the reward sees %+v, want the turn %q of %q", turn, s, text, written)
		written += ";"
	}
	expect.True(t, len(seen) == 3 && x.Reward() == 3, "%d judgements, a reward of %v", len(seen), x.Reward())
}

// turnText is the text that the policy generated in a turn.
func turnText(t *testing.T, p *policy.CausalLM, x *rl.Trajectory, turn int) string {
	t.Helper()
	return must.Get(p.Tokenizer.Decode(x.TurnSample(turn, 1).Actions, true))(t)
}

// TestRewardsOfAStep checks the metrics, the remaining samples, and the note.
func TestRewardsOfAStep(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	c := tokensConfig()
	own := []reward.Definition{reward.Function("flaky", "its byte", func(_ context.Context, c envs.Completion) (float64, error) {
		if !small(c.Action.Text) {
			return 0, errors.New("no letter")
		}
		return float64(c.Action.Text[0]), nil
	})}
	c.Rewards = must.Get(reward.ParseText("flaky,expr:'length'=0.5", own, reward.Options{}))(t)
	for _, greedy := range []bool{false, true} {
		c.Greedy = greedy
		step := next(t, tokens(t, m, letters, c), 0)
		f := step.Figures
		failed := f.Get("failed_rewards")
		expect.True(t, failed != 0 && failed != 32 && len(step.Samples) == 32-int(failed) && f.Get("rewards/flaky/failures") == failed && f.Get("rewards/expr:length/failures") == 0, "%v of 32 failed, %d samples: %v", failed, len(step.Samples), f)
		var flaky, length, total []float64
		for _, x := range slices.Concat(step.Groups...) {
			text := must.Get(m.Policy().Tokenizer.Decode(x.Actions, true))(t)
			length = append(length, float64(len([]rune(text))))
			if small(text) {
				flaky = append(flaky, float64(text[0]))
				total = append(total, flaky[len(flaky)-1]+0.5*length[len(length)-1])
			}
		}
		for name, values := range map[string][]float64{"rewards/flaky": flaky, "rewards/expr:length": length} {
			mean, std := moments(values)
			expect.True(t, math.Abs(f.Get(name+"/mean")-mean) <= 1e-9 && math.Abs(f.Get(name+"/std")-std) <= 1e-9,
				"%s: mean %v, deviation %v, want %v and %v", name, f.Get(name+"/mean"), f.Get(name+"/std"), mean, std)
		}
		// The alarms compare how much each weighted reward moves the sum: standard deviations over all samples.
		for name, spread := range map[string]float64{"flaky": population(flaky), "expr:length": 0.5 * population(length)} {
			got := step.Health.Spread[name]
			expect.True(t, math.Abs(got-spread) <= 1e-9, "spread of reward %s in the alarms: %v, want %v", name, got, spread)
		}
		mean, std := moments(total)
		expect.True(t, math.Abs(f.Get("reward")-mean) <= 1e-9 && math.Abs(f.Get("reward_std")-std) <= 1e-9,
			"reward %v, deviation %v, want %v and %v", f.Get("reward"), f.Get("reward_std"), mean, std)
		want := fmt.Sprintf("warning: fix reward flaky: it failed for %v of 32 completions, which are dropped; the first failure: reward flaky: no letter", failed)
		expect.True(t, slices.Contains(step.Notes, want), "notes %q, want %q", step.Notes, want)
	}
}

// TestTelling finds the rewards that scored every right answer above every wrong one.
func TestTelling(t *testing.T) {
	answered := func(right bool, correct, half, length float64) *rl.Trajectory {
		return &rl.Trajectory{Info: &envs.Info{Correct: right}, Parts: []rl.RecordedValue{{Name: "correct", Value: rl.Number(correct)}, {Name: "half", Value: rl.Number(half)}, {Name: "length", Value: rl.Number(length)}}}
	}
	wrong, half, right := answered(false, 0, 0, 7), answered(false, 0, 0.5, 9), answered(true, 1, 1, 8)
	unjudged, failed := &rl.Trajectory{Parts: right.Parts}, answered(true, math.NaN(), 1, 9)
	for _, test := range []struct {
		name string
		all  []*rl.Trajectory
		want []string
	}{
		{"both", []*rl.Trajectory{wrong, half, right}, []string{"correct", "half"}},
		{"right before wrong", []*rl.Trajectory{right, wrong, half}, []string{"correct", "half"}},
		{"a judgement that failed", []*rl.Trajectory{failed, wrong, right}, []string{"correct", "half", "length"}},
		{"none is wrong", []*rl.Trajectory{right, right, unjudged}, nil},
		{"none is right", []*rl.Trajectory{wrong, half, unjudged}, nil},
		{"the second right answer is below a wrong one", []*rl.Trajectory{right, answered(false, 0.5, 0, 7), answered(true, 0.2, 1, 9)}, []string{"half", "length"}},
		{"the same for both", []*rl.Trajectory{wrong, answered(true, 0, 1, 7)}, []string{"half"}},
	} {
		expect.Equal(t, test.want, telling(test.all), test.name)
	}
}

// TestRewardsOfReplacedPromptsCount also if dynamic sampling plays several rounds.
func TestRewardsOfReplacedPromptsCount(t *testing.T) {
	c := tokensConfig()
	c.DynamicSampling = true
	c.Rewards = must.Get(reward.ParseText("flaky", []reward.Definition{reward.Function("flaky", "the task's", func(_ context.Context, c envs.Completion) (float64, error) {
		if c.Observation.Text == "go" { // in every second episode
			return 0, errors.New("not today")
		}
		return c.Reward, nil
	})}, reward.Options{}))(t)
	src := tokens(t, sampler(t, tiny(t), 8), fixed, c)
	f := next(t, src, 0).Figures
	want := 8 * ((src.state.Cursor + 1) / 2)
	expect.True(t, src.state.Cursor >= 5 && f.Get("rewards/flaky/failures") == float64(want) && f.Get("failed_rewards") == float64(want), "%v and %v of %d episodes' judgements failed, want %d", f.Get("rewards/flaky/failures"), f.Get("failed_rewards"), src.state.Cursor, want)
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

// TestAllRewardsFailingIsAnError for every source that plays episodes.
func TestAllRewardsFailingIsAnError(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	rewards := must.Get(reward.ParseText("expr:'1/(length-length)'", nil, reward.Options{}))(t)
	for _, async := range []bool{false, true} {
		c := tokensConfig()
		c.Rewards, c.Async, c.MaxStaleness = rewards, async, 1
		expect.Failure(tokens(t, m, letters, c).Next(t.Context(), rl.At{}))(t, "rewards failed for all 32 samples: reward expr:")
	}
	replay := must.Get(NewReplay(m, spelling, ReplayConfig{ReplayOptions: replayOptions(), MaxNew: 2, Rewards: rewards}))(t)
	expect.Failure(replay.Next(t.Context(), rl.At{}))(t, "rewards failed for all 24 samples")
}

// TestVerdictRewardsComeLast plays episodes of three turns; only the last is scored.
func TestVerdictRewardsComeLast(t *testing.T) {
	rewards := must.Get(reward.ParseText("expr:'2 + correct'", nil, reward.Options{}))(t)
	c := sampled
	c.Rewards = rewards
	p := played(t, sampler(t, tiny(t), 4), spelling, []int{0, 1, 2}, c)
	f := p.Scores.Rewards[0].Failures
	expect.True(t, f <= 0, "%d failures: %s", f, p.Scores.Rewards[0].Failure)
	for _, g := range p.Groups {
		for _, x := range g {
			want := []float64{0, 0, 2}
			if x.Info.Correct {
				want[2] = 3
			}
			var got []float64
			for _, turn := range x.Turns {
				got = append(got, turn.Reward)
			}
			expect.Equal(t, want, got, "rewards")
		}
	}
}

// lengthCritic is a reward model that prefers long texts and is far from 0.
type lengthCritic struct{}

func (lengthCritic) Score(_ context.Context, completions []envs.Completion) ([]float64, []error) {
	scores := make([]float64, len(completions))
	for i, c := range completions {
		scores[i] = 100 + float64(len(c.Text))
	}
	return scores, make([]error, len(completions))
}

// TestModelsAreCentredOnTheFirstRollout subtracts the mean of the first rollout from it and from the next one.
// Evaluations use the raw scores.
func TestModelsAreCentredOnTheFirstRollout(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	c := tokensConfig()
	c.Rewards = must.Get(reward.ParseText("model:x=2", nil, reward.Options{Critic: func(string) (envs.Critic, error) { return lengthCritic{}, nil }}))(t)
	src := tokens(t, m, letters, c)
	first := next(t, src, 0).Figures.Get("reward")
	expect.True(t, math.Abs(first) <= 1e-9, "mean reward %v of the first rollout", first)
	second := next(t, src, 1).Figures.Get("reward")
	expect.True(t, math.Abs(second) >= 1e-6 && math.Abs(second) <= 10, "mean reward %v of the second rollout", second)
	plain := sampled
	plain.Rewards = c.Rewards
	for _, x := range slices.Concat(played(t, m, letters, []int{0}, plain).Groups...) {
		expect.True(t, x.Reward() >= 200, "reward %v, want 2·(100 + length)", x.Reward())
	}
}

// population is the population standard deviation, without Bessel's correction.
func population(values []float64) float64 {
	_, std := moments(values)
	n := float64(len(values))
	return std * math.Sqrt((n-1)/n)
}

// TestStepsOfTurns: each letter of a turn is a step. Its reward goes to its token; that of the last step, and all other rewards, go to
// the last token of the turn.
func TestStepsOfTurns(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	c := sampled
	each := reward.Definition{Name: "each", Help: "1, 2, 3 …", Text: func(reward.Setup) (reward.TextReward, error) {
		return reward.TextReward{Steps: func(_ context.Context, completions []envs.Completion) ([][]reward.Step, []error) {
			all := make([][]reward.Step, len(completions))
			for i, c := range completions {
				for at := range len(c.Generated) {
					all[i] = append(all[i], reward.Step{End: at + 1, Value: float64(at + 1)})
				}
			}
			return all, make([]error, len(completions))
		}}, nil
	}}
	c.Rewards = must.Get(reward.ParseText("each=2,expr:'10'", []reward.Definition{each}, reward.Options{}))(t)
	steps := 0
	for _, x := range slices.Concat(played(t, m, spelling, []int{0, 1}, c).Groups...) {
		var want []float64
		for turn := range x.Turns {
			n, ids := len(turnText(t, m.Policy(), x, turn)), x.TurnSample(turn, 1).Actions
			before := 0
			for at := range ids { // some have no text
				sum, end := 0.0, len(must.Get(m.Policy().Tokenizer.Decode(ids[:at+1], true))(t))
				if end > before && end < n {
					sum = 2 * float64(end)
				}
				if at == len(ids)-1 {
					sum = 2*float64(n) + 10
				}
				want, before = append(want, sum), end
			}
			steps += n
		}
		expect.Equal(t, want, x.Sample(1).Rewards)
	}
	expect.True(t, steps > 30, "%d steps", steps)
}
