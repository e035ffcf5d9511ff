package evaluate

import (
	"context"
	"fmt"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/report"
	"maps"
	"slices"
	"strings"
)

// Evaluation is how a policy is judged while it is trained.
type Plan struct {
	// Run judges the policy after so many steps. It is not left half done: it ends with an error only where it fails,
	// or where ctx ends before the first step.
	Run      func(ctx context.Context, steps int) (Scores, error)
	Every    int  // steps between evaluations; 0 = only after the last
	First    bool // judge the policy before the first step too
	KeepBest bool // training ends with the weights of the best evaluation
	// Metric picks the best by a figure of the row, its name without eval_; "" = by Scores.Score.
	Metric string
}

// Scores is what an evaluation found.
type Scores struct {
	Score float64    // what the best is picked by; more is better
	Error float64    // standard error of Score; 0 where it is not known, or moves little with what happens to be held out
	Row   report.Row // for the metrics, without the step
	Line  func(best int) string
	Value any  // for Result; encodes to JSON
	Done  bool // the policy is good enough: training ends
}

// lessIsBetter are figures of evaluations that fall where a policy gets better.
var lessIsBetter = []string{"loss", "perplexity", "entropy", "ece", "brier"}

// Pick is what the best is picked by, and its standard error, 0 where it is not known.
func (e *Plan) Pick(s Scores) (score, standardError float64, err error) {
	if e.Metric == "" {
		return s.Score, s.Error, nil
	}
	value, ok := s.Row["eval_"+e.Metric].(float64)
	if !ok {
		var known []string
		for _, name := range slices.Sorted(maps.Keys(s.Row)) {
			if short, is := strings.CutPrefix(name, "eval_"); is {
				known = append(known, short)
			}
		}
		return 0, 0, fmt.Errorf("the evaluations have no figure %q to pick the best by: choose %s", e.Metric, strings.Join(known, ", "))
	}
	low, _ := s.Row["eval_"+e.Metric+"_low"].(float64)
	high, _ := s.Row["eval_"+e.Metric+"_high"].(float64)
	standardError = rl.Interval{low, high}.StandardError()
	if slices.Contains(lessIsBetter, e.Metric) {
		return -value, standardError, nil
	}
	return value, standardError, nil
}
