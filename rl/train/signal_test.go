package train

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/run"
)

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
			}
			s.Samples, s.Groups = append(s.Samples, group...), append(s.Groups, group)
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
		warns     []string
		fails     string
	}{
		{"all wrong", newGRPO, [4]float64{-1, -1, -1, -1}, false, 0, false, 3, []string{"SFT first", "0 of 4", "0.0–49.0", "100 %", `"text 0"`, `"text 1"`, `"text 2"`}, "--allow-no-signal"},
		{"allowed", newGRPO, [4]float64{-1, -1, -1, -1}, false, 0, true, 6, []string{"SFT first"}, ""},
		{"all right", newGRPO, [4]float64{1, 1, 1, 1}, true, 0, false, 6, []string{"harder prompts"}, ""},
		{"equal within prompts", newGRPO, [4]float64{0, 0, 1, 1}, false, 0, false, 3, []string{"SFT first"}, "--allow-no-signal"},
		{"equal within prompts, compared across them", reinforce, [4]float64{0, 0, 1, 1}, false, 0, false, 6, nil, ""},
		{"a signal", newGRPO, [4]float64{0, 1, 1, 1}, false, 0, false, 6, nil, ""},
		{"a signal in the third step", newGRPO, [4]float64{0, 0, 0, 0}, false, 3, false, 6, []string{"SFT first"}, ""},
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
			_, err := Run(t.Context(), newTable(t, 1), source, test.algorithm(), c, h)
			expect.Require(t, (err != nil) == (test.fails != "") && (err == nil || strings.Contains(err.Error(), test.fails)),
				"error %v, want one with %q", err, test.fails)
			expect.True(t, last == test.last && slices.Equal(saved, []int{test.last}),
				"ended after step %d, saved %v; want both at %d", last, saved, test.last)
			warnings := slices.DeleteFunc(slices.Clone(said.lines), func(line string) bool { return !strings.Contains(line, "nothing to learn from") })
			expect.Require(t, len(warnings) == min(1, len(test.warns)), "warnings %q", warnings)
			for _, want := range test.warns {
				expect.True(t, strings.Contains(warnings[0], want), "no %q in %s", want, warnings[0])
			}
		})
	}
}

// TestAStoppedRunGoesOnWithoutASignal resumes a run that had stopped without a signal.
func TestAStoppedRunGoesOnWithoutASignal(t *testing.T) {
	dir := t.TempDir()
	train := func(allow bool, h run.Hooks) (Result, error) {
		c := Config{Steps: 6, Samples: 2, Optimisation: Optimisation{LearningRate: 0.1, Schedule: "constant"}, Signal: Signal{allow}}
		return Run(t.Context(), newTable(t, 1), fixed(signalStep([4]float64{}, false)), newGRPO(), c, h)
	}
	_, err := train(false, run.Hooks{Save: func(_ int, write func(string) error) error { return write(dir) }})
	expect.Require(t, err != nil, "no error")
	expect.Failure(train(false, run.Hooks{Resume: dir}))(t, "step 4")
	result, err := train(true, run.Hooks{Resume: dir})
	expect.True(t, err == nil && result.Steps == 6, "resumed with AllowNone: %+v, %v", result, err)
}
