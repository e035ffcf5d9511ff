package rl

import (
	"fmt"
	"math"
	"slices"
)

// Difference compares a metric of two prediction sets on the same rows.
type Difference struct {
	A          float64  `json:"a"`
	B          float64  `json:"b"`
	Difference float64  `json:"difference"` // B − A
	Interval   Interval `json:"interval"`   // 95 % interval of the difference
}

// Comparison compares two prediction sets on the same rows. Higher accuracy and F1, and lower ECE and Brier score, are better.
type Comparison struct {
	N        int        `json:"n"`
	Accuracy Difference `json:"accuracy"`
	F1Macro  Difference `json:"f1_macro"`
	ECE      Difference `json:"ece"`
	Brier    Difference `json:"brier"`
}

// Compare scores probabilities a and b, [rows][classes], against the same truth, with paired percentile bootstrap intervals of
// the differences: 2,000 resamples of the rows, each applied to both sets, from a fixed stream (Efron and Tibshirani 1993,
// chapter 13), extended to contain the difference. Metrics are those of Evaluate; without rows they are 0. It panics if shapes
// or indices do not fit.
func Compare(classes int, truth []int, a, b [][]float32) Comparison {
	return CompareRuns(classes, truth, [][][]float32{a}, [][][]float32{b})
}

// CompareRuns is Compare for training runs with several seeds: b[i] belongs to a[i], and metrics are means over the pairs. A
// resample has the same rows for all runs, because rows are hard for all of them: the interval is about other rows, not seeds.
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

	var samplesA, samplesB []scores
	rng := Stream(bootstrapSeed, 2)
	for range resamples {
		runsA.reset()
		runsB.reset()
		for range truth {
			i := rng.IntN(len(truth))
			runsA.add(i)
			runsB.add(i)
		}
		samplesA, samplesB = append(samplesA, runsA.mean()), append(samplesB, runsB.mean())
	}
	difference := func(of func(scores) float64) Difference {
		values := make([]float64, resamples)
		for i := range values {
			values[i] = of(samplesB[i]) - of(samplesA[i])
		}
		return newDifference(of(wholeA), of(wholeB), values)
	}
	return Comparison{
		N:        len(truth),
		Accuracy: difference(func(s scores) float64 { return s.accuracy }),
		F1Macro:  difference(func(s scores) float64 { return s.f1Macro }),
		ECE:      difference(func(s scores) float64 { return s.ece }),
		Brier:    difference(func(s scores) float64 { return s.brier }),
	}
}

// CompareMeans compares two means over the same rows by a paired percentile bootstrap. It skips rows with NaN; without rows
// everything is 0. It panics if the lengths differ.
func CompareMeans(a, b []float64) Difference {
	if len(a) != len(b) {
		panic(fmt.Sprintf("rl.CompareMeans: %d rows against %d", len(a), len(b)))
	}
	var rows []float64 // differences
	sumA, sumB := 0.0, 0.0
	for i := range a {
		if !math.IsNaN(a[i]) && !math.IsNaN(b[i]) {
			rows = append(rows, b[i]-a[i])
			sumA, sumB = sumA+a[i], sumB+b[i]
		}
	}
	if len(rows) == 0 {
		return Difference{}
	}
	n := float64(len(rows))
	return newDifference(sumA/n, sumB/n, resampledMeans(3, rows))
}

// resampledMeans returns the means of bootstrap resamples of rows.
func resampledMeans(stream uint64, rows []float64) []float64 {
	means := make([]float64, resamples)
	rng := Stream(bootstrapSeed, stream)
	for i := range means {
		sum := 0.0
		for range rows {
			sum += rows[rng.IntN(len(rows))]
		}
		means[i] = sum / float64(len(rows))
	}
	return means
}

// MeanEstimate returns the mean of rows with its 95 % interval, the percentile bootstrap over rows. Without rows it is 0.
func MeanEstimate(rows []float64) Estimate {
	if len(rows) == 0 {
		return Estimate{}
	}
	whole := 0.0
	for _, x := range rows {
		whole += x
	}
	mean := whole / float64(len(rows))
	return Estimate{mean, interval(resampledMeans(4, rows), mean)}
}

// RatioEstimate returns Σ sums / Σ counts with its 95 % interval, the percentile bootstrap over rows, such as a loss per token
// over texts. Without counts it is 0.
func RatioEstimate(sums, counts []float64) Estimate {
	ratio := func(row func(i int) int) float64 {
		sum, count := 0.0, 0.0
		for i := range sums {
			k := row(i)
			sum, count = sum+sums[k], count+counts[k]
		}
		if count == 0 {
			return 0
		}
		return sum / count
	}
	whole := ratio(func(i int) int { return i })
	if len(sums) == 0 {
		return Estimate{}
	}
	values := make([]float64, resamples)
	rng := Stream(bootstrapSeed, 5)
	for i := range values {
		values[i] = ratio(func(int) int { return rng.IntN(len(sums)) })
	}
	return Estimate{whole, interval(values, whole)}
}

// RateEstimate is MeanEstimate of rows in [0,1]. Its interval is Wilson's if every row is 0, ½ (a tie) or 1, or if all are
// equal: a bootstrap of 0 of 38 would be [0, 0], Wilson's interval is [0, 0.092].
func RateEstimate(rows []float64) Estimate {
	hits, votes, same := 0.0, true, true
	for _, x := range rows {
		hits += x
		votes = votes && (x == 0 || x == 0.5 || x == 1)
		same = same && x == rows[0]
	}
	if n := float64(len(rows)); n > 0 && (votes || same) {
		return Estimate{hits / n, wilson(hits, n)}
	}
	return MeanEstimate(rows)
}

func newDifference(a, b float64, values []float64) Difference {
	return Difference{a, b, b - a, interval(values, b-a)}
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

// bootstrapIntervals returns all intervals except that of accuracy, which has a closed form; whole are the metrics of all rows.
func bootstrapIntervals(classes int, rows []scoredRow, whole scores) Intervals {
	var resampled []scores
	sample := newTally(classes)
	rng := Stream(bootstrapSeed, 1)
	for range resamples {
		sample.reset()
		for range rows {
			sample.add(&rows[rng.IntN(len(rows))])
		}
		resampled = append(resampled, sample.scores())
	}
	of := func(of func(scores) float64) Interval {
		values := make([]float64, len(resampled))
		for i, s := range resampled {
			values[i] = of(s)
		}
		return interval(values, of(whole))
	}
	return Intervals{
		F1Macro: of(func(s scores) float64 { return s.f1Macro }), F1Weighted: of(func(s scores) float64 { return s.f1Weighted }),
		ECE: of(func(s scores) float64 { return s.ece }), Brier: of(func(s scores) float64 { return s.brier }),
	}
}

// interval is the percentile interval of values, extended to contain estimate. Resampled calibration errors are mostly above
// it, because a resample is noisier.
func interval(values []float64, estimate float64) Interval {
	p := percentiles(values, 0.025, 0.975)
	return Interval{min(p[0], estimate), max(p[1], estimate)}
}

// percentiles returns quantiles of a non-empty x, interpolated linearly between order statistics (numpy's default).
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
