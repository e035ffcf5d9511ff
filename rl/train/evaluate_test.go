package train

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/run"
)

// scripted is an evaluation with given scores by step.
type scripted struct {
	scores map[int]float64
	done   int // after this step the policy is good enough
	asked  []int
	seen   map[int]run.Snapshot
}

func (s *scripted) evaluation(t *testing.T, p run.Weights, every int) *evaluate.Plan {
	s.seen = map[int]run.Snapshot{}
	return &evaluate.Plan{Every: every, First: true, KeepBest: true, Run: func(_ context.Context, steps int) (evaluate.Scores, error) {
		s.asked = append(s.asked, steps)
		s.seen[steps] = weightsOf(t, p)
		return evaluate.Scores{
			Score: s.scores[steps], Value: s.scores[steps], Row: report.Row{"eval_score": s.scores[steps]}, Done: s.done > 0 && steps >= s.done,
			Line: func(best int) string { return fmt.Sprintf("score %v (best: %d)", s.scores[steps], best) },
		}, nil
	}}
}

// TestEvaluationsPickTheBest: among equal scores the first wins; its weights are restored, and the result distinguishes
// it from the last.
func TestEvaluationsPickTheBest(t *testing.T) {
	raw := func(score float64) json.RawMessage { return json.RawMessage(fmt.Sprint(score)) }
	for _, test := range []struct {
		name   string
		script scripted
		want   Result
		asked  []int
	}{
		{"a best in between", scripted{scores: map[int]float64{0: 0.1, 2: 0.5, 4: 0.5, 5: 0.3}},
			Result{Steps: 5, Version: 5, BestStep: 2, Before: raw(0.1), Best: raw(0.5), Last: raw(0.3)}, []int{0, 2, 4, 5}},
		{"nothing better", scripted{scores: map[int]float64{0: 0.6, 2: 0.5, 4: 0.6, 5: 0.3}},
			Result{Steps: 5, Version: 5, BestStep: 0, Unimproved: "score 0.6 at the start, score 0.3 after the last step", Before: raw(0.6), Best: raw(0.6), Last: raw(0.3)}, []int{0, 2, 4, 5}},
		{"scores below 0", scripted{scores: map[int]float64{0: -3, 2: -2, 4: -2.5, 5: -4}},
			Result{Steps: 5, Version: 5, BestStep: 2, Before: raw(-3), Best: raw(-2), Last: raw(-4)}, []int{0, 2, 4, 5}},
		{"good enough", scripted{scores: map[int]float64{0: 0.1, 2: 0.4, 4: 0.9}, done: 4},
			Result{Steps: 4, Version: 4, BestStep: 4, Before: raw(0.1), Best: raw(0.9), Last: raw(0.9)}, []int{0, 2, 4}},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newTable(t, 1)
			var said recorded
			h := said.hooks()
			h.LogEvery = 3
			got := must.Get(Run(t.Context(), p, fixed(tokenStep), newGRPO(), Config{
				Steps: 5, Samples: 4, Optimisation: Optimisation{LearningRate: 0.1, Schedule: "constant"}, Evaluate: test.script.evaluation(t, p, 2),
			}, h))(t)
			expect.Equal(t, test.want, got, "result")
			expect.True(t, slices.Equal(test.asked, test.script.asked),
				"evaluated after %v steps, want %v", test.script.asked, test.asked)
			expect.True(t, slices.EqualFunc(weightsOf(t, p), test.script.seen[got.BestStep], slices.Equal),
				"the weights are not those of step %d", got.BestStep)
			if steps := said.figure("step"); steps[len(steps)-1] != float64(got.Steps) {
				t.Errorf("the last row is of step %v, the last step is %d", steps[len(steps)-1], got.Steps)
			}
			var rows []float64
			for _, row := range said.rows {
				if score, ok := row["eval_score"]; ok {
					rows = append(rows, float64(row["step"].(int)), score.(float64))
				}
			}
			expect.True(t, len(rows) == 2*len(test.asked) && rows[2] == 2, "rows of evaluations: %v", rows)
			last := said.lines[len(said.lines)-1]
			expect.True(t, strings.HasSuffix(last, fmt.Sprintf("(best: %d)", got.BestStep)), "last line %q", last)
		})
	}
}

// TestRowsGatherSteps writes a row for every two steps, and one for the remainder.
func TestRowsGatherSteps(t *testing.T) {
	rows := func(every int) []report.Row {
		p := newTable(t, 1)
		var said recorded
		h := said.hooks()
		h.LogEvery = every
		must.Get(Run(t.Context(), p, fixed(tokenStep), newGRPO(), Config{
			Steps: 5, Samples: 4, Optimisation: Optimisation{LearningRate: 0.1, Schedule: "linear"},
		}, h))(t)
		return said.rows
	}
	single, pairs := rows(1), rows(2)
	expect.Require(t, len(single) == 5 && len(pairs) == 3, "%d and %d rows", len(single), len(pairs))
	for i, last := range []int{1, 3, 4} {
		row := pairs[i]
		loss, updates, n := 0.0, 0.0, 0.0
		for at := 2 * i; at <= last; at++ {
			loss, updates, n = loss+single[at]["loss"].(float64), updates+single[at]["updates"].(float64), n+1
		}
		if d := row["loss"].(float64) - loss/n; d > 1e-12 || d < -1e-12 || row["updates"] != updates || row["step"] != float64(last+1) ||
			row["learning_rate"] != single[last]["learning_rate"] {
			t.Errorf("row %d: %v; want a loss of %v and %v updates", i+1, row, loss/n, updates)
		}
	}
	for name := range single[0] {
		expect.True(t, !strings.HasPrefix(name, "time/"), "a run without a clock has %s", name)
	}
}

// TestAlarmOfADivergence: the alarms receive the step's KL.
func TestAlarmOfADivergence(t *testing.T) {
	p, other := newTable(t, 1), newTable(t, 2)
	values := must.Get(other.logits.Read())(t)
	for i := range values {
		values[i] *= 5
	}
	must.Do(t, other.logits.Write(values))
	var said recorded
	must.Get(Run(t.Context(), p, fixed(func(at int) *rl.Step {
		step := tokenStep(at)
		step.Health = &rl.Health{Ended: 1}
		return step
	}), newGRPO(), Config{
		Steps: 3, Samples: 4, Optimisation: Optimisation{Schedule: "constant"}, Reference: other,
		Regularisation: Regularisation{KLCoef: 0.1, KLType: "k2"},
	}, said.hooks()))(t)
	n := strings.Count(strings.Join(said.lines, "\n"), "warning: kl: ")
	expect.True(t, n == 1, "%d alarms in %q", n, said.lines)
}
