// Package evaluate evaluates policies on held-out data: classifiers, completions, preferences, reward models.
package evaluate

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/report"
)

// Plan says how a policy is evaluated during training.
type Plan struct {
	// Run evaluates the policy after so many steps. It ignores the end of ctx, except before the first step.
	Run      func(ctx context.Context, steps int) (Scores, error)
	Rows     int  // held-out rows or problems; 0 = unknown
	Every    int  // steps between evaluations; 0 = only after the last
	First    bool // also before the first step
	KeepBest bool // training ends with the weights of the best evaluation
	// Metric is the figure of Scores.Row that picks the best, without its prefix eval_; "" = Scores.Score.
	Metric string
}

// Scores is the result of an evaluation.
type Scores struct {
	Name  string     // of Score, such as "accuracy"
	Score float64    // picks the best; higher is better
	Error float64    // standard error of Score; 0 = unknown, or small
	Row   report.Row // for the metrics, without the step
	Line  func(best int) string
	Value any  // for train.Result; encodes to JSON
	Done  bool // the policy is good enough: training ends
}

// lessIsBetter are figures of evaluations for which lower is better.
var lessIsBetter = []string{"loss", "perplexity", "entropy", "ece", "brier"}

// Describe names a score that Pick returned.
func (e *Plan) Describe(score float64, name string) string {
	if name = cmp.Or(e.Metric, name, "score"); slices.Contains(lessIsBetter, name) {
		score = -score
	}
	return fmt.Sprintf("%s %.4g", name, score)
}

// Pick returns what picks the best, and its standard error, 0 if it is unknown.
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
		return 0, 0, fmt.Errorf("metric %q is not a figure of the evaluations; choose %s", e.Metric, strings.Join(known, ", "))
	}
	low, _ := s.Row["eval_"+e.Metric+"_low"].(float64)
	high, _ := s.Row["eval_"+e.Metric+"_high"].(float64)
	standardError = rl.Interval{low, high}.StandardError()
	if slices.Contains(lessIsBetter, e.Metric) {
		return -value, standardError, nil
	}
	return value, standardError, nil
}
