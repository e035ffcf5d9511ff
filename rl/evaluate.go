package rl

import (
	"fmt"
	"math"
	"slices"
)

// Interval is a 95 % confidence interval, lower end first.
type Interval [2]float64

// StandardError is the standard error that the interval implies.
func (i Interval) StandardError() float64 { return (i[1] - i[0]) / (2 * z) }

// z is the half width of a 95 % interval in standard errors.
const z = 1.959963984540054

// ClassScores are the metrics of one label.
type ClassScores struct {
	Label     string  `json:"label"`
	Precision float64 `json:"precision"` // 0 if the label was never predicted
	Recall    float64 `json:"recall"`    // 0 if the label never occurs
	F1        float64 `json:"f1"`        // 0 if neither
	Support   int     `json:"support"`   // rows with the label
}

// Intervals holds 95 % intervals: Wilson's for accuracy, percentile bootstrap over rows for the others. Each contains its
// metric: if the percentiles leave it out, as those of a calibration error can, the nearer end is the metric.
type Intervals struct {
	Accuracy   Interval `json:"accuracy"`
	F1Macro    Interval `json:"f1_macro"`
	F1Weighted Interval `json:"f1_weighted"`
	ECE        Interval `json:"ece"`
	Brier      Interval `json:"brier"`
}

// Evaluation measures a classifier's probabilities.
type Evaluation struct {
	N        int     `json:"n"`
	Accuracy float64 `json:"accuracy"`
	// F1Macro is the mean of F1 over the labels that occur in the truth or in the predictions, as in scikit-learn's f1_score
	// with zero_division=0 and its default labels. Other labels have F1 0 in Classes.
	F1Macro    float64 `json:"f1_macro"`
	F1Weighted float64 `json:"f1_weighted"` // mean of F1 weighted by support
	// ECE is the expected calibration error of the predicted label's probability, in [0,1], over 15 bins (lo, hi] of equal
	// width (Guo et al. 2017, equation 3).
	ECE float64 `json:"ece"`
	// Brier is Σ_k (p_k − 1[k = truth])² averaged over rows, in [0,2] (Brier 1950).
	Brier     float64       `json:"brier"`
	Classes   []ClassScores `json:"classes"`
	Confusion [][]int       `json:"confusion"` // Confusion[truth][predicted], rows counted
	Intervals Intervals     `json:"intervals"`
	// Latency percentiles of one prediction in milliseconds; nil if not measured.
	LatencyP50 *float64 `json:"latency_p50_ms,omitempty"`
	LatencyP95 *float64 `json:"latency_p95_ms,omitempty"`
}

// resamples is the number of bootstrap resamples behind every interval.
const resamples = 2000

// bootstrapSeed is fixed, so equal predictions have equal intervals.
const bootstrapSeed = 0x626f6f74

// Evaluate scores probs [rows][labels] against truth, an index into labels per row. The prediction is the label with the
// highest probability, the first of equal ones. Without rows all metrics are 0. It panics if shapes or indices do not fit.
func Evaluate(labels []string, truth []int, probs [][]float32) Evaluation {
	checkPredictions("rl.Evaluate", len(labels), truth, probs)
	rows := scoreRows(truth, probs)
	all := newTally(len(labels))
	confusion := make([][]int, len(labels))
	for class := range confusion {
		confusion[class] = make([]int, len(labels))
	}
	for i := range rows {
		all.add(&rows[i])
		confusion[rows[i].truth][rows[i].predicted]++
	}
	s := all.scores()
	e := Evaluation{
		N: len(rows), Accuracy: s.accuracy, F1Macro: s.f1Macro, F1Weighted: s.f1Weighted, ECE: s.ece, Brier: s.brier,
		Classes: make([]ClassScores, len(labels)), Confusion: confusion,
	}
	hits := 0
	for class, label := range labels {
		hits += all.hits[class]
		e.Classes[class] = ClassScores{
			Label:     label,
			Precision: ratio(all.hits[class], all.assigned[class]),
			Recall:    ratio(all.hits[class], all.support[class]),
			F1:        all.f1(class),
			Support:   all.support[class],
		}
	}
	if len(rows) > 0 {
		e.Intervals = bootstrapIntervals(len(labels), rows, s)
		e.Intervals.Accuracy = Wilson(hits, len(rows))
	}
	return e
}

// SetLatency records the median and the 95th percentile of ms, the milliseconds of each prediction, if there are any.
func (e *Evaluation) SetLatency(ms []float64) {
	if len(ms) == 0 {
		return
	}
	p := percentiles(ms, 0.5, 0.95)
	e.LatencyP50, e.LatencyP95 = &p[0], &p[1]
}

// Wilson is the 95 % score interval of hits in n > 0 trials (Wilson 1927).
func Wilson(hits, n int) Interval { return wilson(float64(hits), float64(n)) }

// wilson also takes halves, of ties.
func wilson(hits, m float64) Interval {
	p := hits / m
	center := (p + z*z/(2*m)) / (1 + z*z/m)
	half := z / (1 + z*z/m) * math.Sqrt(p*(1-p)/m+z*z/(4*m*m))
	return Interval{max(0, center-half), min(1, center+half)}
}

func ratio(a, b int) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

func checkPredictions(caller string, classes int, truth []int, probs [][]float32) {
	if len(truth) != len(probs) {
		panic(fmt.Sprintf("%s: %d rows of truth, %d of probabilities", caller, len(truth), len(probs)))
	}
	for i, p := range probs {
		if len(p) != classes || truth[i] < 0 || truth[i] >= classes {
			panic(fmt.Sprintf("%s: row %d has %d probabilities and label index %d; there are %d labels", caller, i, len(p), truth[i], classes))
		}
	}
}

// ECEBins is the number of equal-width confidence bins of the calibration error.
const ECEBins = 15

// ConfidenceBin returns the bin (b/15, (b+1)/15] of a confidence; 0 is in the lowest bin. Edges are rounded to float32, the
// precision of the probabilities, so a confidence on an edge falls into the bin below it.
func ConfidenceBin(confidence float32) int {
	bin := 0
	for bin < ECEBins-1 && confidence > float32(float64(bin+1)/ECEBins) {
		bin++
	}
	return bin
}

// brierScore is Σ_k (probs_k − 1[k = truth])², in [0,2] for a distribution (Brier 1950).
func brierScore(probs []float32, truth int) float64 {
	sum := 0.0
	for k, p := range probs {
		d := float64(p)
		if k == truth {
			d--
		}
		sum += d * d
	}
	return sum
}

// scoredRow is what all metrics need of a prediction: a bootstrap resample costs a few additions per row.
type scoredRow struct {
	truth, predicted int
	bin              int
	gap              float64 // 1[predicted = truth] − confidence
	brier            float64
}

// scoreRows scores the predictions: the label with the highest probability, the first of equal ones.
func scoreRows(truth []int, probs [][]float32) []scoredRow {
	rows := make([]scoredRow, len(truth))
	for i, p := range probs {
		best := slices.Index(p, slices.Max(p))
		row := scoredRow{truth: truth[i], predicted: best, bin: ConfidenceBin(p[best]), brier: brierScore(p, truth[i])}
		row.gap = -float64(p[best])
		if best == truth[i] {
			row.gap++
		}
		rows[i] = row
	}
	return rows
}

// tally accumulates scored rows; its metrics are those of the rows added since reset.
type tally struct {
	n                       int
	hits, support, assigned []int // by class: true positives, true rows, predicted rows
	gap                     [ECEBins]float64
	brier                   float64
}

func newTally(classes int) *tally {
	counts := make([]int, 3*classes)
	return &tally{hits: counts[:classes], support: counts[classes : 2*classes], assigned: counts[2*classes:]}
}

func (t *tally) reset() {
	clear(t.hits)
	clear(t.support)
	clear(t.assigned)
	t.n, t.gap, t.brier = 0, [ECEBins]float64{}, 0
}

func (t *tally) add(row *scoredRow) {
	t.n++
	t.support[row.truth]++
	t.assigned[row.predicted]++
	if row.truth == row.predicted {
		t.hits[row.truth]++
	}
	t.gap[row.bin] += row.gap
	t.brier += row.brier
}

// scores are the metrics that have an interval.
type scores struct{ accuracy, f1Macro, f1Weighted, ece, brier float64 }

// f1 is 2TP/(predicted + true), 0 for a class with neither.
func (t *tally) f1(class int) float64 {
	if d := t.support[class] + t.assigned[class]; d > 0 {
		return 2 * float64(t.hits[class]) / float64(d)
	}
	return 0
}

func (t *tally) scores() scores {
	if t.n == 0 {
		return scores{}
	}
	var s scores
	n, present, hits := float64(t.n), 0, 0
	for class := range t.hits {
		hits += t.hits[class]
		f1 := t.f1(class)
		if t.support[class]+t.assigned[class] > 0 {
			present++
		}
		s.f1Macro += f1
		s.f1Weighted += f1 * float64(t.support[class]) / n
	}
	s.accuracy = float64(hits) / n
	s.f1Macro /= float64(present)
	for _, gap := range t.gap {
		// |accuracy − confidence| of a bin, weighted by its fraction of the rows, is |sum of the gaps|/n.
		s.ece += max(gap, -gap) / n
	}
	s.brier = t.brier / n
	return s
}
