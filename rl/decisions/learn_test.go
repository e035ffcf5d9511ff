package decisions

import (
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
	for _, name := range []string{"testdata/bert/config.json", "testdata/bert/model.safetensors", "tokenizer/testdata/wordpiece/tokenizer.json", "tokenizer/testdata/wordpiece/tokenizer_config.json"} {
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
	head := must.Open(policy.LoadClassifier(t.Context(), &hub.Client{}, dir, "fp32", false))(t)
	must.Do(t, head.Merge(merged, ""))
	answersAs(t, merged, cases, p.Probs(cases, logProbs))
	again := answersAs(t, dir, cases, p.Probs(cases, logProbs))
	_, _, err := again.Encode([]envs.Decision{{State: "law", Question: asks(t, "animal", `{"type":"choice","criteria":{"a":null}}`), File: "f", Line: 3}})
	expect.Error(t, err, "f:3", `question "animal"`)
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
	dir := t.TempDir() + "/tiny"
	must.Do(t, policy.TinyChatModel(dir, 2, 32, 3))
	lm := must.Get(policy.NewCausalLM(policy.Config{Dir: dir, R: 4, Alpha: 8, Seed: 1}))(t)
	p := must.Open(policy.NewScoringDecider(lm))(t)
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
	adapter := must.Open(policy.LoadCausalLM(t.Context(), &hub.Client{}, saved, "", "", false))(t)
	must.Do(t, adapter.Merge(merged, ""))
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
