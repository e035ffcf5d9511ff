package algo

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"rltrain/rl"
	"rltrain/rl/report"
)

// Hooks connect an algorithm to what surrounds it. The zero value trains in silence and saves nothing.
type Hooks struct {
	// Log takes the lines for people.
	Log func(format string, args ...any) error
	// Row takes the lines for programs: one update or evaluation each.
	Row func(row report.Row) error
	// LogEvery is the number of updates between lines and rows; 0 = 1.
	LogEvery int
	// Progress is told after each update.
	Progress func(done, total int, note string)
	// Now times updates; without it rows carry no times.
	Now func() time.Time

	// SaveEvery is the number of updates between checkpoints; 0 = none.
	SaveEvery int
	// Save makes a checkpoint of the state after step updates, in a folder that write fills.
	Save func(step int, write func(dir string) error) error
	// Resume is the folder of a checkpoint to continue from; "" = from the start.
	Resume string
	// Dump keeps the rows of a batch that broke training and returns where.
	Dump func(name string, v any) (path string, err error)
}

// ErrStopped is returned by an algorithm whose context ended. It has saved a checkpoint, if it can.
var ErrStopped = errors.New("stopped before the end")

func (h Hooks) log(format string, args ...any) error {
	if h.Log == nil {
		return nil
	}
	return h.Log(format, args...)
}

func (h Hooks) row(row report.Row) error {
	if h.Row == nil {
		return nil
	}
	return h.Row(row)
}

func (h Hooks) logDue(step int) bool { return step%max(1, h.LogEvery) == 0 }
func (h Hooks) saveDue(step int) bool {
	return h.Save != nil && h.SaveEvery > 0 && step%h.SaveEvery == 0
}

func (h Hooks) progress(done, total int, format string, args ...any) {
	if h.Progress != nil {
		h.Progress(done, total, fmt.Sprintf(format, args...))
	}
}

func (h Hooks) now() time.Time {
	if h.Now == nil {
		return time.Time{}
	}
	return h.Now()
}

// broken explains a batch that broke training, with its rows in a file where there is room for one.
func (h Hooks) broken(step int, indices []int, details map[string]any, cause error) error {
	if h.Dump != nil {
		details["step"], details["rows"], details["cause"] = step, indices, cause.Error()
		if path, err := h.Dump("nonfinite.json", details); err == nil {
			return fmt.Errorf("update %d: %w; its rows are in %s; a lower learning rate is the usual cure", step, cause, path)
		}
	}
	return fmt.Errorf("update %d (training rows %v): %w; a lower learning rate is the usual cure", step, indices, cause)
}

// Best metrics that a stage can be judged by.
const (
	MetricLoss       = "loss"
	MetricAccuracy   = "accuracy"
	MetricF1Macro    = "f1_macro"
	MetricF1Weighted = "f1_weighted"
	MetricBrier      = "brier"
	MetricECE        = "ece"
	MetricReward     = "reward" // the reward expected over the policy's own choice
)

// Validation is a policy measured on rows that it does not train on.
type Validation struct {
	rl.Evaluation
	Loss   float64 // mean cross-entropy in nats
	Reward float64 // mean expected reward; reinforcement stage only
}

// score is the named figure, turned so that more is better.
func (v Validation) score(metric string) (float64, error) {
	switch metric {
	case MetricLoss:
		return -v.Loss, nil
	case MetricAccuracy:
		return v.Accuracy, nil
	case MetricF1Macro:
		return v.F1Macro, nil
	case MetricF1Weighted:
		return v.F1Weighted, nil
	case MetricBrier:
		return -v.Brier, nil
	case MetricECE:
		return -v.ECE, nil
	case MetricReward:
		return v.Reward, nil
	}
	return 0, fmt.Errorf("unknown metric %q", metric)
}

// betterThan says whether v is ahead of w by the named figure.
func (v Validation) betterThan(w Validation, metric string) (bool, error) {
	now, err := v.score(metric)
	if err != nil {
		return false, err
	}
	before, err := w.score(metric)
	return now > before, err
}

// validate measures the policy without a reward, and returns what it predicted. It is not left half done: a
// stop is acted on where a checkpoint can be made.
func (p *LabelPolicy) validate(ctx context.Context, validation Examples) (Validation, [][]float32, error) {
	probs, err := p.Probs(context.WithoutCancel(ctx), validation.IDs)
	if err != nil {
		return Validation{}, nil, err
	}
	return Validation{Evaluation: rl.Evaluate(p.Labels, validation.Labels, probs), Loss: crossEntropy(validation.Labels, probs)}, probs, nil
}

func (v Validation) row(into report.Row) report.Row {
	into["eval_accuracy"], into["eval_f1_macro"], into["eval_f1_weighted"] = v.Accuracy, v.F1Macro, v.F1Weighted
	into["eval_brier"], into["eval_ece"], into["eval_loss"] = v.Brier, v.ECE, v.Loss
	return into
}

// crossEntropy is the mean of −log π(label). A probability that underflowed counts as the smallest one.
func crossEntropy(labels []int, probs [][]float32) float64 {
	sum := 0.0
	for i, y := range labels {
		sum -= math.Log(math.Max(float64(probs[i][y]), math.SmallestNonzeroFloat32))
	}
	return sum / float64(max(1, len(labels)))
}
