package intent

import (
	"fmt"
	"math"
	"slices"
)

// RewardStats describes the unweighted values of one reward since ResetStats.
type RewardStats struct {
	Name     string  `json:"name"`
	Weight   float64 `json:"weight"`
	N        int     `json:"n"` // values seen, failures not among them
	Mean     float64 `json:"mean"`
	Std      float64 `json:"std"` // population standard deviation
	Failures int     `json:"failures"`
}

// Stats returns the statistics of each reward, in the order of the specification. In
// Expected a sample's value is its expectation over the labels.
func (r *Rewards) Stats() []RewardStats {
	stats := make([]RewardStats, len(r.rewards))
	for i, rw := range r.rewards {
		stats[i] = RewardStats{Name: rw.name, Weight: rw.weight, N: rw.seen.N, Mean: rw.seen.Mean, Std: rw.seen.std(), Failures: rw.failed}
	}
	return stats
}

// ResetStats starts the statistics afresh, for figures of one step or episode; the
// running F1 counts stay.
func (r *Rewards) ResetStats() {
	for _, rw := range r.rewards {
		rw.seen, rw.failed = welford{}, 0
	}
}

// RewardsState is what a Rewards has accumulated, for a checkpoint; it comes back
// exactly from JSON.
type RewardsState struct {
	Rewards []RewardState `json:"rewards"`
	F1      *F1State      `json:"f1,omitempty"`
}

// RewardState is the state of one reward's statistics: Welford's count, mean and sum of
// squared differences.
type RewardState struct {
	Name     string  `json:"name"`
	N        int     `json:"n"`
	Mean     float64 `json:"mean"`
	M2       float64 `json:"m2"`
	Failures int     `json:"failures"`
}

// F1State is the state of the running counts of the f1 reward, one entry a label.
type F1State struct {
	TruePositive []float64 `json:"true_positive"`
	Predicted    []float64 `json:"predicted"`
	True         []float64 `json:"true"`
}

// State returns a copy of everything accumulated.
func (r *Rewards) State() RewardsState {
	s := RewardsState{Rewards: make([]RewardState, len(r.rewards))}
	for i, rw := range r.rewards {
		s.Rewards[i] = RewardState{Name: rw.name, N: rw.seen.N, Mean: rw.seen.Mean, M2: rw.seen.M2, Failures: rw.failed}
	}
	if r.f1 != nil {
		s.F1 = &F1State{
			TruePositive: slices.Clone(r.f1.truePositive),
			Predicted:    slices.Clone(r.f1.predicted),
			True:         slices.Clone(r.f1.truth),
		}
	}
	return s
}

// Restore continues from s. A state of other rewards or another number of labels is an
// error and changes nothing.
func (r *Rewards) Restore(s RewardsState) error {
	if len(s.Rewards) != len(r.rewards) {
		return fmt.Errorf("restoring rewards: the state has %d rewards, the specification %d", len(s.Rewards), len(r.rewards))
	}
	for i, rw := range r.rewards {
		if s.Rewards[i].Name != rw.name {
			return fmt.Errorf("restoring rewards: the state has %q in place %d, the specification %q", s.Rewards[i].Name, i+1, rw.name)
		}
	}
	if (s.F1 == nil) != (r.f1 == nil) {
		return fmt.Errorf("restoring rewards: only one of state and specification has f1 counts")
	}
	if s.F1 != nil {
		for name, counts := range map[string][]float64{"true_positive": s.F1.TruePositive, "predicted": s.F1.Predicted, "true": s.F1.True} {
			if len(counts) != len(r.labels) {
				return fmt.Errorf("restoring rewards: field f1.%s has %d entries for %d labels", name, len(counts), len(r.labels))
			}
		}
		r.f1.truePositive = slices.Clone(s.F1.TruePositive)
		r.f1.predicted = slices.Clone(s.F1.Predicted)
		r.f1.truth = slices.Clone(s.F1.True)
	}
	for i, rw := range r.rewards {
		rw.seen = welford{N: s.Rewards[i].N, Mean: s.Rewards[i].Mean, M2: s.Rewards[i].M2}
		rw.failed = s.Rewards[i].Failures
	}
	return nil
}

// welford accumulates mean and variance in one pass (Welford 1962).
type welford struct {
	N        int
	Mean, M2 float64
}

func (w *welford) add(x float64) {
	w.N++
	d := x - w.Mean
	w.Mean += d / float64(w.N)
	w.M2 += d * (x - w.Mean)
}

func (w *welford) std() float64 {
	if w.N == 0 {
		return 0
	}
	return math.Sqrt(w.M2 / float64(w.N))
}
