package rl

import (
	"fmt"
	"math"
	"slices"
)

// Difference is one figure of two prediction sets on the same rows.
type Difference struct {
	A          float64  `json:"a"`
	B          float64  `json:"b"`
	Difference float64  `json:"difference"` // B − A
	Interval   Interval `json:"interval"`   // 95 % interval of the difference
}

// Comparison puts two prediction sets on the same rows side by side. A higher accuracy
// and F1 and a lower calibration error and Brier score are better.
type Comparison struct {
	N        int        `json:"n"`
	Accuracy Difference `json:"accuracy"`
	F1Macro  Difference `json:"f1_macro"`
	ECE      Difference `json:"ece"`
	Brier    Difference `json:"brier"`
}

// Compare scores probabilities a and b, both of shape [rows][classes], against the same
// truth and gives the paired percentile bootstrap interval of each difference: 2,000
// resamples of the rows, each applied to both sets, from a fixed stream (Efron and
// Tibshirani 1993, chapter 13), stretched to hold the difference itself where it does not.
// Figures are those of Evaluate. Without rows every figure is 0. It panics when shapes or indices do not fit.
func Compare(classes int, truth []int, a, b [][]float32) Comparison {
	return CompareRuns(classes, truth, [][][]float32{a}, [][][]float32{b})
}

// CompareRuns is Compare of training runs of several seeds: b[i], of shape [rows][classes], belongs to a[i], and
// every figure is the mean over the pairs. A resample draws the same rows for all runs, since what one run finds
// hard the others do too; the interval speaks of other rows, not of other seeds.
func CompareRuns(classes int, truth []int, a, b [][][]float32) Comparison {
	if len(a) != len(b) {
		panic(fmt.Sprintf("rl.CompareRuns: %d runs against %d", len(a), len(b)))
	}
	for i := range a {
		checkPredictions("rl.Compare", classes, truth, a[i])
		checkPredictions("rl.Compare", classes, truth, b[i])
	}
	if len(truth) == 0 || len(a) == 0 {
		return Comparison{}
	}
	runsA, runsB := newRuns(classes, truth, a), newRuns(classes, truth, b)
	for i := range truth {
		runsA.add(i)
		runsB.add(i)
	}
	wholeA, wholeB := runsA.mean(), runsB.mean()

	accuracy, f1, ece, brier := draws(), draws(), draws(), draws()
	rng := Stream(bootstrapSeed, 2)
	for range resamples {
		runsA.reset()
		runsB.reset()
		for range truth {
			i := rng.IntN(len(truth))
			runsA.add(i)
			runsB.add(i)
		}
		sa, sb := runsA.mean(), runsB.mean()
		accuracy = append(accuracy, sb.accuracy-sa.accuracy)
		f1 = append(f1, sb.f1Macro-sa.f1Macro)
		ece = append(ece, sb.ece-sa.ece)
		brier = append(brier, sb.brier-sa.brier)
	}
	return Comparison{
		N:        len(truth),
		Accuracy: newDifference(wholeA.accuracy, wholeB.accuracy, accuracy),
		F1Macro:  newDifference(wholeA.f1Macro, wholeB.f1Macro, f1),
		ECE:      newDifference(wholeA.ece, wholeB.ece, ece),
		Brier:    newDifference(wholeA.brier, wholeB.brier, brier),
	}
}

// CompareMeans gives the paired percentile bootstrap interval of the difference of two means over the same rows. A row
// where either is NaN is left out; without rows every figure is 0. It panics when the lengths differ.
func CompareMeans(a, b []float64) Difference {
	if len(a) != len(b) {
		panic(fmt.Sprintf("rl.CompareMeans: %d rows against %d", len(a), len(b)))
	}
	var rows [][2]float64
	var whole [2]float64
	for i := range a {
		if !math.IsNaN(a[i]) && !math.IsNaN(b[i]) {
			rows = append(rows, [2]float64{a[i], b[i]})
			whole[0], whole[1] = whole[0]+a[i], whole[1]+b[i]
		}
	}
	if len(rows) == 0 {
		return Difference{}
	}
	n := float64(len(rows))
	differences := draws()
	rng := Stream(bootstrapSeed, 3)
	for range resamples {
		sum := 0.0
		for range rows {
			row := rows[rng.IntN(len(rows))]
			sum += row[1] - row[0]
		}
		differences = append(differences, sum/n)
	}
	return newDifference(whole[0]/n, whole[1]/n, differences)
}

// MeanEstimate returns the mean of rows with its 95 % interval: Wilson's if every row is 0 or 1, else the percentile
// bootstrap over rows. A bootstrap of 0 of 38 would be [0, 0]; Wilson's interval is [0, 0.092]. Without rows it is 0.
func MeanEstimate(rows []float64) Estimate {
	if len(rows) == 0 {
		return Estimate{}
	}
	n, whole, binary := float64(len(rows)), 0.0, true
	for _, x := range rows {
		whole += x
		binary = binary && (x == 0 || x == 1)
	}
	if binary {
		return Estimate{whole / n, Wilson(int(whole), len(rows))}
	}
	means := draws()
	rng := Stream(bootstrapSeed, 4)
	for range resamples {
		sum := 0.0
		for range rows {
			sum += rows[rng.IntN(len(rows))]
		}
		means = append(means, sum/n)
	}
	return Estimate{whole / n, interval(means, whole/n)}
}

func newDifference(a, b float64, draws []float64) Difference {
	return Difference{a, b, b - a, interval(draws, b-a)}
}

// runs tallies the same rows of several prediction sets.
type runs struct {
	rows    [][]scoredRow
	tallies []*tally
}

func newRuns(classes int, truth []int, probs [][][]float32) *runs {
	r := &runs{}
	for _, p := range probs {
		r.rows = append(r.rows, scoreRows(truth, p))
		r.tallies = append(r.tallies, newTally(classes))
	}
	return r
}

func (r *runs) reset() {
	for _, t := range r.tallies {
		t.reset()
	}
}

func (r *runs) add(row int) {
	for i, t := range r.tallies {
		t.add(&r.rows[i][row])
	}
}

func (r *runs) mean() scores {
	var mean scores
	n := float64(len(r.tallies))
	for _, t := range r.tallies {
		s := t.scores()
		mean.accuracy += s.accuracy / n
		mean.f1Macro += s.f1Macro / n
		mean.ece += s.ece / n
		mean.brier += s.brier / n
	}
	return mean
}

// bootstrapIntervals fills all intervals but that of accuracy, which has a closed form; whole are the figures of all
// rows.
func bootstrapIntervals(classes int, rows []scoredRow, whole scores) Intervals {
	f1Macro, f1Weighted, ece, brier := draws(), draws(), draws(), draws()
	sample := newTally(classes)
	rng := Stream(bootstrapSeed, 1)
	for range resamples {
		sample.reset()
		for range rows {
			sample.add(&rows[rng.IntN(len(rows))])
		}
		s := sample.scores()
		f1Macro = append(f1Macro, s.f1Macro)
		f1Weighted = append(f1Weighted, s.f1Weighted)
		ece = append(ece, s.ece)
		brier = append(brier, s.brier)
	}
	return Intervals{
		F1Macro: interval(f1Macro, whole.f1Macro), F1Weighted: interval(f1Weighted, whole.f1Weighted),
		ECE: interval(ece, whole.ece), Brier: interval(brier, whole.brier),
	}
}

func draws() []float64 { return make([]float64, 0, resamples) }

// interval is the percentile interval of draws, stretched to estimate where that lies outside. Resamples of a
// calibration error are mostly above it: each bin's miss counts with its size, and a resample has more noise to miss by.
func interval(draws []float64, estimate float64) Interval {
	p := percentiles(draws, 0.025, 0.975)
	return Interval{min(p[0], estimate), max(p[1], estimate)}
}

// percentiles returns the given quantiles of x, interpolated linearly between order
// statistics (numpy's default). x must not be empty and keeps its order.
func percentiles(x []float64, quantiles ...float64) []float64 {
	sorted := slices.Sorted(slices.Values(x))
	out := make([]float64, len(quantiles))
	for i, q := range quantiles {
		position := q * float64(len(sorted)-1)
		lower := int(math.Floor(position))
		upper := min(lower+1, len(sorted)-1)
		out[i] = sorted[lower] + (position-float64(lower))*(sorted[upper]-sorted[lower])
	}
	return out
}
