package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/envs/digits"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/decisions"
	"github.com/rltrain/rltrain/rl/dist/disttest"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/rollout"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch/transformers/decision"
	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

func TestMentioned(t *testing.T) {
	for _, test := range []struct {
		text    string
		want    []string
		without string
	}{
		{"rows.jsonl", []string{"rows.jsonl"}, ""},
		{"my rows.jsonl", []string{"my rows.jsonl"}, ""},
		{"a.jsonl,b.jsonl", []string{"a.jsonl", "b.jsonl"}, ""},
		{"cmd:python3 'my judge.py' --words=w.txt", []string{"my judge.py", "w.txt"}, ""},
		{"cmd:sh -c 'cd x; python3 judge.py < in.txt'", []string{"judge.py", "in.txt"}, ""},
		{"quality:cmd:/home/me/judge", []string{"/home/me/judge"}, ""},
		{"model:judges/a", []string{"judges/a"}, ""},
		{"cmd:/usr/bin/python3 judge.py", []string{"judge.py"}, "/usr/bin/python3"},
		{"cmd:make -C .", nil, "."},
		{"", nil, ""},
	} {
		got := mentioned(test.text)
		for _, name := range test.want {
			expect.True(t, slices.Contains(got, name), "%q: %q lacks %q", test.text, got, name)
		}
		expect.True(t, !slices.Contains(got, test.without), "%q: %q has %q", test.text, got, test.without)
	}
}

// What is trained on stands between marks.
func TestMarked(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tiny")
	must.Do(t, policy.TinyModel(dir, 1, 32, 1))
	p := must.Open(policy.ReadCausalLM(dir))(t)
	ids := must.Get(p.Tokenizer.EncodeRaw("abcde", false))(t)
	for _, c := range []struct {
		labels []bool
		want   string
	}{
		{[]bool{false, true, true, false, true}, "a<bc>d<e>"},
		{[]bool{false, false, false, false, false}, "abcde"},
		{[]bool{false, true, true, true, true}, "a<bcde>"},
	} {
		expect.Result(marked(p, policy.Sequence{IDs: ids, Labels: c.labels}, "<", ">"))(t, c.want, "marked")
	}
}

// TestPassTokens: a plan does not promise the memory of a full micro-batch to a step that has fewer tokens.
func TestPassTokens(t *testing.T) {
	for _, test := range []struct{ micro, samples, longest, want int }{
		{16384, 64, 50, 3200},
		{4096, 8, 1024, 4096},
		{4096, 1, 8000, 8000}, // a sample is not divided
		{4096, 8, 0, 4096},    // unknown
	} {
		expect.Same(t, test.want, passTokens(test.micro, test.samples, test.longest), "%+v", test)
	}
}

func TestSeveralProcessesDoNotTrainOnAGPU(t *testing.T) {
	c := must.Get(config.Load([]string{"--task=sum_digits", "--device=cuda:1"}, nil))(t)
	environ := []string{"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1"}
	expect.Error(t, (&trainer{config: c}).ranks(t.Context(), environ), "--device: cuda:1 applies to one process alone")
}

// TestRanksCompareInputs: ranks with other rows, another commit of a model, or rows that cannot be read do not train together.
func TestRanksCompareInputs(t *testing.T) {
	c := must.Get(config.Load([]string{"--task=sum_digits"}, nil))(t)
	rows := run.Inputs{"dataset": {"rows.jsonl": "aa"}}
	for name, test := range map[string]struct {
		inputs run.Inputs
		err    error
		want   string
	}{
		"same":    {rows, nil, ""},
		"rows":    {run.Inputs{"dataset": {"rows.jsonl": "bb"}}, nil, "--dataset: rows.jsonl has different content on rank 1 (bb) and rank 0 (aa)"},
		"missing": {run.Inputs{}, nil, "--dataset: rows.jsonl has different content on rank 1 (nothing) and rank 0 (aa)"},
		"more":    {run.Inputs{"dataset": rows["dataset"], "model": {"org/name": "c0ffee"}}, nil, "--model: org/name has different content on rank 1 (c0ffee) and rank 0 (nothing)"},
		"error":   {rows, errors.New("rows.jsonl: permission denied"), "rows.jsonl: permission denied"},
	} {
		groups := disttest.Groups(t, 2)
		disttest.Each(2, func(rank int) {
			own, fault := rows, error(nil)
			if rank == 1 {
				own, fault = test.inputs, test.err
			}
			err := (&trainer{config: c, group: groups[rank]}).sameOnAllRanks(own, fault)
			expect.True(t, (err == nil) == (test.want == "") && (err == nil || strings.Contains(err.Error(), test.want)), "%s: rank %d: %v, want %q", name, rank, err, test.want)
		})
	}
}

func TestWandBOptionsOverrideVariables(t *testing.T) {
	environ := []string{"WANDB_PROJECT=pears", "WANDB_ENTITY=us", "WANDB_API_KEY=secret", "HOME=/root"}
	got := wandbVariables(environ, config.Saving{Project: "apples", RunName: "first"})
	expect.Equal(t, map[string]string{"WANDB_PROJECT": "apples", "WANDB_ENTITY": "us", "WANDB_NAME": "first"}, got)
}

func TestTaskOf(t *testing.T) {
	for row, want := range map[string]string{
		`{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]}`: "chat",
		`{"prompt":"q","completion":"a"}`:                                                 "chat",
		`{"prompt":"q","chosen":"a","rejected":"b"}`:                                      "preference",
		`{"prompt":"q","completion":"a","label":true}`:                                    "preference",
		`{"prompt":"q","answer":"4"}`:                                                     "prompts",
		`{"text":"q","label":"law"}`:                                                      "intent",
		`{"text":"q"}`:                                                                    "",
		`{"question":"q","answer":"4"}`:                                                   "",
	} {
		value := must.Get(dataset.Parse(row))(t)
		got, _ := taskOf(dataset.Record{File: "f", Line: 1, Fields: value.(dataset.Object)})
		expect.True(t, got == want, "%s is for task %q, want %q", row, got, want)
	}
}

// TestSolutionsStop: many are generated before the first step.
func TestSolutionsStop(t *testing.T) {
	task := must.Get(digits.New(digits.Sum, 1, digits.Defaults(digits.Sum)))(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	for _, err := range solutions(ctx, task, envs.Warmup, 100) {
		if n++; n == 3 {
			cancel()
		}
		expect.Same(t, n > 3, errors.Is(err, context.Canceled), "solution %d: %v", n, err)
	}
	expect.Same(t, 4, n, "%d solutions, want 3 and the error", n)
}

// TestTrialTakesTheHeaviestStep and trains on the last tokens of its first samples, or of its first unit.
func TestTrialTakesTheHeaviestStep(t *testing.T) {
	for name, test := range map[string]struct {
		together        bool
		samples, tokens int
	}{
		"samples": {false, trialSamples, trialTokens},
		"a unit":  {true, 4, trialTokens},
	} {
		source := &small{Source: batches{}, together: test.together, steps: 3}
		for range trialSteps {
			step := must.Get(source.Next(context.Background(), rl.At{}))(t)
			n := rl.Tokens(step.Samples)
			expect.True(t, len(step.Samples) == test.samples && n == test.tokens, "%s: %d samples with %d tokens, want %d with %d", name, len(step.Samples), n, test.samples, test.tokens)
			for _, x := range step.Samples {
				for i, row := range x.Rows {
					expect.Require(t, x.Tokens[row+1] == x.Actions[i], "%s: row %d predicts token %d, want %d", name, row, x.Tokens[row+1], x.Actions[i])
				}
				last := x.Actions[len(x.Actions)-1]
				expect.True(t, last == 15999, "%s: the last action is %d, want the sample's last", name, last)
			}
		}
		expect.True(t, source.samples == 8 && source.longest == 16000 && source.tokens == 8*16000,
			"%s: the step has %d samples with %d tokens, the longest %d; want those before the cut", name, source.samples, source.tokens, source.longest)
	}
}

// TestAdviceOfRates: only rates for SFT that are far from the rule of thumb get a warning.
func TestAdviceOfRates(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tiny") // a llama of hidden size 32: 0.0126 for an adapter
	must.Do(t, policy.TinyModel(dir, 1, 32, 1))
	p := must.Open(policy.NewCausalLM(policy.Config{Dir: dir, R: 2, Alpha: 4}))(t)
	for rate, want := range map[float64]string{1e-3: "raise --learning-rate 0.001 ", 4e-3: "", 0.05: "", 0.1: "lower --learning-rate 0.1 "} {
		w := &work{stage: supervisedStage, policy: p}
		w.settings.LearningRate = rate
		got := advice(w)
		expect.True(t, (got == "") == (want == "") && strings.Contains(got, want), "rate %g: %q, want %q", rate, got, want)
		w.stage = rlStage
		expect.Same(t, "", advice(w), "advice for RL")
	}
}

// batches is a data set of three steps, of 8 samples of two units each; the second step has the longest.
type batches struct{}

func (batches) PerEpoch() int                 { return 3 }
func (batches) State() any                    { return nil }
func (batches) Restore(json.RawMessage) error { return nil }
func (batches) Next(_ context.Context, at rl.At) (*rl.Step, error) {
	length := []int{1000, 16000, 500}[at.Step]
	step := &rl.Step{}
	for i := range 8 {
		x := &rl.Sample{Prompt: i / 4}
		for token := range length {
			x.Tokens = append(x.Tokens, int32(token))
		}
		for row := length / 2; row < length-1; row++ {
			x.Rows, x.Actions = append(x.Rows, row), append(x.Actions, x.Tokens[row+1])
		}
		step.Samples = append(step.Samples, x)
	}
	return step, nil
}

// TestTrialLimitsRollouts whatever the options ask for.
func TestTrialLimitsRollouts(t *testing.T) {
	buffer := &rollout.ReplayOptions{PromptsPerStep: 512, NumUpdateSteps: 4096, CacheBuffer: true}
	asked := rollout.Setup{Options: buffer, Rollout: rollout.TokensConfig{MaxNew: 4096, MaxTotal: 9000}}
	asked.Rollout.PromptsPerStep, asked.Rollout.SamplesPerPrompt, asked.Rollout.DynamicSampling = 512, 64, true
	limited := asked
	(&trial{}).limit(&limited)
	r := limited.Rollout
	got := []int{r.PromptsPerStep, r.SamplesPerPrompt, r.MaxNew, r.MaxTotal}
	want := []int{1, trialSamples, trialNew, trialNew}
	expect.True(t, slices.Equal(got, want) && !r.DynamicSampling, "prompts, samples, tokens and tokens in all: %v, want %v", got, want)
	b := limited.Options.(*rollout.ReplayOptions)
	expect.True(t, b.PromptsPerStep == 1 && b.NumUpdateSteps == trialSamples && !b.CacheBuffer && buffer.CacheBuffer, "the replay buffer's options: %+v", b)
	labels := (&trial{}).limitLabels(rollout.LabelOptions{BufferSize: 2000, Samples: 8})
	expect.True(t, labels.BufferSize == trialSamples && labels.Samples == trialSamples, "a classifier's rollouts: %+v", labels)
	var none *trial
	same := asked
	none.limit(&same)
	expect.True(t, same.Rollout.MaxNew == asked.Rollout.MaxNew, "a run that is no trial is limited")
}

// someDecisions are n rows of one to three questions, every fifth row without answers.
func someDecisions(t *testing.T, n int) (all []envs.Decision) {
	for row := range n {
		for k := range 1 + row%3 {
			q := must.Get(decision.ParseQuestion(fmt.Sprint("q", k), must.Get(jinja.ParseJSON([]byte(`{"type":"choice","criteria":{"a":null,"b":null,"c":null}}`)))(t)))(t)
			d := envs.Decision{State: fmt.Sprint("state ", row), Question: q, Row: row, Target: []float64{0, 1, 0}}
			if row%5 == 4 {
				d.Target, d.Feedback = nil, &envs.Feedback{Chosen: 1, Reward: 1, Probability: 0.5}
			}
			all = append(all, d)
		}
	}
	return all
}

// TestRowsOfDecisionsStayWhole: however questions are divided, each is in one part, with those of its row.
func TestRowsOfDecisionsStayWhole(t *testing.T) {
	all := someDecisions(t, 60)
	whole := func(what string, parts ...[]envs.Decision) (rows []int) {
		seen, questions := map[int]int{}, 0
		for n, part := range parts {
			for _, d := range part {
				if of, met := seen[d.Row]; met {
					expect.Same(t, of, n, "%s: part of row %d", what, d.Row)
				}
				seen[d.Row] = n
				questions++
			}
			rows = append(rows, len(decisions.Rows(part)))
		}
		expect.True(t, questions == len(all) && len(seen) == 60, "%s: %d questions of %d rows", what, questions, len(seen))
		return rows
	}
	parts := must.Get(divideDecisions(all, 1))(t)
	rows := whole("split", parts[dataset.Train], parts[dataset.Val], parts[dataset.Test])
	expect.True(t, rows[0] == 42 && rows[1] == 9 && rows[2] == 9, "rows of the parts: %v", rows)
	other := must.Get(divideDecisions(all, 2))(t)
	expect.True(t, other[dataset.Val][0].Row != parts[dataset.Val][0].Row || other[dataset.Val][5].Row != parts[dataset.Val][5].Row, "the seed changes nothing")
	for fraction, want := range map[float64]int{0: 0, 0.1: 6, 0.25: 15, 1. / 3: 20, 1: 60} {
		rest, apart := setDecisionsApart(all, fraction)
		rows := whole(fmt.Sprint("apart ", fraction), rest, apart)
		expect.Same(t, want, rows[1], "rows of a fraction of %v", fraction)
	}
	_, apart := setDecisionsApart(all, 0.58)
	expect.True(t, slices.ContainsFunc(apart, func(d envs.Decision) bool { return d.Row == 49 }), "0.58 of 50 rows are 29, so the 50th is apart")
	for i := range all {
		all[i].Split = []string{dataset.Test, dataset.Train, dataset.Val}[all[i].Row%3]
	}
	for name, part := range must.Get(divideDecisions(all, 1))(t) {
		for _, d := range part {
			expect.Same(t, d.Split, name, "part of row %d", d.Row)
		}
	}
}

// TestDecisionsAreWatched: the figure that picks the best weights is that of the row, higher where it is better, over rows with
// answers.
func TestDecisionsAreWatched(t *testing.T) {
	dir := t.TempDir() + "/tiny"
	must.Do(t, policy.TinyChatModel(dir, 1, 32, 3))
	p := must.Open(policy.NewScoringDecider(must.Get(policy.NewCausalLM(policy.Config{Dir: dir, R: 2, Alpha: 4, Seed: 1}))(t)))(t)
	cases := someDecisions(t, 10)
	samples, _, err := p.Encode(cases)
	must.Do(t, err)
	logProbs := must.Get(p.LogProbs(t.Context(), samples))(t)
	reward := 0.0
	of := decisions.Labelled(cases)
	for _, i := range of {
		reward += math.Exp(float64(logProbs[i][1])) / float64(len(of))
	}
	rewards := must.Get(decisions.NewRewards("accuracy", cases))(t)
	p.Asker.Temperature = map[string]float64{decision.Choice: 3} // of answers, not of what training sees
	for metric, sign := range map[string]float64{evaluate.MetricAccuracy: 1, evaluate.MetricReward: 1, evaluate.MetricBrier: -1, evaluate.MetricECE: -1, evaluate.MetricLoss: -1} {
		plan := (&decisionRun{}).watch(p, asked{cases, samples}, metric, 3, rewards)
		got := must.Get(plan.Run(t.Context(), 1))(t)
		figure, ok := got.Row["eval_"+metric].(float64)
		expect.True(t, ok && got.Score == sign*figure && got.Name == metric && plan.Rows == len(of) && plan.Every == 3 && plan.First && plan.KeepBest, "%s: score %v of %v", metric, got.Score, got.Row)
		expect.True(t, math.Abs(got.Row["eval_reward"].(float64)-reward) <= 1e-5, "%s: reward %v, want %v", metric, got.Row["eval_reward"], reward)
	}
	expect.True(t, !(&decisionRun{}).watch(p, asked{cases, samples}, evaluate.MetricLoss, 1, nil).First, "supervised training is evaluated before its first step")
}
