package rl

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Baseline is what is subtracted from a reward to make it an advantage.
type Baseline string

const (
	BaselineNone        Baseline = "none"
	BaselineGroup       Baseline = "group"         // mean of the prompt's samples (GRPO)
	BaselineLength      Baseline = "length"        // mean of the prompt's samples, weighted by their lengths (OPO)
	BaselineLeaveOneOut Baseline = "leave_one_out" // mean of the prompt's other samples (RLOO)
	BaselineBatch       Baseline = "batch"         // mean of all samples
	BaselineMoving      Baseline = "moving"        // moving average of the rewards of earlier steps
	BaselineGreedy      Baseline = "greedy"        // reward of the prompt's greedy completion (ReMax)
)

// Scale is what an advantage is divided by.
type Scale string

const (
	ScaleNone  Scale = "none"
	ScaleGroup Scale = "group" // standard deviation of the prompt's rewards
	ScaleBatch Scale = "batch" // standard deviation of all rewards
	ScaleMean  Scale = "mean"  // mean of the prompt's rewards (MaxRL)
)

// scaleEpsilon is added to a standard deviation before it divides, as in TRL.
const scaleEpsilon = 1e-4

// Advantages turns rewards into advantages:
//
//	none, moving, greedy   r − b, with b = 0 or the prompt's given baseline
//	length                 the same, but 0 if the rewards of the prompt are equal
//	group, batch           (r − mean)/(std + 1e-4), or r − mean with ScaleNone, or (r − mean)/mean with ScaleMean
//	leave_one_out          r_i − Σ_{j≠i} r_j/(n−1)
//
// Standard deviations are unbiased. If all rewards behind a mean are equal, the advantage is exactly 0: dividing would
// amplify the rounding error of the mean. If only penalties differ within a group, advantages are not scaled: else the
// smallest penalty would count as much as a wrong answer. A NaN reward is missing: means and deviations skip it, and its own
// advantage is 0, as is that of a sample with nothing to compare with.
//
// Sources: group, Shao et al. 2024 (GRPO), equation 4, and TRL for the 1e-4; ScaleNone for it, Liu et al. 2025 (Dr. GRPO);
// leave_one_out, Ahmadian et al. 2024 (RLOO), section 4.1; greedy, Li et al. 2023 (ReMax);
// length, arXiv 2505.23585 (OPO); ScaleMean, arXiv 2602.02710 (MaxRL).
type Advantages struct {
	Baseline Baseline
	Scale    Scale
}

// Check rejects combinations that make no sense with that many samples per prompt.
func (a Advantages) Check(samples int) error {
	baselines := []Baseline{BaselineNone, BaselineGroup, BaselineLength, BaselineLeaveOneOut, BaselineBatch, BaselineMoving, BaselineGreedy}
	if !slices.Contains(baselines, a.Baseline) {
		return fmt.Errorf("baseline %q is unknown: choose %s", a.Baseline, join(baselines))
	}
	scales := []Scale{ScaleNone, ScaleGroup, ScaleBatch, ScaleMean}
	if !slices.Contains(scales, a.Scale) {
		return fmt.Errorf("advantage scale %q is unknown: choose %s", a.Scale, join(scales))
	}
	if samples < 1 {
		return fmt.Errorf("%d samples per prompt: at least 1 is needed", samples)
	}
	switch {
	case slices.Contains([]Baseline{BaselineGroup, BaselineLength, BaselineLeaveOneOut}, a.Baseline) && samples < 2:
		return fmt.Errorf("baseline %s compares the samples of a prompt: use at least 2 samples per prompt", a.Baseline)
	case a.Scale == ScaleMean && a.Baseline != BaselineGroup:
		return fmt.Errorf("baseline %s cannot be divided by the group's mean: choose baseline group, or scale none", a.Baseline)
	case a.Scale == ScaleGroup && a.Baseline != BaselineGroup:
		return fmt.Errorf("baseline %s cannot be divided by the group's standard deviation: choose baseline group, or scale none", a.Baseline)
	case a.Scale == ScaleBatch && a.Baseline != BaselineGroup && a.Baseline != BaselineBatch:
		return fmt.Errorf("baseline %s cannot be divided by the batch's standard deviation: where the rewards agree nothing bounds the result; choose scale none", a.Baseline)
	}
	return nil
}

func join[T ~string](names []T) string {
	texts := make([]string, len(names))
	for i, name := range names {
		texts[i] = string(name)
	}
	return strings.Join(texts, ", ")
}

// Of returns the advantage of each reward. groups holds the rewards of each prompt's samples with penalties, raw without.
// given has a baseline per prompt for moving, greedy and length, NaN if it is missing. The combination must have passed Check.
func (a Advantages) Of(groups, raw [][]float64, given []float64) [][]float64 {
	all, allRaw := slices.Concat(groups...), slices.Concat(raw...)
	out := make([][]float64, len(groups))
	for g, rewards := range groups {
		out[g] = make([]float64, len(rewards))
		reference, unpenalised := rewards, raw[g]
		if a.Baseline == BaselineBatch {
			reference, unpenalised = all, allRaw
		}
		mean, _, n := rewardMoments(reference)
		equal := !Differ(reference)
		for i, r := range rewards {
			switch {
			case math.IsNaN(r):
			case a.Baseline == BaselineNone:
				out[g][i] = r
			case a.Baseline == BaselineMoving || a.Baseline == BaselineGreedy || a.Baseline == BaselineLength && !equal:
				if !math.IsNaN(given[g]) {
					out[g][i] = r - given[g]
				}
			case equal:
			case a.Baseline == BaselineLeaveOneOut:
				// r − (n·mean − r)/(n−1), without the cancellation.
				out[g][i] = (r - mean) * float64(n) / float64(n-1)
			default:
				out[g][i] = r - mean
			}
		}
		if a.Scale == ScaleBatch {
			reference, unpenalised = all, allRaw
		}
		if a.Scale == ScaleNone || !Differ(unpenalised) {
			continue
		}
		divisor, _, _ := rewardMoments(unpenalised) // above 0 where rewards differ and are not negative
		if a.Scale != ScaleMean {
			_, std, _ := rewardMoments(reference)
			divisor = std + scaleEpsilon
		}
		for i := range out[g] {
			out[g][i] /= divisor
		}
	}
	return out
}

// present returns the rewards that are not missing.
func present(rewards []float64) []float64 {
	return slices.DeleteFunc(slices.Clone(rewards), math.IsNaN)
}

// Differ says whether two rewards differ, so that the group can teach something. NaN is missing.
func Differ(rewards []float64) bool {
	there := present(rewards)
	return len(there) > 0 && slices.Min(there) != slices.Max(there)
}

// rewardMoments returns the mean and the unbiased standard deviation of the n rewards that are not missing; undefined ones
// are 0.
func rewardMoments(rewards []float64) (mean, std float64, n int) {
	there := present(rewards)
	if n = len(there); n == 0 {
		return 0, 0, 0
	}
	for _, r := range there {
		mean += r
	}
	mean /= float64(n)
	for _, r := range there {
		std += (r - mean) * (r - mean)
	}
	return mean, math.Sqrt(std / float64(max(1, n-1))), n
}

// GroupStats describe the rewards of one step.
type GroupStats struct {
	Mean    float64 // over samples with a reward
	Std     float64 // unbiased, over samples with a reward
	StdErr  float64 // standard error of Mean: over groups if there are several, else over samples
	ZeroStd float64 // fraction of groups whose rewards are all equal
	Failed  int     // samples without a reward
}

// StatsOf describes the rewards of groups.
func StatsOf(groups [][]float64) GroupStats {
	all := slices.Concat(groups...)
	mean, std, n := rewardMoments(all)
	stats := GroupStats{Mean: mean, Std: std, StdErr: std / math.Sqrt(float64(max(1, n))), Failed: len(all) - n}
	flat := 0
	var means []float64
	for _, rewards := range groups {
		if !Differ(rewards) {
			flat++
		}
		if m, _, k := rewardMoments(rewards); k > 0 {
			means = append(means, m)
		}
	}
	if len(means) > 1 {
		_, between, _ := rewardMoments(means)
		stats.StdErr = between / math.Sqrt(float64(len(means)))
	}
	stats.ZeroStd = ratio(flat, len(groups))
	return stats
}

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
// rewards, values and done have one entry per step. done[t] says that step t ended its episode; the last step ends one too. λ = 0
// gives the one-step TD residual, λ = 1 the discounted return minus the value. Sums are in float64. It panics if the lengths differ.
//
// Source: Schulman et al. 2016, "High-Dimensional Continuous Control Using Generalized Advantage Estimation", equations 11, 12
// and 16.
func GAE(rewards, values []float32, done []bool, gamma, lambda float64) (advantages, returns []float32) {
	n := len(rewards)
	if len(values) != n || len(done) != n {
		panic(fmt.Sprintf("rl.GAE: %d rewards, %d values, %d done flags: the lengths must agree", n, len(values), len(done)))
	}
	both := make([]float32, 2*n)
	advantages, returns = both[:n:n], both[n:]
	next, advantage := 0.0, 0.0
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
