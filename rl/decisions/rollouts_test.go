package decisions

import (
	"encoding/json"
	"math"
	"slices"
	"testing"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/epochs"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/rollout"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/rl/train"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// TestRollouts: a step has as many whole rows as the buffer holds, each question with its samples, and their rewards. The best
// mean is that of the steps so far, below 0 too, and a checkpoint has it.
func TestRollouts(t *testing.T) {
	cases := subjects(t)
	p := headOn(t, cases)
	samples := encode(t, p, cases)
	for spec, of := range map[string]func(d envs.Decision, option int, probs []float32) float64{
		"accuracy": func(d envs.Decision, option int, _ []float32) float64 { return d.Target[option] },
		"brier":    func(d envs.Decision, _ int, probs []float32) float64 { loss, _ := brier(d.Target, probs); return -loss },
	} {
		rewards := must.Get(NewRewards(spec, cases))(t)
		c := RolloutConfig{LabelOptions: rollout.LabelOptions{BufferSize: 48, Samples: 3}, Steps: 4, Seed: 1}
		source, best := NewRollouts(p, cases, samples, rewards, c), math.Inf(-1)
		for at := range c.Steps {
			step := must.Get(source.Next(t.Context(), rl.At{Step: at, Version: 7}))(t)
			expect.Require(t, len(step.Samples) == 48 && len(step.Groups) == 16, "%s: %d samples of %d questions in a buffer of 48", spec, len(step.Samples), len(step.Groups))
			mean, rows := 0.0, map[int]int{}
			for n, x := range step.Samples {
				d, option := cases[x.Prompt], int(x.Actions[0])
				rows[d.Row]++
				all := must.Get(p.LogProbs(t.Context(), []*rl.Sample{x}))(t)[0]
				want := of(d, option, exps(all))
				expect.True(t, math.Abs(x.Reward()-want) <= 1e-4 && math.Abs(float64(x.BehaviorLogProbs[0]-all[option])) <= 1e-4, "%s: option %d of %v: reward %v, want %v; log π %v of %v", spec, option, d.State, x.Reward(), want, x.BehaviorLogProbs, all)
				expect.True(t, step.Groups[n/3][n%3] == x && x.Index == n%3 && x.Episode == n && x.Version == 7 && x.Prompt == step.Groups[n/3][0].Prompt, "%s: sample %d is %+v", spec, n, x)
				mean += x.Reward() / 48
			}
			for row, n := range rows {
				expect.Same(t, 6, n, "%s: samples of row %d", spec, row)
			}
			best = max(best, mean)
			expect.True(t, math.Abs(source.BestReward()-best) <= 1e-9 && math.Abs(step.Figures.Get("reward")-mean) <= 1e-9, "%s: best mean %v, want %v; reward %v, want %v", spec, source.BestReward(), best, step.Figures.Get("reward"), mean)
			state := must.Get(json.Marshal(source.State()))(t)
			source = NewRollouts(p, cases, samples, rewards, c)
			must.Do(t, source.Restore(state))
		}
	}
}

// TestOneRowAtLeast: a row of more samples than the buffer holds is a step of its own.
func TestOneRowAtLeast(t *testing.T) {
	cases := subjects(t)
	p := headOn(t, cases)
	source := NewRollouts(p, cases, encode(t, p, cases), must.Get(NewRewards("accuracy", cases))(t), RolloutConfig{LabelOptions: rollout.LabelOptions{BufferSize: 3, Samples: 3}, Steps: 1, Seed: 1})
	expect.Same(t, 6, len(must.Get(source.Next(t.Context(), rl.At{}))(t).Samples), "samples of a row of two questions")
}

// TestLossIsThatOfTheAnswers: the loss that a step reports is the mean over its questions, in parts of any size.
func TestLossIsThatOfTheAnswers(t *testing.T) {
	cases := subjects(t)[:12]
	for _, micro := range []int{0, 20} {
		p := headOn(t, cases)
		samples := encode(t, p, cases)
		want := map[string]float64{"cross_entropy": measured(t, p, cases, samples).Loss, "brier": measured(t, p, cases, samples).Brier.Value}
		for kind, loss := range want {
			c := train.Config{Steps: 1, Seed: 1, Optimisation: train.Optimisation{LearningRate: 1e-9, Schedule: "constant"}, Memory: train.Memory{MicroTokens: micro}}
			tr := must.Get(train.New(p, epochs.NewPreferences(slices.Collect(slices.Chunk(samples, 2)), 6, 0, 1), &Supervised{LossOptions: LossOptions{Kind: kind}, Cases: cases}, c, run.Hooks{}))(t)
			m := must.Get(tr.Step(t.Context()))(t)
			tr.Close()
			expect.True(t, math.Abs(m.Get("loss")-loss) <= 1e-4, "%s in parts of %d tokens: loss %v, want %v", kind, micro, m.Get("loss"), loss)
		}
	}
}

// TestChosenIsUnbiased: what a sampled option shows of the answer has the gradient of all options as its mean.
func TestChosenIsUnbiased(t *testing.T) {
	cases := subjects(t)[:2]
	rewards := must.Get(NewRewards("calibration", cases))(t)
	a := algo.New[Exact]()
	a.Rewards, a.Chosen = rewards, true
	behaviour, probs := []float64{0.5, 0.3, 0.2}, []float32{0.6, 0.1, 0.3}
	_, want := rewards.Objective(0, cases[0].Target, probs)
	mean := make([]float64, 3)
	for option, mu := range behaviour {
		x := &rl.Sample{Actions: []int32{int32(option)}, BehaviorLogProbs: []float32{float32(math.Log(mu))}}
		_, grad := rewards.Objective(0, rewards.seen(0, a.feedback(x), probs), probs)
		for k, g := range grad {
			mean[k] += mu * g
		}
	}
	// Only differences count: probabilities add up to 1.
	for k := range mean {
		expect.True(t, math.Abs((mean[k]-mean[0])-(want[k]-want[0])) <= 1e-6, "mean gradient %v, of all options %v", mean, want)
	}
}

// TestQuestionsOfOneName: rows may ask a question with other options, and each gets the rewards of its own.
func TestQuestionsOfOneName(t *testing.T) {
	cases := []envs.Decision{
		{Question: asks(t, "q", `{"type":"choice","criteria":{"a":null,"b":null}}`), Target: []float64{0, 1}},
		{Question: asks(t, "q", `{"type":"choice","criteria":{"b":null,"c":null,"a":null}}`), Target: []float64{0, 0, 1}},
	}
	r := must.Get(NewRewards("expr:'predicted == \"a\" ? 1 : predicted == \"b\" ? 2 : 0'", cases))(t)
	for i, want := range [][]float64{{1, 2}, {2, 0, 1}} {
		for option, value := range want {
			expect.Same(t, value, r.Of(i, option), "option %d of question %d", option, i)
		}
	}
}

// TestCalibrateAgain: temperatures are fitted to what the model says, not to what earlier temperatures made of it.
func TestCalibrateAgain(t *testing.T) {
	cases := subjects(t)
	p := headOn(t, cases)
	logProbs := must.Get(p.LogProbs(t.Context(), encode(t, p, cases)))(t)
	first := Calibrate(p, cases, logProbs)
	expect.Equal(t, first, Calibrate(p, cases, logProbs), "lines")
}

// TestEncodeDecisions: the action is the answer, or the option that was chosen; rows of other files are other rows; a prompt may
// have as many tokens as the limit.
func TestEncodeDecisions(t *testing.T) {
	torchtest.NoLeaks(t)
	dir := t.TempDir() + "/tiny"
	must.Do(t, policy.TinyChatModel(dir, 2, 32, 3))
	lm := must.Get(policy.NewCausalLM(policy.Config{Dir: dir, R: 4, Alpha: 8, Seed: 1}))(t)
	scoring := must.Open(policy.NewScoringDecider(lm))(t)
	cases := subjects(t)[:4]
	cases[1].Target, cases[1].Feedback = nil, &envs.Feedback{Chosen: 1, Reward: 1, Probability: 0.5}
	cases[2].Row, cases[3].Row = 0, 0
	cases[2].File, cases[3].File = "other", "other"
	for _, p := range []*policy.Decider{headOn(t, cases), scoring} {
		samples := encode(t, p, cases)
		for i, action := range []int32{0, 1, 1, 1} {
			alone := encode(t, p, cases[i:i+1])[0]
			x := samples[i]
			expect.True(t, x.Actions[0] == action && x.Prompt == i, "question %d: action %d of prompt %d, want %d", i, x.Actions[0], x.Prompt, action)
			expect.Equal(t, [2][]int32{alone.Tokens, alone.Options}, [2][]int32{x.Tokens, x.Options}, "tokens and options")
		}
	}
	longest := 0
	for _, x := range encode(t, scoring, cases) {
		longest = max(longest, len(x.Tokens))
	}
	scoring.MaxLength = longest
	encode(t, scoring, cases)
	scoring.MaxLength--
	_, _, err := scoring.Encode(cases)
	expect.Error(t, err, `question "`, "max_length")
}
