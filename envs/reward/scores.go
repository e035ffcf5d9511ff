package reward

import (
	"errors"
	"fmt"
	"math"
)

// Scores is the outcome of judging a batch.
type Scores struct {
	// Total is the weighted sum of each sample, NaN where one of the rewards failed: a sum
	// without it would be on another scale. All others are finite, as float32 too.
	Total   []float64
	Rewards []Score // in the order of the list
}

// Score is what one reward said about a batch.
type Score struct {
	Name     string    `json:"name"`
	Weight   float64   `json:"weight"`
	Values   []float64 `json:"-"`    // of each sample, without the weight; NaN where it failed
	N        int       `json:"n"`    // values that are there
	Mean     float64   `json:"mean"` // over these; 0 where there is none
	Std      float64   `json:"std"`  // unbiased standard deviation; 0 where there are fewer than two
	Failures int       `json:"failures"`
	Failure  string    `json:"failure,omitempty"` // the first one
}

// AllFailed is an error with the first failure where no sample of the batch has a total,
// and nil where one has, or there is no sample.
func (s Scores) AllFailed() error {
	for _, total := range s.Total {
		if !math.IsNaN(total) {
			return nil
		}
	}
	for _, r := range s.Rewards {
		if r.Failure != "" {
			return fmt.Errorf("none of %d samples could be rewarded: %s", len(s.Total), r.Failure)
		}
	}
	return nil
}

// results are what one reward said of n samples before they are weighed.
type results struct {
	values []float64
	errs   []error
}

func newResults(n int) results { return results{make([]float64, n), make([]error, n)} }

// batched are the results of a function that scores n samples at once; a failure is NaN.
func batched(values []float64, errs []error, n int) results {
	if len(values) == n && len(errs) == n {
		for i, err := range errs {
			if err != nil {
				values[i] = math.NaN()
			}
		}
		return results{values, errs}
	}
	said := newResults(n)
	for i := range said.errs {
		said.errs[i] = fmt.Errorf("the reward gives %d values and %d errors for %d samples", len(values), len(errs), n)
	}
	return said
}

// weigh makes scores of what the rewards said about n samples, piece by piece.
func weigh(pieces []piece, said []results, n int) Scores {
	s := Scores{Total: make([]float64, n), Rewards: make([]Score, len(pieces))}
	for j, p := range pieces {
		score := Score{Name: p.name, Weight: p.weight, Values: said[j].values}
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
		}
		score.N = n - score.Failures
		score.Mean, score.Std = moments(score.Values, score.N)
		s.Rewards[j] = score
	}
	return s
}

var errGradient = errors.New("the gradient is not finite")

// fits says that value is finite, and that a sum of so many of its kind, weighted, is finite
// in float32.
func fits(value, weight float64, rewards int) bool {
	return math.Abs(value) <= math.MaxFloat32 && math.Abs(weight*value) <= math.MaxFloat32/float64(rewards)
}

// moments are mean and unbiased standard deviation of the n values that are not NaN.
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
