package torch

// #include "loader.h"
import "C"

import "fmt"

var opTokenLogProbs = &op{name: "rltrain::token_logprobs"}

// HeadOptions is how an output head turns products x into logits: c·tanh(x/c)/Temperature with soft cap c, else
// x/Temperature.
type HeadOptions struct {
	Temperature float64 // 0 = 1
	Softcap     float64 // 0 = none
}

// TokenLogProbs scores given tokens. It returns the log-softmax of hidden·weightᵀ + bias at each target, the distribution's
// entropy, and the target's rank (how many logits exceed its own). Memory does not grow with the vocabulary, and the
// backward pass of a frozen weight is one product with saved values.
// hidden [M, H] F32, only the rows that a loss reads; weight [V, H] F32, BF16 or F16; bias [V] F32 or nil;
// targets [M] in [0, V). Results are [M]; rank is int64 without a gradient.
func (s *Scope) TokenLogProbs(hidden, weight Tensor, bias *Tensor, targets []int64, o HeadOptions) (logprobs, entropy, rank Tensor) {
	// Check here, on the host: on a device the check would have to synchronise.
	vocab := s.Shape(weight)[0]
	for i, target := range targets {
		if target < 0 || target >= vocab {
			panic(&Error{Call: opTokenLogProbs.name, Text: fmt.Sprintf("target %d at position %d is outside the vocabulary of %d", target, i, vocab)})
		}
	}
	if o.Temperature == 0 {
		o.Temperature = 1
	}
	shift := none
	if bias != nil {
		shift = operand(*bias)
	}
	var results [5]C.rlt_tensor // the last two are for backward
	s.callInto(results[:], opTokenLogProbs, operand(hidden), operand(weight), shift, operand(s.Ints(targets, int64(len(targets)))),
		real64(o.Temperature), real64(o.Softcap))
	var owned [len(results)]Tensor
	for i, h := range results {
		owned[i] = s.own(h)
	}
	return owned[0], owned[1], owned[2]
}
