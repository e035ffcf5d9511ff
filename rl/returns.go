package rl

import (
	"fmt"
	"math"
	"slices"
)

// ReturnsToGo returns G_t = r_t + γ·G_{t+1} for the rewards of an episode. A missing reward, NaN, makes its own return and all
// earlier ones missing.
func ReturnsToGo(rewards []float64, gamma float64) []float64 {
	returns := make([]float64, len(rewards))
	next := 0.0
	for t := len(rewards) - 1; t >= 0; t-- {
		next = rewards[t] + gamma*next
		returns[t] = next
	}
	return returns
}

// GAE computes generalised advantage estimates and value targets of trajectories laid end to end:
//
//	δ_t = r_t + γ·V_{t+1}·(1−done_t) − V_t
//	A_t = δ_t + γλ·(1−done_t)·A_{t+1}        returns_t = A_t + V_t
//
// rewards, values and done have one entry per step. done[t] says that step t ended its episode. last is the value of the state
// after the final step, if that step is not done. λ = 0 gives the one-step TD residual, λ = 1 the discounted return minus the
// value. Sums are in float64. It panics if the lengths differ.
//
// Source: Schulman et al. 2016, "High-Dimensional Continuous Control Using Generalized Advantage Estimation", equations 11, 12
// and 16.
func GAE(rewards, values []float32, done []bool, last float32, gamma, lambda float64) (advantages, returns []float32) {
	n := len(rewards)
	if len(values) != n || len(done) != n {
		panic(fmt.Sprintf("rl.GAE: %d rewards, %d values, %d done flags: the lengths must agree", n, len(values), len(done)))
	}
	both := make([]float32, 2*n)
	advantages, returns = both[:n:n], both[n:]
	next, advantage := float64(last), 0.0
	for t := n - 1; t >= 0; t-- {
		if done[t] {
			next, advantage = 0, 0
		}
		value := float64(values[t])
		advantage = float64(rewards[t]) + gamma*next - value + gamma*lambda*advantage
		advantages[t] = float32(advantage)
		returns[t] = float32(advantage + value)
		next = value
	}
	return advantages, returns
}

// OverlongPenalty is the penalty of a completion of length tokens (DAPO, equation 13):
//
//	0                                 length ≤ most − buffer
//	((most − buffer) − length)/buffer  between
//	−1                                length > most
//
// It panics unless 0 < buffer ≤ most.
func OverlongPenalty(length, most, buffer int) float64 {
	if buffer <= 0 || buffer > most {
		panic(fmt.Sprintf("rl.OverlongPenalty: a buffer of %d of at most %d tokens", buffer, most))
	}
	over := length - (most - buffer)
	return -min(1, max(0, float64(over)/float64(buffer)))
}

// Whiten shifts x to mean 0 and divides it by √(var + 1e-8), in place, with the population variance, as PPO does with the
// advantages of a batch. If all entries are equal the result is exactly 0: dividing would amplify the rounding error of the
// mean. A single entry stays as it is.
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

// ExplainedVariance is 1 − Var(returns − values)/Var(returns): 1 for a perfect value function, 0 for one no better than a
// constant, negative for a worse one. For equal returns, or none, it is 0. It panics if the lengths differ.
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
