package rl

import "slices"

// eceBins is the number of equal-width confidence bins of the calibration error.
const eceBins = 15

// confidenceBin returns the bin (b/15, (b+1)/15] of a confidence; 0 is in the lowest bin. Edges are rounded to float32, the
// precision of the probabilities, so a confidence on an edge falls into the bin below it.
func confidenceBin(confidence float32) int {
	bin := 0
	for bin < eceBins-1 && confidence > float32(float64(bin+1)/eceBins) {
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
		row := scoredRow{truth: truth[i], predicted: best, bin: confidenceBin(p[best]), brier: brierScore(p, truth[i])}
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
	gap                     [eceBins]float64
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
	t.n, t.gap, t.brier = 0, [eceBins]float64{}, 0
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
