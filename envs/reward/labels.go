package reward

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/program"
)

// Labels is a list of rewards for a label policy: a policy whose action is one of a fixed
// list of labels.
//
// Two kinds of rewards exist. A sampled reward needs the chosen label only: Score gives it
// and a policy gradient learns from it. A reward that reads the policy's own probabilities
// changes when they do, which a policy gradient does not see: Expected gives the exact
// objective over all labels and its gradient. ReadsProbs says which of the two to call.
//
// Judging changes nothing: between two calls of Observe, which counts a rollout for f1,
// rewards stay the same functions, so a rollout can be looked at again in each epoch of an
// update, and a validation needs no care. A Labels is not safe for concurrent use.
type Labels struct {
	labels  []string
	pieces  []piece
	rewards []labelReward // of the pieces
	f1      *f1Counts     // nil unless a reward is f1
	scratch evaluation
}

type labelReward struct {
	readsProbs bool
	value      func(action, truth int) float64
	// expected adds the gradient to grad, which is 0 before; nil where the labels cannot be
	// enumerated.
	expected func(truth int, probs, grad []float64) float64
	program  *program.Program
	critic   textReward // a model
}

// chosen says whether the reward judges the label that was chosen, and no other.
func (r labelReward) chosen() bool { return r.program != nil || r.critic != nil }

// Choice is a label that a policy chose for a text.
type Choice struct {
	Text          string // only programs see it
	Action, Truth int    // indices of the labels
}

// ParseLabels reads a list of rewards, see the package's description. The names are
//
//	accuracy      1 for the right label, else 0
//	f1            the first-order change of macro F1, see [Labels.Observe]
//	calibration   a proper scoring rule of the probabilities, see [Labels.Expected]
//
// EXPR is written in the language of github.com/expr-lang/expr, restricted to what can be
// differentiated, and yields a number or a condition, which counts as 1 or 0. It knows
//
//	correct      1 when the label scored is the true one, else 0; also a condition
//	confidence   the policy's probability of the label scored
//	entropy      the entropy of the policy's probabilities, nats
//	probs[…]     the probability of a label, by index, name, or label and predicted
//	predicted    the label scored; for == and != and in
//	label        the true label; likewise
//	+ - * / ** ^   abs exp log max min pow sqrt   max(probs) min(probs)
//	c ? a : b    if c { a } else { b }   and or not && || ! == != < <= > >= in
//
// A comparison of probabilities jumps and so has no derivative: it is an error, as is
// everything else outside this list; max, min and abs bend instead. At their kinks the
// derivative is that of the first argument that attains the value, and 0 for abs.
//
// A program or a model judges the label that was chosen, so it cannot stand beside a reward that
// reads probabilities. A program has to exist, and is started by the first Score; a model is opened.
//
// Errors name the piece and, in an expression, the column.
func ParseLabels(spec string, labels []string, o Options) (*Labels, error) {
	if len(labels) == 0 {
		return nil, errors.New("rewards need at least one label")
	}
	timeout, err := o.timeout()
	if err != nil {
		return nil, err
	}
	r := &Labels{labels: slices.Clone(labels)}
	if r.pieces, err = parseList(spec, o, []string{"accuracy", "calibration", "f1"}); err != nil {
		return nil, err
	}
	for _, p := range r.pieces {
		var judge labelReward
		switch {
		case p.kind == kindExpr:
			judge, err = r.expression(p.body)
		case p.kind == kindCmd:
			judge.program, err = program.New(p.body, timeout)
		case p.kind == kindModel:
			judge.critic, err = o.critic(p.body)
		case p.kind == kindRubric:
			err = errors.New("a rubric is for what language models write, not for labels")
		default:
			judge = r.builtIn(p.name)
		}
		if err != nil {
			return nil, fmt.Errorf("reward %s: %w", hintQuote(p.name), err)
		}
		r.rewards = append(r.rewards, judge)
	}
	if r.ReadsProbs() && !r.Enumerable() {
		return nil, errors.New("a program or a model judges the label that was chosen, a reward that reads probabilities (calibration, confidence, entropy, probs) all of them: the two cannot be in one list")
	}
	return r, nil
}

func (r *Labels) builtIn(name string) labelReward {
	switch name {
	case "accuracy":
		return labelReward{
			value: func(action, truth int) float64 { return truthValue(action == truth) },
			expected: func(truth int, probs, grad []float64) float64 {
				grad[truth] = 1
				return probs[truth]
			},
		}
	case "f1":
		r.f1 = newF1Counts(len(r.labels))
		return labelReward{value: r.f1.reward, expected: func(truth int, probs, grad []float64) (sum float64) {
			for a, p := range probs {
				grad[a] = r.f1.reward(a, truth)
				sum += p * grad[a]
			}
			return sum
		}}
	default:
		return labelReward{readsProbs: true, expected: expectedCalibration}
	}
}

func (r *Labels) expression(source string) (labelReward, error) {
	x, err := compileDifferentiable(source, r.labels)
	if err != nil {
		return labelReward{}, err
	}
	r.scratch.values = make([]float64, max(x.nodes, len(r.scratch.values)))
	return labelReward{
		readsProbs: x.root.reads,
		value:      func(action, truth int) float64 { return r.scratch.value(x, action, truth, nil) },
		expected: func(truth int, probs, grad []float64) float64 {
			return r.scratch.expected(x, truth, probs, grad)
		},
	}, nil
}

// Names are the rewards' names, in the order of the list.
func (r *Labels) Names() []string { return names(r.pieces) }

// ReadsProbs says whether a reward reads the policy's probabilities, so that Expected must
// be used and Score must not. It is known from the list alone.
func (r *Labels) ReadsProbs() bool {
	return slices.ContainsFunc(r.rewards, func(judge labelReward) bool { return judge.readsProbs })
}

// Enumerable says whether Expected can be used: no reward is a program or a model.
func (r *Labels) Enumerable() bool { return !slices.ContainsFunc(r.rewards, labelReward.chosen) }

// Score judges choices; see [Scores] for what failed. The only error is that of ctx. It
// panics when ReadsProbs.
func (r *Labels) Score(ctx context.Context, choices []Choice) (Scores, error) {
	if r.ReadsProbs() {
		panic("reward.Labels.Score: a reward reads the policy's probabilities; use Expected")
	}
	said := make([]judged, len(r.rewards))
	var wait sync.WaitGroup
	for j, judge := range r.rewards {
		if judge.program != nil {
			wait.Go(func() { said[j] = ask(ctx, judge.program, len(choices), r.question(choices)) })
			continue
		}
		if judge.critic != nil {
			wait.Go(func() { said[j] = judge.critic.judge(ctx, r.completions(choices), 1) })
			continue
		}
		said[j] = newJudged(len(choices))
		for i, c := range choices {
			said[j].values[i] = judge.value(c.Action, c.Truth)
		}
	}
	wait.Wait()
	if err := ctx.Err(); err != nil {
		return Scores{}, err
	}
	return weigh(r.pieces, said, len(choices)), nil
}

// completions are the choices as a model sees them: the label is what was written.
func (r *Labels) completions(choices []Choice) []envs.Completion {
	all := make([]envs.Completion, len(choices))
	for i, c := range choices {
		label := r.labels[c.Action]
		all[i] = envs.Completion{Observation: envs.Observation{Text: c.Text}, Text: label, Action: envs.Action{Text: label, Stop: envs.StopEnd}}
	}
	return all
}

// labelQuestion is what a program is asked about a choice.
type labelQuestion struct {
	ID        uint64 `json:"id"`
	Text      string `json:"text"`
	Predicted string `json:"predicted"`
	Label     string `json:"label"`
}

func (r *Labels) question(choices []Choice) func(i int, id uint64) any {
	return func(i int, id uint64) any {
		c := choices[i]
		return labelQuestion{ID: id, Text: c.Text, Predicted: r.labels[c.Action], Label: r.labels[c.Truth]}
	}
}

// Expected returns the objective of S samples, each the reward expected over the policy's
// own choice, and its exact gradient with respect to the probabilities:
//
//	J(π) = Σ_a π_a·R_a(π)          grad_k = ∂J/∂π_k = R_k + Σ_a π_a·∂R_a/∂π_k
//
// truths are S indices of labels; probs is π [S, C] and so is grad. The probabilities count
// as free variables: chaining grad through a softmax brings in that they sum to 1. To be
// maximised.
//
// The parts of a weighted sum:
//
//	accuracy, f1   R_a does not depend on π: J = Σ_a π_a·r(a)
//	calibration    R = 1 − ½·Σ_k (π_k − 1[k = truth])², whatever a is: the Brier score
//	               turned into a reward in [0,1]. It is a proper scoring rule: on average
//	               over the truths of an input it is highest at their true frequencies
//	expr:…         by reverse-mode differentiation of the expression
//
// A sample whose reward or gradient is not finite has failed: its total is NaN, its gradient
// 0. Gradients fit float32. It panics when the lengths do not fit the labels, or when not
// Enumerable.
func (r *Labels) Expected(truths []int, probs []float32) (scores Scores, grad []float64) {
	classes := len(r.labels)
	if len(probs) != len(truths)*classes || !r.Enumerable() {
		panic(fmt.Sprintf("reward.Labels.Expected: %d probabilities for %d samples of %d labels, enumerable: %t", len(probs), len(truths), classes, r.Enumerable()))
	}
	exact := make([]float64, len(probs))
	for i, p := range probs {
		exact[i] = float64(p)
	}
	return r.expected(truths, exact)
}

func (r *Labels) expected(truths []int, probs []float64) (scores Scores, grad []float64) {
	classes := len(r.labels)
	grad = make([]float64, len(probs))
	slope := make([]float64, classes)
	said := make([]judged, len(r.rewards))
	for j, judge := range r.rewards {
		said[j] = newJudged(len(truths))
		for i, truth := range truths {
			clear(slope)
			said[j].values[i] = judge.expected(truth, probs[i*classes:(i+1)*classes], slope)
			for k, g := range slope {
				if finite(said[j].values[i]) && !fits(g, r.pieces[j].weight, len(r.pieces)) {
					said[j].errs[i] = errGradient
				}
				grad[i*classes+k] += r.pieces[j].weight * g
			}
		}
	}
	scores = weigh(r.pieces, said, len(truths))
	for i, total := range scores.Total {
		if math.IsNaN(total) {
			clear(grad[i*classes : (i+1)*classes])
		}
	}
	return scores, grad
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

// Observe counts the choices of a rollout for f1, which rewards a choice by what it changes
// in the macro F1 of what was observed so far, about the last 200 choices a label. Call it
// once for each rollout, behind Score or Expected; without f1 it does nothing.
func (r *Labels) Observe(choices []Choice) {
	if r.f1 == nil {
		return
	}
	for _, c := range choices {
		r.f1.observe(c.Action, c.Truth)
	}
}

// Close ends the programs. Nothing can be judged by them after it.
func (r *Labels) Close() {
	for _, judge := range r.rewards {
		if judge.program != nil {
			judge.program.Close()
		}
	}
}
