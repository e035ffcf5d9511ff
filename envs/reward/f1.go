package reward

import (
	"encoding/json"
	"fmt"
	"slices"
)

func init() {
	Register(Definition{
		Name: "f1", Help: "what a choice changes in the macro F1 of the last 200 choices per label",
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

// f1Counts holds the running counts behind the f1 reward and turns them into a reward
// for one choice.
//
// Macro F1 is a figure of a whole set, (1/C)·Σ_c F1_c with
//
//	F1_c = 2·TP_c / D_c        D_c = 2·TP_c + FP_c + FN_c = (predicted as c) + (truly c)
//
// so one choice is rewarded by what it changes. Let an example of truth y come in with
// weight ε and be predicted as a. Its truth adds ε to D_y whatever is predicted: the
// same for all a, so no policy gradient sees it. The prediction adds ε to D_a, and
// 2ε·1[a=y] to 2·TP_a. By the quotient rule
//
//	d F1_a / dε = (2·1[a=y]·D_a − 2·TP_a) / D_a² = (2·1[a=y] − F1_a) / D_a
//
// Macro F1 changes by 1/C of that. Scaled by the number N of examples, so that the size
// of a reward does not shrink as counts grow:
//
//	r(a|y) = (2·1[a=y] − F1_a) / D_a · N / C
//
// A right answer on a rare label is worth more than one on a common label, and a wrong
// answer costs little where F1_a is low or D_a is high: unlike accuracy, the reward
// pays for guessing rare labels when they are likely enough.
//
// Counts fade, since the policy that made the old ones is gone: each new example
// multiplies them by 1 − 1/M with M = 200·C, so about the last 200 examples a label
// count. Each label keeps one prior example, truly and predicted, never right. With
// nothing else counted F1_a = 0, D_a = 2 and N = C, and the reward is 1[a=y]: it starts
// as accuracy. The prior does not fade; it keeps D_a ≥ 2 for a label not seen for long.
type f1Counts struct {
	truePositive, predicted, truth []float64
	keep                           float64
}

const (
	f1Memory = 200 // examples a label
	f1Prior  = 1   // examples a label
)

func newF1Counts(labels int) *f1Counts {
	return &f1Counts{
		truePositive: make([]float64, labels), predicted: make([]float64, labels), truth: make([]float64, labels),
		keep: 1 - 1/float64(f1Memory*labels),
	}
}

// reward is r(action|truth) at the present counts.
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

// observe counts an example of the given truth that was predicted as action.
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

// f1State is one entry a label.
type f1State struct {
	TruePositive []float64 `json:"true_positive"`
	Predicted    []float64 `json:"predicted"`
	True         []float64 `json:"true"`
}

func (f *f1Counts) state() any { return f1State{f.truePositive, f.predicted, f.truth} }

// restore refuses counts of another number of labels, and counts that are negative or not finite.
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
			return fmt.Errorf("field %s has %d entries for %d labels", field.name, len(field.counts), len(f.truth))
		}
		for _, count := range field.counts {
			if !finite(count) || count < 0 {
				return fmt.Errorf("field %s has the count %v", field.name, count)
			}
		}
	}
	f.truePositive, f.predicted, f.truth = slices.Clone(s.TruePositive), slices.Clone(s.Predicted), slices.Clone(s.True)
	return nil
}
