package reward

import (
	"encoding/json"
	"fmt"
	"slices"
)

func init() {
	Register(Definition{
		Name: "f1", Help: "effect of a choice on the macro F1 of the last 200 choices per label",
		Labels: func(s Setup) (LabelReward, error) {
			f := newF1Counts(len(s.Labels))
			return LabelReward{
				Value: f.reward,
				Expected: func(truth int, probs, grad []float64) (sum float64) {
					for a, p := range probs {
						grad[a] = f.reward(a, truth)
						sum += p * grad[a]
					}
					return sum
				},
				Observe: func(choices []Choice, _ []float64) {
					for _, c := range choices {
						f.observe(c.Action, c.Truth)
					}
				},
				State: f.state, Restore: f.restore,
			}, nil
		},
	})
}

// f1Counts holds the running counts of the f1 reward and computes the reward of one choice.
//
// Macro F1 is a metric of a data set, (1/C)·Σ_c F1_c with
//
//	F1_c = 2·TP_c / D_c        D_c = 2·TP_c + FP_c + FN_c = (predicted as c) + (truly c)
//
// The reward of a choice is its effect on that metric. Let an example of truth y enter with weight ε and be predicted as
// a. Its truth adds ε to D_y for every a, so no policy gradient sees it. The prediction adds ε to D_a, and 2ε·1[a=y] to
// 2·TP_a. By the quotient rule
//
//	d F1_a / dε = (2·1[a=y]·D_a − 2·TP_a) / D_a² = (2·1[a=y] − F1_a) / D_a
//
// Macro F1 changes by 1/C of that. The reward is scaled by the number N of examples, so that it does not shrink as counts
// grow:
//
//	r(a|y) = (2·1[a=y] − F1_a) / D_a · N / C
//
// A correct answer on a rare label is worth more than on a common one. A wrong answer costs little if F1_a is low or D_a
// is high. Unlike accuracy, the reward therefore encourages rare labels that are likely enough.
//
// Counts decay, because they come from older policies: each new example multiplies them by 1 − 1/M with M = 200·C, so
// about the last 200 examples per label count. Each label has a prior of one true and one wrongly predicted example. With
// nothing else counted, F1_a = 0, D_a = 2, N = C and the reward is 1[a=y], the accuracy. The prior does not decay; it
// keeps D_a ≥ 2.
type f1Counts struct {
	truePositive, predicted, truth []float64
	keep                           float64
}

const (
	f1Memory = 200 // examples per label
	f1Prior  = 1   // examples per label
)

func newF1Counts(labels int) *f1Counts {
	return &f1Counts{
		truePositive: make([]float64, labels), predicted: make([]float64, labels), truth: make([]float64, labels),
		keep: 1 - 1/float64(f1Memory*labels),
	}
}

// reward is r(action|truth) at the current counts.
func (f *f1Counts) reward(action, truth int) float64 {
	labels := float64(len(f.truth))
	n := f1Prior * labels
	for _, count := range f.truth {
		n += count
	}
	d := 2*f1Prior + f.predicted[action] + f.truth[action]
	gain := -2 * f.truePositive[action] / d
	if action == truth {
		gain += 2
	}
	return gain / d * n / labels
}

// observe counts an example with the given truth and prediction.
func (f *f1Counts) observe(action, truth int) {
	f.fade()
	f.truth[truth]++
	f.predicted[action]++
	if action == truth {
		f.truePositive[truth]++
	}
}

func (f *f1Counts) fade() {
	for c := range f.truth {
		f.truth[c] *= f.keep
		f.predicted[c] *= f.keep
		f.truePositive[c] *= f.keep
	}
}

// f1State has one entry per label.
type f1State struct {
	TruePositive []float64 `json:"true_positive"`
	Predicted    []float64 `json:"predicted"`
	True         []float64 `json:"true"`
}

func (f *f1Counts) state() any { return f1State{f.truePositive, f.predicted, f.truth} }

// restore refuses counts for another number of labels, and counts that are negative or not finite.
func (f *f1Counts) restore(state json.RawMessage) error {
	var s f1State
	if err := json.Unmarshal(state, &s); err != nil {
		return err
	}
	for _, field := range []struct {
		name   string
		counts []float64
	}{{"true_positive", s.TruePositive}, {"predicted", s.Predicted}, {"true", s.True}} {
		if len(field.counts) != len(f.truth) {
			return fmt.Errorf("field %s has %d entries, want %d (one per label)", field.name, len(field.counts), len(f.truth))
		}
		for _, count := range field.counts {
			if !finite(count) || count < 0 {
				return fmt.Errorf("field %s has the invalid count %v", field.name, count)
			}
		}
	}
	f.truePositive, f.predicted, f.truth = slices.Clone(s.TruePositive), slices.Clone(s.Predicted), slices.Clone(s.True)
	return nil
}
