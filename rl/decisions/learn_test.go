package decisions

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

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
	"github.com/rltrain/rltrain/torch/hub"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers/decision"
	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

// subjects are two questions about texts of words that the encoder of the tests knows.
func subjects(t testing.TB) (cases []envs.Decision) {
	t.Helper()
	choice := asks(t, "subject", `{"type":"choice","criteria":{"law":null,"physics":null,"animals":null}}`)
	noul := asks(t, "animal", `{"type":"noul"}`)
	words := [][]string{{"law", "force"}, {"happiness", "running"}, {"cat", "dog"}}
	for i := range 54 {
		is := i % 3
		target, animal := make([]float64, 3), []float64{0, 1}
		target[is] = 1
		if is == 2 {
			animal = []float64{1, 0}
		}
		state := words[is][i/3%2] + " is " + words[is][i/6%2]
		cases = append(cases, envs.Decision{State: state, Question: choice, Target: target, Row: i}, envs.Decision{State: state, Question: noul, Target: animal, Row: i})
	}
	return cases
}

// encoder is a folder with a small encoder whose features tell words apart.
func encoder(t testing.TB) string {
	t.Helper()
	dir, from := t.TempDir(), filepath.Join("..", "..", "torch", "transformers")
	for _, name := range []string{"testdata/encoders/bert_odd/config.json", "testdata/encoders/bert_odd/model.safetensors", "tokenizer/testdata/wordpiece/tokenizer.json", "tokenizer/testdata/wordpiece/tokenizer_config.json"} {
		must.Do(t, os.WriteFile(filepath.Join(dir, filepath.Base(name)), must.Get(os.ReadFile(filepath.Join(from, name)))(t), 0o644))
	}
	return dir
}

func headOn(t testing.TB, cases []envs.Decision) *policy.Decider {
	t.Helper()
	torchtest.NoLeaks(t)
	questions := must.Get(policy.FixedQuestions(cases))(t)
	head := must.Get(policy.NewClassifier(policy.Config{Dir: encoder(t), Labels: policy.HeadLabels(questions), R: 4, Alpha: 8, Seed: 1}))(t)
	p := policy.NewHeadDecider(head, questions)
	t.Cleanup(p.Close)
	return p
}

// scoringOn is a tiny language model that scores options.
func scoringOn(t *testing.T) *policy.Decider {
	t.Helper()
	dir := t.TempDir() + "/tiny"
	must.Do(t, policy.TinyChatModel(dir, 2, 32, 3))
	lm := must.Get(policy.NewCausalLM(policy.Config{Dir: dir, R: 4, Alpha: 8, Seed: 1}))(t)
	return must.Open(policy.NewScoringDecider(lm))(t)
}

func encode(t testing.TB, p *policy.Decider, cases []envs.Decision) []*rl.Sample {
	t.Helper()
	samples, _, err := p.Encode(cases)
	must.Do(t, err)
	return samples
}

func measured(t testing.TB, p *policy.Decider, cases []envs.Decision, samples []*rl.Sample) Evaluation {
	t.Helper()
	return Evaluate(cases, p.Probs(cases, must.Get(p.LogProbs(t.Context(), samples))(t)))
}

// TestLearns: a small model learns both questions from answers, from rewards, and from whether a sampled answer was right.
func TestLearns(t *testing.T) {
	cases := subjects(t)
	var logged []envs.Decision // only the reward of an option that was chosen at random
	for round := range 4 {
		for i, d := range cases {
			chosen := (i/2 + round) % len(d.Target)
			d.Feedback = &envs.Feedback{Chosen: chosen, Reward: d.Target[chosen], Probability: 1 / float64(len(d.Target))}
			d.Target, d.Row = nil, d.Row+1000*round
			logged = append(logged, d)
		}
	}
	exact := func(chosen bool) func(r *Rewards) algo.Algorithm {
		return func(r *Rewards) algo.Algorithm {
			a := algo.New[Exact]()
			a.Rewards, a.Chosen = r, chosen
			return a
		}
	}
	for _, test := range []struct {
		name, reward string
		cases        []envs.Decision
		learn        func(r *Rewards) algo.Algorithm // nil = supervised
		loss         string
		brier        float64 // at most
	}{
		{name: "cross-entropy", cases: cases, loss: "cross_entropy", brier: 0.1},
		{name: "brier", cases: cases, loss: "brier", brier: 0.1},
		{"calibration of all options", "calibration", cases, exact(false), "", 0.15},
		{"calibration of chosen options", "calibration", cases, exact(true), "", 0.25},
		{"calibration of logged choices", "calibration", logged, exact(false), "", 0.25},
		{"accuracy by REINFORCE", "accuracy", cases, func(*Rewards) algo.Algorithm { return algo.New[algo.Reinforce]() }, "", 0.4},
		{"accuracy by GRPO", "accuracy", cases, func(*Rewards) algo.Algorithm { return algo.New[algo.GRPO]() }, "", 0.4},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := headOn(t, cases)
			samples := encode(t, p, test.cases)
			c := train.Config{Steps: 60, Seed: 1, Optimisation: train.Optimisation{LearningRate: 0.005, Schedule: "linear", MaxGradNorm: 1}, HeadRate: 0.05}
			var source train.Source = epochs.NewPreferences(slices.Collect(slices.Chunk(samples, 2)), 16, 0, 1)
			var a algo.Algorithm = &Supervised{LossOptions: LossOptions{Kind: test.loss}, Cases: test.cases}
			if test.learn != nil {
				rewards := must.Get(NewRewards(test.reward, test.cases))(t)
				a, c.Samples = test.learn(rewards), 4
				if _, is := a.(*Exact); !is { // a policy gradient at these rates chooses one option for all texts
					c.LearningRate, c.HeadRate, c.Steps = 0.001, 0.01, 150
				}
				source = NewRollouts(p, test.cases, samples, rewards, RolloutConfig{LabelOptions: rollout.LabelOptions{BufferSize: 128, Samples: 4}, Steps: c.Steps, Seed: 1})
			}
			must.Get(train.Run(t.Context(), p, source, a, c, run.Hooks{}))(t)
			held := encode(t, p, cases)
			e := measured(t, p, cases, held)
			t.Log(e.Scores)
			expect.True(t, e.Brier.Value <= test.brier && e.Accuracy.Value >= 0.9, "%s: Brier at most %v", e.Scores, test.brier)
		})
	}
}

// TestSaved: a saved head answers as before, with its temperatures, and refuses other questions.
func TestSaved(t *testing.T) {
	cases := subjects(t)
	p := headOn(t, cases)
	samples := encode(t, p, cases)
	logProbs := must.Get(p.LogProbs(t.Context(), samples))(t)
	Calibrate(p, cases, logProbs)
	dir := t.TempDir()
	must.Do(t, p.Save(dir))
	merged := filepath.Join(t.TempDir(), "merged")
	must.Do(t, must.Open(policy.LoadClassifier(t.Context(), &hub.Client{}, dir, "fp32", false))(t).Merge(merged, ""))
	answersAs(t, merged, cases, p.Probs(cases, logProbs))
	again := answersAs(t, dir, cases, p.Probs(cases, logProbs))
	for name, question := range map[string]string{
		"animal": `{"type":"choice","criteria":{"true":null,"false":null}}`, "subject": `{"type":"choice","criteria":{"a":null}}`, "animals": `{"type":"noul"}`,
	} {
		_, _, err := again.Encode([]envs.Decision{{State: "law", Question: asks(t, name, question), File: "f", Line: 3}})
		expect.Error(t, err, "f:3", `question "`+name+`"`)
	}
	_, _, err := again.Encode([]envs.Decision{{State: "\x00", Question: cases[0].Question, File: "f", Line: 4}})
	expect.Error(t, err, "f:4: state: ")
}

// answersAs loads a decision model and checks its probabilities.
func answersAs(t *testing.T, dir string, cases []envs.Decision, want [][]float64) *policy.Decider {
	t.Helper()
	p := must.Open(policy.LoadDecider(t.Context(), &hub.Client{}, dir, "", false, time.Now()))(t)
	got := p.Probs(cases, must.Get(p.LogProbs(t.Context(), encode(t, p, cases)))(t))
	for i := range want {
		for k := range want[i] {
			expect.Require(t, math.Abs(want[i][k]-got[i][k]) <= 1e-5, "%s: case %d: %v, want %v", dir, i, got[i], want[i])
		}
	}
	return p
}

// TestLanguageModel: answers do not depend on which questions of the state are asked together, and are those of the server.
func TestLanguageModel(t *testing.T) {
	torchtest.NoLeaks(t)
	p := scoringOn(t)
	cases := subjects(t)[:6]
	samples := encode(t, p, cases)
	together := must.Get(p.LogProbs(t.Context(), samples))(t)
	for i, x := range samples {
		alone := must.Get(p.LogProbs(t.Context(), []*rl.Sample{x}))(t)
		sum := 0.0
		for k, l := range alone[0] {
			sum += math.Exp(float64(l))
			expect.True(t, math.Abs(float64(l-together[i][k])) <= 1e-4, "question %d: %v alone, %v together", i, alone[0], together[i])
		}
		expect.True(t, math.Abs(sum-1) <= 1e-5, "probabilities sum to %v", sum)
	}
	p.Asker.Temperature = map[string]float64{decision.Choice: 2, decision.Noul: 0.5}
	named := jinja.NewDict()
	for _, d := range cases[:2] {
		named.Set(d.Question.Name, d.Question.Request())
	}
	saved, merged := filepath.Join(t.TempDir(), "saved"), filepath.Join(t.TempDir(), "merged")
	must.Do(t, os.Mkdir(saved, 0o755))
	must.Do(t, p.Save(saved))
	must.Do(t, must.Open(policy.LoadCausalLM(t.Context(), &hub.Client{}, saved, "", "", false))(t).Merge(merged, ""))
	answersAs(t, merged, cases, p.Probs(cases, together))
	questions := must.Get(p.Parse(named))(t)
	asked := must.Get(p.Ask(cases[0].State, questions))(t)
	answers := must.Get(p.Answer(t.Context(), []policy.Asked{asked, asked}))(t)[1]
	for i, probs := range p.Probs(cases[:2], together[:2]) {
		want := must.Get(jinja.JSON(cases[i].Question.Answer(probs)))(t)
		served, _ := answers.Get(cases[i].Question.Name)
		expect.Equal(t, want[:40], must.Get(jinja.JSON(served))(t)[:40])
	}
}

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
		c := RolloutConfig{LabelOptions: rollout.LabelOptions{BufferSize: 48, Samples: 3}, Algorithm: "grpo", Steps: 4, Seed: 1}
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
			figures := rl.Meter{}
			figures.Mean("entropy", 1, 2)
			expect.Same(t, fmt.Sprintf("GRPO %d/4: reward=%.4f, entropy=0.5000", at+1, mean), step.Line(figures), "line")
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
	expect.Equal(t, Calibrate(p, cases, logProbs), Calibrate(p, cases, logProbs), "lines")
}

// TestEncodeDecisions: the action is the answer, or the option that was chosen; rows of other files are other rows; a prompt may
// have as many tokens as the limit.
func TestEncodeDecisions(t *testing.T) {
	torchtest.NoLeaks(t)
	scoring := scoringOn(t)
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
