package rl

import (
	"cmp"
	"errors"
	"slices"
)

// OutOfScope measures how well rejecting predictions below a threshold finds texts that have none of a classifier's labels.
type OutOfScope struct {
	Label     string  `json:"label"`     // of such rows in the data
	Threshold float64 `json:"threshold"` // texts with a lower top probability are rejected
	Chosen    string  `json:"chosen_on"` // split that chose the threshold; "" if it was given
	N         int     `json:"n"`         // rows out of scope
	InScope   int     `json:"in_scope"`  // other rows
	// Recall is the fraction of out-of-scope rows that are rejected, FalseAlarms that of the others.
	Recall      float64     `json:"recall"`
	FalseAlarms float64     `json:"false_alarms"`
	Intervals   [2]Interval `json:"intervals"` // Wilson's, of Recall and FalseAlarms
	// Accuracy is the fraction of in-scope rows that get their label and are not rejected.
	Accuracy float64 `json:"in_scope_accuracy"`
	// AUROC is the probability that an in-scope row has a higher top probability than an out-of-scope one; ties count half.
	AUROC float64 `json:"auroc"`
}

// Sureness is the confidence of a prediction.
type Sureness struct {
	P     float32 // of the top label
	Right bool
}

// SurenessOf returns the confidence of each row; truth is an index into its probabilities, -1 without a label.
func SurenessOf(truth []int, probs [][]float32) []Sureness {
	rows := make([]Sureness, len(probs))
	for i, p := range probs {
		best := slices.Max(p)
		rows[i] = Sureness{P: best, Right: slices.Index(p, best) == truth[i]}
	}
	return rows
}

// errNoScope reports that one kind of rows is missing.
var errNoScope = errors.New("rows in scope and rows out of scope are both needed")

// RejectionThreshold is the lowest threshold that maximises the mean of in-scope accuracy and out-of-scope recall. It is midway
// between the probabilities of two rows, so that rounding does not change their side.
func RejectionThreshold(in, out []Sureness) (float64, error) {
	if len(in) == 0 || len(out) == 0 {
		return 0, errNoScope
	}
	type row struct {
		p    float32
		gain float64 // of rejecting it
	}
	var rows []row
	for _, x := range in {
		gain := 0.0
		if x.Right {
			gain = -1 / float64(len(in))
		}
		rows = append(rows, row{x.P, gain})
	}
	for _, x := range out {
		rows = append(rows, row{x.P, 1 / float64(len(out))})
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(a.p, b.p) })
	threshold, best, sum := 0.0, 0.0, 0.0
	for i, x := range rows {
		sum += x.gain
		next := float64(1)
		if i+1 < len(rows) {
			next = float64(rows[i+1].p)
		}
		if next > float64(x.p) && sum > best+1e-12 {
			threshold, best = (float64(x.p)+next)/2, sum
		}
	}
	return threshold, nil
}

// MeasureOutOfScope measures a threshold. The caller fills in Label and Chosen.
func MeasureOutOfScope(threshold float64, in, out []Sureness) (OutOfScope, error) {
	if len(in) == 0 || len(out) == 0 {
		return OutOfScope{}, errNoScope
	}
	o := OutOfScope{Threshold: threshold, N: len(out), InScope: len(in)}
	caught, alarms, right := 0, 0, 0
	for _, x := range out {
		if float64(x.P) < threshold {
			caught++
		}
	}
	for _, x := range in {
		switch {
		case float64(x.P) < threshold:
			alarms++
		case x.Right:
			right++
		}
	}
	o.Recall, o.FalseAlarms, o.Accuracy = ratio(caught, o.N), ratio(alarms, o.InScope), ratio(right, o.InScope)
	o.Intervals = [2]Interval{Wilson(caught, o.N), Wilson(alarms, o.InScope)}
	o.AUROC = auroc(in, out)
	return o, nil
}

// auroc ranks all rows (Mann and Whitney 1947).
func auroc(in, out []Sureness) float64 {
	type row struct {
		p  float32
		in bool
	}
	var rows []row
	for _, x := range in {
		rows = append(rows, row{x.P, true})
	}
	for _, x := range out {
		rows = append(rows, row{x.P, false})
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Compare(a.p, b.p) })
	below, pairs := 0.0, 0.0 // out-of-scope rows with a lower probability
	for from := 0; from < len(rows); {
		to, ins, outs := from, 0.0, 0.0
		for ; to < len(rows) && rows[to].p == rows[from].p; to++ {
			if rows[to].in {
				ins++
			} else {
				outs++
			}
		}
		pairs += ins * (below + outs/2)
		below += outs
		from = to
	}
	return pairs / (float64(len(in)) * float64(len(out)))
}

// Covered is the accuracy on the most confident rows.
type Covered struct {
	Coverage  float64 `json:"coverage"`  // fraction of rows
	Threshold float64 `json:"threshold"` // their lowest top probability
	N         int     `json:"n"`
	Accuracy  float64 `json:"accuracy"`
}

// Selective returns the accuracy at decreasing coverage. Rows with the same probability stay together.
func Selective(rows []Sureness) []Covered {
	if len(rows) == 0 {
		return nil
	}
	sorted := slices.Clone(rows)
	slices.SortStableFunc(sorted, func(a, b Sureness) int { return cmp.Compare(b.P, a.P) })
	var all []Covered
	for _, share := range []float64{1, 0.95, 0.9, 0.8, 0.5} {
		n := int(share*float64(len(sorted)) + 0.5)
		for n < len(sorted) && sorted[n].P == sorted[n-1].P {
			n++
		}
		right := 0
		for _, x := range sorted[:n] {
			if x.Right {
				right++
			}
		}
		c := Covered{Coverage: ratio(n, len(sorted)), Threshold: float64(sorted[n-1].P), N: n, Accuracy: ratio(right, n)}
		if len(all) == 0 || all[len(all)-1].N != n {
			all = append(all, c)
		}
	}
	return all
}
