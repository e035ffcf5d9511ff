package train

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/run"
)

// TestPatience ends a run after the given number of evaluations without a new best.
func TestPatience(t *testing.T) {
	scores := map[int]float64{0: 0.1, 1: 0.5, 2: 0.5, 3: 0.52, 4: 0.5, 5: 0.51, 6: 0.9, 7: 0.9, 8: 0.9}
	for _, test := range []struct {
		stopping   Stopping
		last, best int
		line       string
	}{
		{Stopping{}, 8, 6, ""},
		{Stopping{Patience: 3}, 8, 6, ""},
		{Stopping{Patience: 2}, 5, 3, "Early stopping: 2 evaluations in a row without a new best since step 3"},
		{Stopping{Patience: 3, Threshold: 0.1}, 4, 3, "Early stopping: 3 evaluations in a row without a new best since step 3"},
		{Stopping{Patience: 1}, 2, 1, "Early stopping: 1 evaluation in a row without a new best since step 1"},
	} {
		p := newTable(t, 1)
		script := scripted{scores: scores}
		var said recorded
		c := Config{Steps: 8, Samples: 4, Optimisation: Optimisation{LearningRate: 0.1, Schedule: "constant"}, Evaluate: script.evaluation(t, p, 1), Stopping: test.stopping}
		result := must.Get(Run(t.Context(), p, fixed(tokenStep), newGRPO(), c, said.hooks()))(t)
		expect.True(t, result.Steps == test.last && result.BestStep == test.best,
			"%+v: ended after step %d, best %d; want %d and %d", test.stopping, result.Steps, result.BestStep, test.last, test.best)
		got := said.lines[len(said.lines)-1]
		expect.True(t, strings.HasPrefix(got, "Early stopping") == (test.line != "") && (test.line == "" || got == test.line), "%+v: last line %q, want %q", test.stopping, got, test.line)
	}
	expect.Failure(Run(t.Context(), newTable(t, 1), fixed(tokenStep), newGRPO(), Config{Steps: 1, Samples: 4, Optimisation: Optimisation{Schedule: "constant"}, Stopping: Stopping{Patience: 1}}, run.Hooks{}))(t, "early_stopping_patience")
}

// TestBestByANamedFigure selects the best by a metric of the row, whether higher or lower is better.
func TestBestByANamedFigure(t *testing.T) {
	for metric, want := range map[string]int{"": 4, "accuracy": 2, "loss": 3} {
		p := newTable(t, 1)
		e := &evaluate.Plan{Every: 1, KeepBest: true, Metric: metric, Run: func(_ context.Context, steps int) (evaluate.Scores, error) {
			row := map[int]report.Row{
				1: {"eval_accuracy": 0.1, "eval_loss": 3.0}, 2: {"eval_accuracy": 0.9, "eval_loss": 2.0},
				3: {"eval_accuracy": 0.5, "eval_loss": 1.0}, 4: {"eval_accuracy": 0.5, "eval_loss": 4.0},
			}[steps]
			return evaluate.Scores{Score: float64(steps), Row: row, Value: steps}, nil
		}}
		result, err := Run(t.Context(), p, fixed(tokenStep), newGRPO(), Config{Steps: 4, Samples: 4, Optimisation: Optimisation{LearningRate: 0.1, Schedule: "constant"}, Evaluate: e}, run.Hooks{})
		expect.True(t, err == nil && result.BestStep == want, "by %q: step %d, %v; want %d", metric, result.BestStep, err, want)
	}
	e := &evaluate.Plan{Every: 1, Metric: "acuracy", Run: func(context.Context, int) (evaluate.Scores, error) {
		return evaluate.Scores{Row: report.Row{"eval_accuracy": 0.1, "eval_reward": 1.0, "epoch": 1.0}}, nil
	}}
	expect.Failure(Run(t.Context(), newTable(t, 1), fixed(tokenStep), newGRPO(), Config{Steps: 1, Samples: 4, Optimisation: Optimisation{LearningRate: 0.1, Schedule: "constant"}, Evaluate: e}, run.Hooks{}))(t, `"acuracy" is not a figure of the evaluations; choose accuracy, reward`)
}

// TestRunInParts stops a run between two steps, saved, when the next would end after the deadline, and resumes it to its end, or beyond:
// its weights are those of an uninterrupted one.
func TestRunInParts(t *testing.T) {
	dir := t.TempDir()
	train := func(steps int, h run.Hooks) (run.Snapshot, error) {
		p := newTable(t, 1)
		_, err := Run(t.Context(), p, fixed(tokenStep), newGRPO(), Config{Steps: steps, Samples: 4, Optimisation: Optimisation{LearningRate: 0.1, Schedule: "constant"}}, h)
		return weightsOf(t, p), err
	}
	want := must.Get(train(6, run.Hooks{}))(t)
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var saved []int
	h := run.Hooks{
		Now: func() time.Time { return now }, Deadline: now.Add(35 * time.Second),
		Progress: func(int, int, string) { now = now.Add(10 * time.Second) }, // a step takes that long
		Save:     func(step int, write func(string) error) error { saved = append(saved, step); return write(dir) },
	}
	_, err := train(5, h)
	expect.Require(t, errors.Is(err, run.ErrTimeUp) && errors.Is(err, run.ErrStopped) && slices.Equal(saved, []int{3}), "error %v, saved %v", err, saved)
	expect.Error(t, err, "time limit")
	expect.Equal(t, want, must.Get(train(6, run.Hooks{Resume: dir}))(t), "weights")
	expect.Failure(train(2, run.Hooks{Resume: dir}))(t, "checkpoint is at step 3, past 2 steps")
	expect.Failure(train(6, run.Hooks{Resume: t.TempDir()}))(t, "checkpoint: ")
	// A process takes at least one step.
	now, saved = now.Add(time.Hour), nil
	_, err = train(6, h)
	expect.True(t, errors.Is(err, run.ErrTimeUp) && slices.Equal(saved, []int{1}), "error %v, saved %v", err, saved)
}

// signalStep has two prompts of two samples with these rewards, and records of them.
func signalStep(rewards [4]float64, correct bool) func(int) *rl.Step {
	return func(int) *rl.Step {
		s := &rl.Step{}
		for prompt := range 2 {
			var group []*rl.Sample
			for i := range 2 {
				group = append(group, &rl.Sample{
					Prompt: prompt, Index: i, Episode: 2*prompt + i, Tokens: []int32{1, 2}, Rows: []int{0}, Actions: []int32{2},
					BehaviorLogProbs: []float32{-1}, Rewards: []float64{rewards[2*prompt+i]},
				})
				if group[i].HasReward() {
					s.Samples = append(s.Samples, group[i])
				}
			}
			s.Groups = append(s.Groups, group)
		}
		s.Records = func(int) ([]rl.Record, error) {
			var all []rl.Record
			for i, x := range s.Samples {
				r := rl.Record{Prompt: x.Prompt, Sample: x.Index, Written: fmt.Sprint("text ", i), Tier: "tag", Correct: correct, Stop: string(envs.StopLength)}
				r.Learnt(x)
				all = append(all, r)
			}
			return all, nil
		}
		return s
	}
}

func TestSignal(t *testing.T) {
	reinforce := func() algo.Algorithm { return &algo.Reinforce{Decay: 0.9} }
	for _, test := range []struct {
		name      string
		algorithm func() algo.Algorithm
		rewards   [4]float64
		correct   bool
		from      int // first step with a signal; 0 = none
		allow     bool
		last      int // step after which the run ended
		learns    bool
		warns     []string
		fails     string
	}{
		{"none rewarded", newGRPO, [4]float64{math.NaN(), math.NaN(), math.NaN(), math.NaN()}, false, 0, false, 3, false, []string{"SFT first"}, "--allow-no-signal"},
		{"all wrong", newGRPO, [4]float64{-1, -1, -1, -1}, false, 0, false, 3, false, []string{"SFT first", "0 of 4", "0.0–49.0", "100 %", `"text 0"`, `"text 1"`, `"text 2"`}, "--allow-no-signal"},
		{"allowed", newGRPO, [4]float64{-1, -1, -1, -1}, false, 0, true, 6, false, []string{"SFT first"}, ""},
		{"all right", newGRPO, [4]float64{1, 1, 1, 1}, true, 0, false, 6, false, []string{"harder prompts", "4 of 4 = 100.0 %"}, ""},
		{"equal within prompts", newGRPO, [4]float64{0, 0, 1, 1}, false, 0, false, 3, false, []string{"SFT first"}, "--allow-no-signal"},
		{"equal within prompts, compared across them", reinforce, [4]float64{0, 0, 1, 1}, false, 0, false, 6, true, nil, ""},
		{"a signal", newGRPO, [4]float64{0, 1, 1, 1}, false, 0, false, 6, true, nil, ""},
		{"a signal in the third step", newGRPO, [4]float64{0, 0, 0, 0}, false, 3, false, 6, true, []string{"SFT first"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			source := fixed(func(step int) *rl.Step {
				if test.from > 0 && step+1 >= test.from {
					return signalStep([4]float64{0, 1, 0, 0}, false)(step)
				}
				return signalStep(test.rewards, test.correct)(step)
			})
			var said recorded
			saved, last := []int{}, 0
			h := said.hooks()
			h.Save = func(step int, write func(string) error) error { saved = append(saved, step); return write(t.TempDir()) }
			h.Progress = func(done, _ int, _ string) { last = done }
			c := Config{Steps: 6, Samples: 2, Optimisation: Optimisation{LearningRate: 0.1, Schedule: "constant"}, Signal: Signal{test.allow}}
			p := newTable(t, 1)
			_, err := Run(t.Context(), p, source, test.algorithm(), c, h)
			expect.Same(t, test.learns, p.version > 0, "the policy has changed")
			expect.Require(t, (err != nil) == (test.fails != "") && (err == nil || strings.Contains(err.Error(), test.fails)), "error %v, want one with %q", err, test.fails)
			expect.True(t, last == test.last && slices.Equal(saved, []int{test.last}), "ended after step %d, saved %v; want both at %d", last, saved, test.last)
			warnings := slices.DeleteFunc(slices.Clone(said.lines), func(line string) bool { return !strings.Contains(line, "nothing to learn from") })
			expect.Require(t, len(warnings) == min(1, len(test.warns)), "warnings %q", warnings)
			expect.Contains(t, strings.Join(warnings, ""), test.warns...)
		})
	}
}

// TestPenaltiesAreASignal: completions of a prompt that differ by their length penalty alone teach something.
func TestPenaltiesAreASignal(t *testing.T) {
	for overlong, want := range map[float64]bool{0: true, -0.5: false} {
		records := []rl.Record{{Prompt: 1, Reward: 1, Advantage: 0.5}, {Prompt: 1, Reward: 1, Advantage: -0.5, Overlong: overlong}}
		expect.Same(t, want, silent(records, true), "silent with a penalty of %v", overlong)
	}
}

// TestAStoppedRunGoesOnWithoutASignal: resumed, it stops after another step, unless it is allowed to go on.
func TestAStoppedRunGoesOnWithoutASignal(t *testing.T) {
	dir := t.TempDir()
	train := func(allow bool, h run.Hooks) (Result, error) {
		c := Config{Steps: 6, Samples: 2, Optimisation: Optimisation{LearningRate: 0.1, Schedule: "constant"}, Signal: Signal{allow}}
		return Run(t.Context(), newTable(t, 1), fixed(signalStep([4]float64{}, false)), newGRPO(), c, h)
	}
	expect.Failure(train(false, run.Hooks{Save: func(_ int, write func(string) error) error { return write(dir) }}))(t, "step 3")
	expect.Failure(train(false, run.Hooks{Resume: dir}))(t, "step 4")
	expect.Same(t, 6, must.Get(train(true, run.Hooks{Resume: dir}))(t).Steps, "steps of a run that may go on")
}

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
		last   bool // the best is not asked for
	}{
		{"a best in between", scripted{scores: map[int]float64{0: 0.1, 2: 0.5, 4: 0.5, 5: 0.3}},
			Result{Steps: 5, Version: 5, BestStep: 2, Before: raw(0.1), Best: raw(0.5), Last: raw(0.3)}, []int{0, 2, 4, 5}, false},
		{"the last", scripted{scores: map[int]float64{0: 0.1, 2: 0.5, 4: 0.5, 5: 0.3}},
			Result{Steps: 5, Version: 5, BestStep: 2, Before: raw(0.1), Best: raw(0.5), Last: raw(0.3)}, []int{0, 2, 4, 5}, true},
		{"nothing better", scripted{scores: map[int]float64{0: 0.6, 2: 0.5, 4: 0.6, 5: 0.3}},
			Result{Steps: 5, Version: 5, BestStep: 0, Unimproved: "score 0.6 at the start, score 0.3 after the last step", Before: raw(0.6), Best: raw(0.6), Last: raw(0.3)}, []int{0, 2, 4, 5}, false},
		{"scores below 0", scripted{scores: map[int]float64{0: -3, 2: -2, 4: -2.5, 5: -4}},
			Result{Steps: 5, Version: 5, BestStep: 2, Before: raw(-3), Best: raw(-2), Last: raw(-4)}, []int{0, 2, 4, 5}, false},
		{"good enough", scripted{scores: map[int]float64{0: 0.1, 2: 0.4, 4: 0.9}, done: 4},
			Result{Steps: 4, Version: 4, BestStep: 4, Before: raw(0.1), Best: raw(0.9), Last: raw(0.9)}, []int{0, 2, 4}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newTable(t, 1)
			var said recorded
			h := said.hooks()
			h.LogEvery = 3
			var kept run.Snapshot
			plan := test.script.evaluation(t, p, 2)
			plan.KeepBest = !test.last
			got := must.Get(Run(t.Context(), p, fixed(tokenStep), newGRPO(), Config{
				Steps: 5, Samples: 4, Optimisation: Optimisation{LearningRate: 0.1, Schedule: "constant"}, Evaluate: plan,
				KeepLast: func() error { kept = weightsOf(t, p); return nil },
			}, h))(t)
			expect.Equal(t, test.want, got, "result")
			expect.True(t, slices.Equal(test.asked, test.script.asked), "evaluated after %v steps, want %v", test.script.asked, test.asked)
			want := []run.Snapshot{test.script.seen[got.BestStep], test.script.seen[got.Steps]}
			if test.last {
				want = []run.Snapshot{want[1], nil}
			}
			expect.Equal(t, want, []run.Snapshot{weightsOf(t, p), kept}, "weights at the end, and those kept as the last")
			steps := said.figure("step")
			expect.True(t, steps[len(steps)-1] == float64(got.Steps), "the last row is of step %v, the last step is %d", steps[len(steps)-1], got.Steps)
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
	rows := func(every int, now func() time.Time) []report.Row {
		p := newTable(t, 1)
		var said recorded
		h := said.hooks()
		h.LogEvery, h.Now = every, now
		must.Get(Run(t.Context(), p, fixed(tokenStep), newGRPO(), Config{
			Steps: 5, Samples: 4, Optimisation: Optimisation{LearningRate: 0.1, Schedule: "linear"},
		}, h))(t)
		return said.rows
	}
	single, pairs := rows(1, nil), rows(2, nil)
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
	seconds := int64(0) // of a clock that each look advances
	timed := rows(1, func() time.Time { seconds++; return time.Unix(seconds, 0) })[0]
	expect.Equal(t, []any{1.0, 1.0}, []any{timed["time/logprobs"], timed["time/update"]}, timed)
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
	expect.Same(t, 1, strings.Count(strings.Join(said.lines, "\n"), "warning: kl: "), "alarms in %q", said.lines)
}
