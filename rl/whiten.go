package rl

import (
	"math"
	"slices"
)

// Whiten shifts x to mean 0 and divides it by √(var + 1e-8), in place, with the
// population variance (so the result has variance 1), as PPO does with the advantages
// of a batch.
//
// Where all entries are equal the result is exactly 0: computing it would divide the
// rounding error of the mean by almost nothing and hand every sample the same spurious
// advantage. A single entry has no spread to be measured by and stays as it is.
func Whiten(x []float32) {
	if len(x) < 2 {
		return
	}
	if slices.Max(x) == slices.Min(x) {
		clear(x)
		return
	}
	mean, variance := moments(x)
	scale := 1 / math.Sqrt(variance+1e-8)
	for i, v := range x {
		x[i] = float32((float64(v) - mean) * scale)
	}
}

// ExplainedVariance is 1 − Var(returns − values)/Var(returns): 1 for a perfect value
// function, 0 for one no better than a constant, negative for one that is worse.
// Returns that are all equal leave nothing to explain and give 0, as does an empty
// slice, so the result is finite for finite input. It panics when the lengths differ.
func ExplainedVariance(values, returns []float32) float64 {
	if len(values) != len(returns) {
		panic("rl.ExplainedVariance: values and returns differ in length")
	}
	if len(returns) == 0 || slices.Max(returns) == slices.Min(returns) {
		return 0
	}
	residuals := make([]float32, len(returns))
	for i := range returns {
		residuals[i] = returns[i] - values[i]
	}
	_, total := moments(returns)
	_, left := moments(residuals)
	return 1 - left/total
}

// moments returns the mean and the population variance in float64, in two passes.
func moments(x []float32) (mean, variance float64) {
	for _, v := range x {
		mean += float64(v)
	}
	mean /= float64(len(x))
	for _, v := range x {
		d := float64(v) - mean
		variance += d * d
	}
	return mean, variance / float64(len(x))
}
