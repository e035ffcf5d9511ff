package train

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/decisions"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch/transformers/decision"
	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

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
