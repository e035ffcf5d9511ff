package tinker

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// lossFunction is a loss of log π of a target: its value, and −∂/∂log π, by which the log-probability is pushed up. q is log π
// when it was sampled, a the advantage.
type lossFunction struct {
	config map[string]float64 // its settings with their defaults
	term   func(l, q, a float64, c map[string]float64) (loss, weight float64)
}

// losses are those of the API that are a function of the log-probabilities of single tokens. cross_entropy has weights in place
// of advantages. low and high are bounds of the ratio π/q.
var losses = map[string]lossFunction{
	"cross_entropy": {nil, func(l, _, w float64, _ map[string]float64) (float64, float64) { return -w * l, w }},
	"importance_sampling": {nil, func(l, q, a float64, _ map[string]float64) (float64, float64) {
		r := math.Exp(l - q)
		return -r * a, r * a
	}},
	"ppo": {clipping, func(l, q, a float64, c map[string]float64) (float64, float64) {
		r := math.Exp(l - q)
		clipped := min(max(r, c[clipLow]), c[clipHigh])
		if r*a <= clipped*a {
			return -r * a, r * a
		}
		return -clipped * a, 0
	}},
	"cispo": {clipping, func(l, q, a float64, c map[string]float64) (float64, float64) {
		r := min(max(math.Exp(l-q), c[clipLow]), c[clipHigh])
		return -r * l * a, r * a
	}},
	"dro": {map[string]float64{"beta": 0.05}, func(l, q, a float64, c map[string]float64) (float64, float64) {
		return -(l*a - c["beta"]/2*(l-q)*(l-q)), a - c["beta"]*(l-q)
	}},
}

// Names of settings that are also inputs: of all tokens, or one per token.
const (
	clipLow  = "clip_low_threshold"
	clipHigh = "clip_high_threshold"
)

var clipping = map[string]float64{clipLow: 0.8, clipHigh: 1.2}

// Loss is a loss of an example.
type Loss struct {
	function  lossFunction
	sampled   []float64            // log π when the tokens were sampled; nil for cross_entropy
	advantage []float64            // or weight
	config    map[string]float64   // of all tokens
	own       map[string][]float64 // of each token
	mask      []float64            // 0 = a target without a loss, whose log π nobody reads; nil = all count
}

// NewLoss reads the inputs of a loss. Errors name the field.
func NewLoss(name string, config map[string]float64, d Datum) (*Loss, error) {
	f, ok := losses[name]
	if !ok {
		return nil, fmt.Errorf("loss_fn %.40q is not one of %s", name, strings.Join(slices.Sorted(maps.Keys(losses)), ", "))
	}
	x := &Loss{function: f, config: maps.Clone(f.config), own: map[string][]float64{}}
	for name, value := range config {
		if _, ok := f.config[name]; !ok {
			return nil, fmt.Errorf("loss_fn_config %.40q is not supported", name)
		}
		x.config[name] = value
	}
	var err error
	for _, input := range slices.Sorted(maps.Keys(d.Inputs)) {
		into := new([]float64)
		_, setting := f.config[input]
		switch {
		case input == targets:
			continue
		case name == "cross_entropy" && input == "weights", name != "cross_entropy" && input == "advantages":
			into = &x.advantage
		case name != "cross_entropy" && input == "logprobs":
			into = &x.sampled
		case input == "mask":
			into = &x.mask
		case !setting:
			return nil, fmt.Errorf("loss_fn_inputs %.40q is not supported by %s", input, name)
		}
		if *into, err = d.named(input); err != nil {
			return nil, err
		}
		for i, value := range *into {
			if math.IsNaN(value) || math.IsInf(value, 0) {
				return nil, fmt.Errorf("%s: %v at index %d is not finite", input, value, i)
			}
		}
		if setting {
			x.own[input] = *into
		}
	}
	if x.mask != nil && !slices.ContainsFunc(x.mask, func(m float64) bool { return m != 0 }) {
		return nil, fmt.Errorf("mask: every number is 0; leave the example out")
	}
	switch {
	case name != "cross_entropy" && (x.sampled == nil || x.advantage == nil):
		return nil, fmt.Errorf("%s needs logprobs and advantages", name)
	case x.advantage == nil:
		x.advantage = slices.Repeat([]float64{1}, len(d.Inputs[targets].Data))
	}
	return x, nil
}

// Reads says whether the loss reads log π of the i-th target.
func (x *Loss) Reads(i int) bool { return x.mask == nil || x.mask[i] != 0 }

// At is the sum of the loss over some targets with log-probabilities l, and −∂/∂l of it.
func (x *Loss) At(targets []int, l []float32) (loss float64, weights []float32) {
	weights = make([]float32, len(l))
	config := maps.Clone(x.config)
	for k, i := range targets {
		q := 0.0
		if x.sampled != nil {
			q = x.sampled[i]
		}
		for name, values := range x.own {
			config[name] = values[i]
		}
		if x.advantage[i] == 0 && x.function.config["beta"] == 0 {
			continue // 0 · ∞ is no number
		}
		term, weight := x.function.term(float64(l[k]), q, x.advantage[i], config)
		loss += term
		weights[k] = float32(weight)
	}
	return loss, weights
}
