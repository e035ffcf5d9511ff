// Package decisions trains and measures decision models: policies whose action is an option of a question.
package decisions

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/reward"
)

// Rewards are rewards of answers to questions, each of which has options of its own.
type Rewards struct {
	cases []envs.Decision
	of    []*reward.Labels // of each case
}

// NewRewards reads a list of rewards for cases. They must be able to score all options: programs and models cannot.
func NewRewards(spec string, cases []envs.Decision) (*Rewards, error) {
	costs, err := reward.Costs(spec)
	if err != nil {
		return nil, err
	}
	r := &Rewards{cases: cases, of: make([]*reward.Labels, len(cases))}
	known, options := map[string]*reward.Labels{}, map[string]bool{}
	for i, d := range cases {
		key := strings.Join(d.Question.Options, "\x00")
		one, met := known[key]
		if !met {
			if one, err = reward.ParseLabels(spec, d.Question.Options, reward.Options{}); err != nil {
				return nil, err
			}
			if !one.Enumerable() {
				return nil, fmt.Errorf("%s: a program or model scores one option only; use accuracy, calibration, brier, ranked, cost or expr", strings.Join(one.Names(), ","))
			}
			known[key] = one
			for _, option := range d.Question.Options {
				options[option] = true
			}
		}
		r.of[i] = one
	}
	for name, m := range costs {
		for _, option := range m.Names() {
			if !options[option] {
				return nil, fmt.Errorf("%s: %q is an option of no question", name, option)
			}
		}
	}
	return r, nil
}

// Names are the rewards in list order.
func (r *Rewards) Names() []string { return r.of[0].Names() }

// ReadsProbs reports whether a reward reads the policy's probabilities.
func (r *Rewards) ReadsProbs() bool { return r.of[0].ReadsProbs() }

// Objective is the reward of case i expected over its answer, of which target has the probabilities, and over the policy's
// choice, of which probs has them, and its gradient with respect to probs. It is linear in target, which need not sum to 1.
func (r *Rewards) Objective(i int, target []float64, probs []float32) (value float64, grad []float64) {
	grad = make([]float64, len(probs))
	for truth, weight := range target {
		if weight == 0 {
			continue
		}
		scores, slope := r.of[i].Expected([]int{truth}, probs)
		value += weight * scores.Total[0]
		for k, g := range slope {
			grad[k] += weight * g
		}
	}
	return value, grad
}

// Of is the reward of an option, without rewards that read probabilities.
func (r *Rewards) Of(i, option int) float64 {
	sure := make([]float32, len(r.cases[i].Question.Options))
	sure[option] = 1
	value, _ := r.Objective(i, r.cases[i].Target, sure)
	return value
}

// least is the probability of a choice below which its weight in Observed grows no more.
const least = 0.05

// Observed estimates the target from the reward of one chosen option a, with the policy's own belief where nothing was seen:
//
//	t_k = π_k + 1[k = a]·(r − π_k)/μ_a
//
// Its mean over choices a ~ μ is the target, whatever π is (the doubly robust estimate of Dudík et al. 2011), so that an
// objective that is linear in the target has the right mean and gradient.
func Observed(f envs.Feedback, probs []float32) []float64 {
	target := make([]float64, len(probs))
	for k, p := range probs {
		target[k] = float64(p)
	}
	target[f.Chosen] += (f.Reward - target[f.Chosen]) / max(f.Probability, least)
	return target
}

// seen is the target of a sample: the answer, or an estimate from what one option got.
func (r *Rewards) seen(i int, feedback *envs.Feedback, probs []float32) []float64 {
	d := &r.cases[i]
	switch {
	case feedback != nil:
		return Observed(*feedback, probs)
	case d.Target != nil:
		return d.Target
	}
	return Observed(*d.Feedback, probs)
}

// Logged tells whether a case has only the reward of an option that was chosen in the past.
func Logged(cases []envs.Decision) bool {
	return slices.ContainsFunc(cases, func(d envs.Decision) bool { return d.Target == nil })
}
