package rl

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Schedule is a learning-rate schedule: a pure function of the step.
type Schedule struct {
	Kind    string  // one of Schedules
	Total   int     // optimiser steps of the run
	Warmup  int     // optimiser steps of warm-up
	MinRate float64 // where cosine_with_min_lr ends, as a fraction of the peak
}

// Schedules are the kinds of schedules, named as transformers names them.
var Schedules = []string{"linear", "cosine", "constant", "constant_with_warmup", "cosine_with_min_lr"}

// NewSchedule returns a schedule over total optimiser steps. The warm-up is steps if that is above 0, else the fraction ratio
// of total, rounded up, but below 1 not all of them; constant has none.
func NewSchedule(kind string, total int, ratio float64, steps int, minRate float64) (Schedule, error) {
	if !slices.Contains(Schedules, kind) {
		return Schedule{}, fmt.Errorf("learning-rate schedule %q is unknown: choose %s", kind, strings.Join(Schedules, ", "))
	}
	if total < 0 || steps < 0 || !(ratio >= 0 && ratio <= 1) || !(minRate >= 0 && minRate <= 1) {
		return Schedule{}, fmt.Errorf("learning-rate schedule of %d steps with a warm-up of %v of them, or %d, down to %v: the fractions must be in [0,1] and the numbers not negative", total, ratio, steps, minRate)
	}
	if steps == 0 {
		steps = int(math.Ceil(ratio * float64(total)))
		if ratio < 1 {
			steps = max(0, min(steps, total-1)) // a run of one update has a rate
		}
	}
	if kind == "constant" {
		steps = 0
	}
	return Schedule{Kind: kind, Total: total, Warmup: steps, MinRate: minRate}, nil
}

// At returns the factor in [0,1] of the peak learning rate for the update after step finished updates:
//
//	warm-up               step/Warmup                        if step < Warmup
//	linear                (Total−step)/(Total−Warmup)        then, 0 from Total
//	cosine                c = ½(1+cos π·(step−Warmup)/(Total−Warmup))
//	cosine_with_min_lr    c·(1−MinRate) + MinRate
//	constant, constant_with_warmup    1
//
// These are the factors of transformers, in whose schedules the first update of a warm-up has a rate of 0 too, except that
// here the cosine stays at its end from Total.
func (s Schedule) At(step int) float64 {
	if step < s.Warmup {
		return float64(step) / float64(s.Warmup)
	}
	done := 1.0
	if step < s.Total {
		done = float64(step-s.Warmup) / float64(s.Total-s.Warmup)
	}
	switch s.Kind {
	case "linear":
		return 1 - done
	case "cosine":
		return 0.5 * (1 + math.Cos(math.Pi*done))
	case "cosine_with_min_lr":
		return 0.5*(1+math.Cos(math.Pi*done))*(1-s.MinRate) + s.MinRate
	}
	return 1
}
