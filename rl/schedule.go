package rl

import (
	"fmt"
	"math"
)

// Schedule is a learning-rate schedule with linear warm-up: a pure function of the
// step, so it has no state to save.
type Schedule struct {
	Kind   string // "linear", "cosine" or "constant"
	Total  int    // optimiser steps of the whole run
	Warmup int    // optimiser steps of warm-up
}

// NewSchedule checks and returns a schedule over total optimiser steps. A warmup below
// 1 is a share of total, rounded up; from 1 on it is a number of steps and must be
// whole.
func NewSchedule(kind string, total int, warmup float64) (Schedule, error) {
	switch kind {
	case "linear", "cosine", "constant":
	default:
		return Schedule{}, fmt.Errorf("learning-rate schedule %q is unknown: choose linear, cosine or constant", kind)
	}
	if total < 0 {
		return Schedule{}, fmt.Errorf("learning-rate schedule: %d steps in total: must not be negative", total)
	}
	if !(warmup >= 0) || warmup > math.MaxInt32 || warmup >= 1 && warmup != math.Trunc(warmup) {
		return Schedule{}, fmt.Errorf("learning-rate schedule: warm-up %v: give a share of the run in [0,1) or a whole number of steps", warmup)
	}
	if warmup < 1 {
		warmup = math.Ceil(warmup * float64(total))
	}
	return Schedule{Kind: kind, Total: total, Warmup: int(warmup)}, nil
}

// At returns the factor in [0,1] to multiply the peak learning rate by for the update
// that follows step finished updates (the first update is step 0; step is never negative).
//
//	warm-up    step/Warmup                          while step < Warmup
//	linear     (Total−step)/(Total−Warmup)          after it, 0 from Total on
//	cosine     ½(1+cos π·(step−Warmup)/(Total−Warmup))
//	constant   1
//
// These are the factors of transformers' get_{linear,cosine,constant}_schedule_with_warmup
// (half a cosine wave), except that past Total the cosine stays at 0 where theirs rises again.
func (s Schedule) At(step int) float64 {
	if step < s.Warmup {
		return float64(step) / float64(s.Warmup)
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
