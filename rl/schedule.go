package rl

import (
	"fmt"
	"math"
)

// Schedule is a learning-rate schedule with linear warm-up: a pure function of the step.
type Schedule struct {
	Kind   string // "linear", "cosine" or "constant"
	Total  int    // optimiser steps of the run
	Warmup int    // optimiser steps of warm-up
}

// NewSchedule returns a schedule over total optimiser steps. The warm-up is steps if that is above 0, else the fraction ratio
// of total, rounded up.
func NewSchedule(kind string, total int, ratio float64, steps int) (Schedule, error) {
	switch kind {
	case "linear", "cosine", "constant":
	default:
		return Schedule{}, fmt.Errorf("learning-rate schedule %q is unknown: choose linear, cosine or constant", kind)
	}
	if total < 0 || steps < 0 || !(ratio >= 0 && ratio <= 1) {
		return Schedule{}, fmt.Errorf("learning-rate schedule of %d steps with a warm-up of %v of them, or %d: the share must be in [0,1] and the numbers not negative", total, ratio, steps)
	}
	if steps == 0 {
		steps = int(math.Ceil(ratio * float64(total)))
	}
	return Schedule{Kind: kind, Total: total, Warmup: steps}, nil
}

// At returns the factor in [0,1] of the peak learning rate for the update after step finished updates:
//
//	warm-up    (step+1)/(Warmup+1)                  if step < Warmup
//	linear     (Total−step)/(Total−Warmup)          then, 0 from Total
//	cosine     ½(1+cos π·(step−Warmup)/(Total−Warmup))
//	constant   1
//
// These are the factors of transformers' get_{linear,cosine,constant}_schedule_with_warmup, except that its warm-up,
// step/Warmup, wastes the first update on a rate of 0, and that here the cosine stays at 0 from Total.
func (s Schedule) At(step int) float64 {
	if step < s.Warmup {
		return float64(step+1) / float64(s.Warmup+1)
	}
	if s.Kind == "constant" {
		return 1
	}
	if step >= s.Total {
		return 0
	}
	done := float64(step-s.Warmup) / float64(s.Total-s.Warmup)
	if s.Kind == "linear" {
		return 1 - done
	}
	return 0.5 * (1 + math.Cos(math.Pi*done))
}
