package reward

// f1Counts holds the running counts behind the f1 reward and turns them into a reward
// for one choice.
//
// Macro F1 is a figure of a whole set, (1/C)·Σ_c F1_c with
//
//	F1_c = 2·TP_c / D_c        D_c = 2·TP_c + FP_c + FN_c = (predicted as c) + (truly c)
//
// so one choice is rewarded by what it changes. Let an example of truth y come in with
// weight ε and be predicted as a. Its truth adds ε to D_y whatever is predicted: the
// same for all a, so no policy gradient sees it. The prediction adds ε to D_a, and
// 2ε·1[a=y] to 2·TP_a. By the quotient rule
//
//	d F1_a / dε = (2·1[a=y]·D_a − 2·TP_a) / D_a² = (2·1[a=y] − F1_a) / D_a
//
// Macro F1 changes by 1/C of that. Scaled by the number N of examples, so that the size
// of a reward does not shrink as counts grow:
//
//	r(a|y) = (2·1[a=y] − F1_a) / D_a · N / C
//
// A right answer on a rare label is worth more than one on a common label, and a wrong
// answer costs little where F1_a is low or D_a is high: unlike accuracy, the reward
// pays for guessing rare labels when they are likely enough.
//
// Counts fade, since the policy that made the old ones is gone: each new example
// multiplies them by 1 − 1/M with M = 200·C, so about the last 200 examples a label
// count. Each label keeps one prior example, truly and predicted, never right. With
// nothing else counted F1_a = 0, D_a = 2 and N = C, and the reward is 1[a=y]: it starts
// as accuracy. The prior does not fade; it keeps D_a ≥ 2 for a label not seen for long.
type f1Counts struct {
	truePositive, predicted, truth []float64
	keep                           float64
}

const (
	f1Memory = 200 // examples a label
	f1Prior  = 1   // examples a label
)

func newF1Counts(labels int) *f1Counts {
	return &f1Counts{
		truePositive: make([]float64, labels), predicted: make([]float64, labels), truth: make([]float64, labels),
		keep: 1 - 1/float64(f1Memory*labels),
	}
}

// reward is r(action|truth) at the present counts.
func (f *f1Counts) reward(action, truth int) float64 {
	labels := float64(len(f.truth))
	n := f1Prior * labels
	for _, count := range f.truth {
		n += count
	}
	d := 2*f1Prior + f.predicted[action] + f.truth[action]
	gain := -2 * f.truePositive[action] / d
	if action == truth {
		gain += 2
	}
	return gain / d * n / labels
}

// observe counts an example of the given truth that was predicted as action.
func (f *f1Counts) observe(action, truth int) {
	f.fade()
	f.truth[truth]++
	f.predicted[action]++
	if action == truth {
		f.truePositive[truth]++
	}
}

func (f *f1Counts) fade() {
	for c := range f.truth {
		f.truth[c] *= f.keep
		f.predicted[c] *= f.keep
		f.truePositive[c] *= f.keep
	}
}
