package reward

import (
	"errors"
	"fmt"
	"slices"
)

// LabelsState is what a Labels has counted, for a checkpoint; it comes back exactly from
// JSON.
type LabelsState struct {
	Rewards []string `json:"rewards"` // their names
	F1      *F1State `json:"f1,omitempty"`
}

// F1State is the state of the running counts of the f1 reward, one entry a label.
type F1State struct {
	TruePositive []float64 `json:"true_positive"`
	Predicted    []float64 `json:"predicted"`
	True         []float64 `json:"true"`
}

// State returns a copy of everything counted.
func (r *Labels) State() LabelsState {
	s := LabelsState{Rewards: r.Names()}
	if r.f1 != nil {
		s.F1 = &F1State{
			TruePositive: slices.Clone(r.f1.truePositive),
			Predicted:    slices.Clone(r.f1.predicted),
			True:         slices.Clone(r.f1.truth),
		}
	}
	return s
}

// Restore continues from s. A state of other rewards, of another number of labels, or with
// counts that are negative or not finite is an error and changes nothing.
func (r *Labels) Restore(s LabelsState) error {
	if names := r.Names(); !slices.Equal(s.Rewards, names) {
		return fmt.Errorf("restoring rewards: the state is of %q, the list is %q", s.Rewards, names)
	}
	if (s.F1 == nil) != (r.f1 == nil) {
		return errors.New("restoring rewards: field f1 is missing, or not of these rewards")
	}
	if s.F1 == nil {
		return nil
	}
	for _, field := range []struct {
		name   string
		counts []float64
	}{{"true_positive", s.F1.TruePositive}, {"predicted", s.F1.Predicted}, {"true", s.F1.True}} {
		if len(field.counts) != len(r.labels) {
			return fmt.Errorf("restoring rewards: field f1.%s has %d entries for %d labels", field.name, len(field.counts), len(r.labels))
		}
		for _, count := range field.counts {
			if !finite(count) || count < 0 {
				return fmt.Errorf("restoring rewards: field f1.%s has the count %v", field.name, count)
			}
		}
	}
	r.f1.truePositive = slices.Clone(s.F1.TruePositive)
	r.f1.predicted = slices.Clone(s.F1.Predicted)
	r.f1.truth = slices.Clone(s.F1.True)
	return nil
}
