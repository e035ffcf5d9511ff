package reward

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Scores are the rewards of a batch.
type Scores struct {
	// Total is the weighted sum for each sample, or NaN if one of its rewards failed: a partial sum would be on another
	// scale. All other totals are finite, even as float32.
	Total   []float64
	Rewards []Score // in list order
	// Steps are the weighted scores of each sample's steps, by their ends, which are parts of Total; nil if no reward has steps.
	Steps [][]Step
}

// Score is one reward of a batch.
type Score struct {
	Name     string    `json:"name"`
	Weight   float64   `json:"weight"`
	Values   []float64 `json:"-"`    // per sample, unweighted; NaN if the reward failed
	N        int       `json:"n"`    // number of values that are not NaN
	Mean     float64   `json:"mean"` // over these; 0 if there are none
	Std      float64   `json:"std"`  // unbiased standard deviation; 0 for fewer than two
	Failures int       `json:"failures"`
	Failure  string    `json:"failure,omitempty"` // the first failure
}

// Step is a step of a completion.
type Step struct {
	End   int     // bytes of Completion.Generated up to its end
	Value float64 // its reward
}

// AllFailed returns an error with the first failure if no sample of a non-empty batch has a total, else nil.
func (s Scores) AllFailed() error {
	for _, total := range s.Total {
		if !math.IsNaN(total) {
			return nil
		}
	}
	for _, r := range s.Rewards {
		if r.Failure != "" {
			return fmt.Errorf("rewards failed for all %d samples: %s", len(s.Total), r.Failure)
		}
	}
	return nil
}

// results are one reward of n samples before weighting.
type results struct {
	values []float64
	errs   []error
	steps  [][]Step // nil if the reward has none
}

func newResults(n int) results { return results{values: make([]float64, n), errs: make([]error, n)} }

// stepped wraps the steps of n samples.
func stepped(steps [][]Step, errs []error, n int) results {
	values := make([]float64, len(steps))
	for i, one := range steps {
		for _, step := range one {
			values[i] += step.Value
		}
	}
	said := batched(values, errs, n)
	said.steps = steps
	return said
}

// batched wraps the results of a batch function; a failure is NaN.
func batched(values []float64, errs []error, n int) results {
	if len(values) == n && len(errs) == n {
		for i, err := range errs {
			if err != nil {
				values[i] = math.NaN()
			}
		}
		return results{values: values, errs: errs}
	}
	said := newResults(n)
	for i := range said.errs {
		said.errs[i] = fmt.Errorf("the reward returned %d values and %d errors for %d samples", len(values), len(errs), n)
	}
	return said
}

// weigh combines the rewards of n samples.
func weigh(pieces []piece, said []results, n int) Scores {
	s := Scores{Total: make([]float64, n), Rewards: make([]Score, len(pieces))}
	for j, p := range pieces {
		score := Score{Name: p.name, Weight: p.weight, Values: said[j].values}
		if said[j].steps != nil && s.Steps == nil {
			s.Steps = make([][]Step, n)
		}
		for i, err := range said[j].errs {
			value := score.Values[i]
			if err == nil && !fits(value, p.weight, len(pieces)) {
				err = fmt.Errorf("the value is %v", value)
			}
			if err != nil {
				score.Values[i] = math.NaN()
				if score.Failures++; score.Failures == 1 {
					score.Failure = fmt.Sprintf("reward %s: %v", p.name, err)
				}
			}
			s.Total[i] += p.weight * score.Values[i]
			if steps := said[j].steps; steps != nil && err == nil {
				s.addSteps(i, steps[i], p.weight)
			}
		}
		score.N = n - score.Failures
		score.Mean, score.Std = moments(score.Values, score.N)
		s.Rewards[j] = score
	}
	return s
}

// addSteps adds the steps of a reward to those of sample i.
func (s *Scores) addSteps(i int, steps []Step, weight float64) {
	for _, step := range steps {
		s.Steps[i] = append(s.Steps[i], Step{step.End, weight * step.Value})
	}
	slices.SortStableFunc(s.Steps[i], func(a, b Step) int { return a.End - b.End })
}

var errGradient = errors.New("the gradient is not finite")

// fits reports whether value is finite, and whether a weighted sum of this many such values is finite in float32.
func fits(value, weight float64, rewards int) bool {
	return math.Abs(value) <= math.MaxFloat32 && math.Abs(weight*value) <= math.MaxFloat32/float64(rewards)
}

// moments are the mean and unbiased standard deviation of the n values that are not NaN.
func moments(values []float64, n int) (mean, std float64) {
	if n == 0 {
		return 0, 0
	}
	for _, v := range values {
		if !math.IsNaN(v) {
			mean += v
		}
	}
	mean /= float64(n)
	if n == 1 {
		return mean, 0
	}
	for _, v := range values {
		if !math.IsNaN(v) {
			std += (v - mean) * (v - mean)
		}
	}
	return mean, math.Sqrt(std / float64(n-1))
}
