package intent

import (
	"fmt"
	"math"
)

// Rewards is a list of named, weighted rewards for a label policy: a policy whose
// action is one of a fixed list of labels. The total is Σ weight·reward.
//
// Two kinds exist. A sampled reward needs the chosen label only; Score gives it and a
// policy gradient learns from it. A reward that reads the policy's own probabilities
// changes when they do, which a policy gradient does not see; for those, Expected gives
// the exact objective over all labels and its gradient. ReadsProbs says which one to
// call.
//
// A reward that is not finite has failed. It is counted and makes the sample's total
// missing: leaving it out of the sum would score the sample on another scale, and 0
// would be a made-up judgement.
//
// A Rewards keeps counts and statistics, and is not safe for concurrent use.
type Rewards struct {
	labels  []string
	rewards []*reward
	f1      *f1Counts // nil unless a reward is f1

	probs, gradient []float64
	scratch         *evaluation
}

type rewardKind int

const (
	accuracyReward rewardKind = iota
	f1Reward
	calibrationReward
	exprReward
)

type reward struct {
	name   string
	kind   rewardKind
	weight float64
	expr   *expression // of an exprReward
	seen   welford
	failed int
}

func (r *reward) readsProbs() bool {
	return r.kind == calibrationReward || r.kind == exprReward && r.expr.root.reads
}

// ReadsProbs says whether a reward reads the policy's probabilities, so that Expected
// must be used and Score must not. It is known from the specification alone.
func (r *Rewards) ReadsProbs() bool {
	for _, rw := range r.rewards {
		if rw.readsProbs() {
			return true
		}
	}
	return false
}

// Score returns the total reward for choosing label index action where truth is right.
//
//	accuracy   1[action = truth]
//	f1         the first-order change of macro F1, see f1Counts
//	expr:…     the value of the expression
//
// ok is false when a reward failed: the sample has no reward and must be left out. The
// call counts as one more prediction in the running F1 counts and in the statistics.
// It panics when ReadsProbs.
func (r *Rewards) Score(action, truth int) (total float32, ok bool) {
	if r.ReadsProbs() {
		panic("intent.Rewards.Score: a reward reads the policy's probabilities; use Expected")
	}
	sum, ok := 0.0, true
	for _, rw := range r.rewards {
		var value float64
		switch rw.kind {
		case accuracyReward:
			if action == truth {
				value = 1
			}
		case f1Reward:
			value = r.f1.reward(action, truth)
		case exprReward:
			value = r.scratch.value(rw.expr, action, truth, nil)
		}
		if !finite(float64(float32(rw.weight * value))) {
			rw.failed++
			ok = false
			continue
		}
		rw.seen.add(value)
		sum += rw.weight * value
	}
	if r.f1 != nil {
		r.f1.observe(action, truth)
	}
	total = float32(sum)
	if !ok || !finite(float64(total)) {
		return 0, false
	}
	return total, true
}

// Expected returns the objective of one sample, the reward expected over the policy's
// own choice, and its exact gradient with respect to the probabilities:
//
//	J(π) = Σ_a π_a·R_a(π)          grad_k = ∂J/∂π_k = R_k + Σ_a π_a·∂R_a/∂π_k
//
// probs is π over the labels and grad, of the same length, is overwritten. The
// probabilities count as free variables: chaining grad through a softmax brings in that
// they sum to 1. To be maximised.
//
// The parts of a weighted sum:
//
//	accuracy, f1   R_a does not depend on π: J = Σ_a π_a·r(a)
//	calibration    R = 1 − ½·Σ_k (π_k − 1[k = truth])², whatever a is: the Brier score
//	               turned into a reward in [0,1]. It is a proper scoring rule: on average
//	               over the truths of an input it is highest at their true frequencies
//	expr:…         by reverse-mode differentiation of the expression
//
// ok is false when the value or the gradient of a reward is not finite; J and grad are
// then 0 and the sample must be left out. The call counts as one more prediction,
// spread over the labels by π, in the running F1 counts and in the statistics. It
// panics when the lengths do not fit the labels.
func (r *Rewards) Expected(truth int, probs []float32, grad []float64) (objective float64, ok bool) {
	if len(probs) != len(r.labels) || len(grad) != len(r.labels) {
		panic(fmt.Sprintf("intent.Rewards.Expected: %d probabilities and %d gradients for %d labels", len(probs), len(grad), len(r.labels)))
	}
	for k, p := range probs {
		r.probs[k] = float64(p)
	}
	objective, ok = r.expected(truth, r.probs, grad)
	if r.f1 != nil {
		r.f1.observeExpected(r.probs, truth)
	}
	return objective, ok
}

func (r *Rewards) expected(truth int, probs, grad []float64) (objective float64, ok bool) {
	clear(grad)
	ok = true
	for _, rw := range r.rewards {
		value, good := r.expectedOf(rw, truth, probs)
		if !good {
			rw.failed++
			ok = false
			continue
		}
		rw.seen.add(value)
		objective += rw.weight * value
		for k, g := range r.gradient {
			grad[k] += rw.weight * g
		}
	}
	if !ok {
		clear(grad)
		return 0, false
	}
	return objective, true
}

// expectedOf returns Σ_a π_a·R_a of one reward and leaves its gradient in r.gradient.
func (r *Rewards) expectedOf(rw *reward, truth int, probs []float64) (value float64, ok bool) {
	grad := r.gradient
	clear(grad)
	switch rw.kind {
	case accuracyReward:
		value, grad[truth] = probs[truth], 1
	case f1Reward:
		for a, p := range probs {
			grad[a] = r.f1.reward(a, truth)
			value += p * grad[a]
		}
	case calibrationReward:
		value = expectedCalibration(truth, probs, grad)
	case exprReward:
		value = r.scratch.expected(rw.expr, truth, probs, grad)
	}
	ok = finite(rw.weight * value)
	for _, g := range grad {
		ok = ok && finite(rw.weight*g)
	}
	return value, ok
}

// expectedCalibration: R is the same for every a, so J = S·R with S = Σ_a π_a and
// ∂J/∂π_k = R − S·(π_k − 1[k = truth]).
func expectedCalibration(truth int, probs, grad []float64) float64 {
	total, distance := 0.0, 0.0
	for k, p := range probs {
		total += p
		if k == truth {
			p--
		}
		grad[k] = p
		distance += p * p
	}
	reward := 1 - distance/2
	for k, d := range grad {
		grad[k] = reward - total*d
	}
	return total * reward
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
