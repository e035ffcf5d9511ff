package rl

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Baseline says what is subtracted from a reward to make it an advantage.
type Baseline string

const (
	BaselineNone        Baseline = "none"
	BaselineGroup       Baseline = "group"         // the mean of the prompt's samples (GRPO)
	BaselineLeaveOneOut Baseline = "leave_one_out" // the mean of the prompt's other samples (RLOO)
	BaselineBatch       Baseline = "batch"         // the mean of all samples
	BaselineMoving      Baseline = "moving"        // a moving average of the rewards of earlier steps
	BaselineGreedy      Baseline = "greedy"        // the reward of the prompt's greedy answer (ReMax)
)

// Scale says what an advantage is divided by.
type Scale string

const (
	ScaleNone  Scale = "none"
	ScaleGroup Scale = "group" // the standard deviation of the prompt's rewards
	ScaleBatch Scale = "batch" // the standard deviation of all rewards
)

// scaleEpsilon is added to a standard deviation before it divides, as in TRL.
const scaleEpsilon = 1e-4

// Advantages turns rewards into advantages:
//
//	none, moving, greedy   r − b, with b 0 or as given for the prompt
//	group, batch           (r − mean)/(std + 1e-4), or r − mean with ScaleNone
//	leave_one_out          r_i − Σ_{j≠i} r_j/(n−1)
//
// Standard deviations are unbiased. Where all rewards that a mean is taken over are
// equal, the advantage is exactly 0; computing it would divide the rounding error of
// the mean. Where penalties alone tell the rewards of a group apart, their difference
// stays as it is: divided by its own deviation, the least penalty would count as much
// as a wrong answer. A reward that is NaN is missing: it takes no part in means and deviations,
// and its own advantage is 0. So is that of a sample left without anything to be
// compared with.
//
// Sources: group, Shao et al. 2024 (GRPO), equation 4, and TRL for the 1e-4; ScaleNone
// for it, Liu et al. 2025 (Dr. GRPO); leave_one_out, Ahmadian et al. 2024 (RLOO),
// section 4.1; greedy, Li et al. 2023 (ReMax).
type Advantages struct {
	Baseline Baseline
	Scale    Scale
}

// Check says whether the combination makes sense with that many samples a prompt.
func (a Advantages) Check(samples int) error {
	baselines := []Baseline{BaselineNone, BaselineGroup, BaselineLeaveOneOut, BaselineBatch, BaselineMoving, BaselineGreedy}
	if !slices.Contains(baselines, a.Baseline) {
		return fmt.Errorf("baseline %q is unknown: choose %s", a.Baseline, join(baselines))
	}
	scales := []Scale{ScaleNone, ScaleGroup, ScaleBatch}
	if !slices.Contains(scales, a.Scale) {
		return fmt.Errorf("advantage scale %q is unknown: choose %s", a.Scale, join(scales))
	}
	if samples < 1 {
		return fmt.Errorf("%d samples a prompt: at least 1 is needed", samples)
	}
	switch {
	case (a.Baseline == BaselineGroup || a.Baseline == BaselineLeaveOneOut) && samples < 2:
		return fmt.Errorf("baseline %s compares the samples of a prompt: take at least 2 samples a prompt", a.Baseline)
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

// Of returns the advantage of each reward. groups holds the rewards of each prompt's
// samples with penalties, raw without; given is one baseline a prompt for moving and
// greedy, where NaN is a missing one, and nil for the others. The combination must have
// passed Check.
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
			case a.Baseline == BaselineMoving || a.Baseline == BaselineGreedy:
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
		_, std, _ := rewardMoments(reference)
		for i := range out[g] {
			out[g][i] /= std + scaleEpsilon
		}
	}
	return out
}

// Differ says whether at least two rewards are there that are not equal: whether a
// group has anything to teach. NaN is missing.
func Differ(rewards []float64) bool {
	first := math.NaN()
	for _, r := range rewards {
		switch {
		case math.IsNaN(r):
		case math.IsNaN(first):
			first = r
		case r != first:
			return true
		}
	}
	return false
}

// rewardMoments are the mean and the unbiased standard deviation of the n rewards that
// are there; both are 0 where they are not defined.
func rewardMoments(rewards []float64) (mean, std float64, n int) {
	for _, r := range rewards {
		if !math.IsNaN(r) {
			mean += r
			n++
		}
	}
	if n == 0 {
		return 0, 0, 0
	}
	mean /= float64(n)
	if n == 1 {
		return mean, 0, n
	}
	sum := 0.0
	for _, r := range rewards {
		if !math.IsNaN(r) {
			sum += (r - mean) * (r - mean)
		}
	}
	return mean, math.Sqrt(sum / float64(n-1)), n
}

// GroupStats describe the rewards of one step.
type GroupStats struct {
	Mean    float64 // over the samples judged
	Std     float64 // unbiased, over the samples judged
	StdErr  float64 // standard error of Mean: over groups if there are several, else over samples
	ZeroStd float64 // share of groups whose rewards do not differ
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
