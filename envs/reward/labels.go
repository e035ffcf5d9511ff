package reward

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/program"
)

// Labels is a list of rewards for a classifier, whose action is one of a fixed list of labels.
//
// Rewards come in two kinds. A sampled reward needs only the chosen label: Score computes it, for policy gradients. A
// reward that reads the policy's probabilities changes with them, which a policy gradient ignores: Expected gives the
// exact objective over all labels and its gradient. ReadsProbs says which one to call.
//
// Scoring has no side effects: rewards are fixed functions between two calls of Observe. Update epochs and validation may
// score again. A Labels is not safe for concurrent use.
type Labels struct {
	labels  []string
	pieces  []piece
	rewards []LabelReward // one per piece
}

// Choice is the label that a policy chose for a text.
type Choice struct {
	Text          string // for programs and models
	Action, Truth int    // label indices
}

// ParseLabels reads a list of rewards; see the package documentation. The task's rewards are
//
//	accuracy      1 for the correct label, else 0
//	f1            the first-order change of macro F1, see [Labels.Observe]
//	calibration   a proper scoring rule of the probabilities, see [Labels.Expected]
//
// EXPR uses the language of github.com/expr-lang/expr, restricted to differentiable constructs. Its value is a number or a
// condition, which counts as 1 or 0. Its names are
//
//	correct      1 if the scored label is the true one, else 0; also a condition
//	confidence   the policy's probability of the scored label
//	entropy      the entropy of the policy, in nats
//	probs[…]     the probability of a label, by index, name, or label and predicted
//	predicted    the scored label; for == and != and in
//	label        the true label; likewise
//	+ - * / ** ^   abs exp log max min pow sqrt   max(probs) min(probs)
//	c ? a : b    if c { a } else { b }   and or not && || ! == != < <= > >= in
//
// A comparison of probabilities has no derivative and is an error, like everything not listed here; use max, min and abs.
// At their kinks, the derivative is that of the first argument that attains the value, and 0 for abs.
//
// A program or a model scores the chosen label only, so it cannot be combined with a reward that reads probabilities.
// ParseLabels checks that programs exist and opens models. The first Score starts the programs.
//
// Errors name the reward and, in an expression, the column.
func ParseLabels(spec string, labels []string, o Options) (*Labels, error) {
	if len(labels) == 0 {
		return nil, errors.New("rewards need at least one label")
	}
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	r := &Labels{labels: slices.Clone(labels)}
	if r.pieces, err = parseList(spec, Definitions()); err != nil {
		return nil, err
	}
	for _, p := range r.pieces {
		one, err := p.ofLabels(p.setup(o, r.labels))
		if err != nil {
			return nil, fmt.Errorf("reward %s: %w", hintQuote(p.name), err)
		}
		r.rewards = append(r.rewards, one)
	}
	if r.ReadsProbs() && !r.Enumerable() {
		return nil, errors.New("programs, models and functions score only the chosen label, so they cannot be combined with rewards that read probabilities (calibration, confidence, entropy, probs); remove one kind")
	}
	return r, nil
}

// ofLabels builds the reward of a piece. A reward of completions scores the label as the completion.
func (p piece) ofLabels(s Setup) (LabelReward, error) {
	if p.of.Labels != nil {
		return p.of.Labels(s)
	}
	if p.of.NeedsJudge {
		return LabelReward{}, errors.New("it scores generated text, not labels")
	}
	text, err := p.of.Text(s)
	text.late = s.Late
	r := LabelReward{State: text.State, Restore: text.Restore, Close: text.Close, Choices: func(ctx context.Context, choices []Choice) ([]float64, []error) {
		said := text.score(ctx, labelCompletions(s.Labels, choices), 1, s.Timeout)
		return said.values, said.errs
	}}
	if text.Observe != nil {
		r.Observe = func(_ []Choice, values []float64) { text.Observe(values) }
	}
	return r, err
}

func init() {
	Register(Definition{
		Name: "accuracy", Help: "1 if the answer is correct, else 0", NeedsTruth: true,
		Text: func(Setup) (TextReward, error) { return TextReward{Each: correct}, nil },
		Labels: func(Setup) (LabelReward, error) {
			return LabelReward{
				Value: func(action, truth int) float64 { return truthValue(action == truth) },
				Expected: func(truth int, probs, grad []float64) float64 {
					grad[truth] = 1
					return probs[truth]
				},
			}, nil
		},
	})
	Register(Definition{
		Name: "calibration", Help: "Brier score of the probabilities as a reward, 0 to 1",
		Labels: func(Setup) (LabelReward, error) {
			return LabelReward{ReadsProbs: true, Expected: expectedCalibration}, nil
		},
	})
	Register(Definition{
		Name: "expr", Argument: "'EXPR'", Help: "value of an expression", brackets: true, Labels: labelExpression,
		Text: func(s Setup) (TextReward, error) {
			x, err := compileText(s.Argument)
			if err != nil {
				return TextReward{}, err
			}
			return TextReward{Batch: x.score}, nil
		},
	})
	Register(Definition{Name: "cmd", Argument: "'PROGRAM ARGS'", Help: "score from a program, over JSON lines", Text: textProgram, Labels: labelProgram})
}

// correct is the reward accuracy for completions.
func correct(_ context.Context, c envs.Completion) (float64, error) {
	if c.Info == nil && math.IsNaN(c.Reward) {
		return 0, errors.New("the task could not verify the answer")
	}
	return truthValue(c.Info != nil && c.Info.Correct), nil
}

// labelExpression is the reward expr:EXPR of labels.
func labelExpression(s Setup) (LabelReward, error) {
	x, err := compileDifferentiable(s.Argument, s.Labels)
	if err != nil {
		return LabelReward{}, err
	}
	scratch := &evaluation{values: make([]float64, x.nodes)}
	return LabelReward{
		ReadsProbs: x.root.reads,
		Value:      func(action, truth int) float64 { return scratch.value(x, action, truth, nil) },
		Expected:   func(truth int, probs, grad []float64) float64 { return scratch.expected(x, truth, probs, grad) },
	}, nil
}

// Names returns the rewards' names, in list order.
func (r *Labels) Names() []string { return names(r.pieces) }

// ReadsProbs reports whether a reward reads the policy's probabilities. Then Expected must be used, not Score. It depends
// only on the list.
func (r *Labels) ReadsProbs() bool {
	return slices.ContainsFunc(r.rewards, func(one LabelReward) bool { return one.ReadsProbs })
}

// Enumerable reports whether Expected can be used: every reward can score all labels.
func (r *Labels) Enumerable() bool {
	return !slices.ContainsFunc(r.rewards, func(one LabelReward) bool { return one.Expected == nil })
}

// Score computes the rewards of choices; see [Scores] for failures. It returns only errors of ctx. It panics if
// ReadsProbs.
func (r *Labels) Score(ctx context.Context, choices []Choice) (Scores, error) {
	if r.ReadsProbs() {
		panic("reward.Labels.Score: a reward reads the policy's probabilities; use Expected")
	}
	said := make([]results, len(r.rewards))
	var wait sync.WaitGroup
	for j, one := range r.rewards {
		if one.Choices != nil {
			wait.Go(func() {
				values, errs := one.Choices(ctx, choices)
				said[j] = batched(values, errs, len(choices))
			})
			continue
		}
		said[j] = newResults(len(choices))
		for i, c := range choices {
			said[j].values[i] = one.Value(c.Action, c.Truth)
		}
	}
	wait.Wait()
	if err := ctx.Err(); err != nil {
		return Scores{}, err
	}
	return weigh(r.pieces, said, len(choices)), nil
}

// labelCompletions are the choices as rewards of completions see them: the completion is the label.
func labelCompletions(labels []string, choices []Choice) []envs.Completion {
	all := make([]envs.Completion, len(choices))
	for i, c := range choices {
		label := labels[c.Action]
		all[i] = envs.Completion{
			Observation: envs.Observation{Text: c.Text}, Text: label, Action: envs.Action{Text: label, Stop: envs.StopEnd},
			Info: &envs.Info{Correct: c.Action == c.Truth, FormatOK: true, Answer: label, Truth: labels[c.Truth]},
		}
	}
	return all
}

// labelQuestion is the question to a program about a choice.
type labelQuestion struct {
	ID        uint64 `json:"id"`
	Text      string `json:"text"`
	Predicted string `json:"predicted"`
	Label     string `json:"label"`
}

// labelProgram is the reward cmd:PROGRAM of labels.
func labelProgram(s Setup) (LabelReward, error) {
	p, err := program.New(s.Argument, s.Timeout, s.Late)
	if err != nil {
		return LabelReward{}, err
	}
	return LabelReward{Close: p.Close, Choices: func(ctx context.Context, choices []Choice) ([]float64, []error) {
		return program.Ask(ctx, p, len(choices), func(i int, id uint64) any {
			c := choices[i]
			return labelQuestion{ID: id, Text: c.Text, Predicted: s.Labels[c.Action], Label: s.Labels[c.Truth]}
		}, decode)
	}}, nil
}

// Expected returns the objective of S samples, the expected reward of each under the policy, and its exact gradient with
// respect to the probabilities:
//
//	J(π) = Σ_a π_a·R_a(π)          grad_k = ∂J/∂π_k = R_k + Σ_a π_a·∂R_a/∂π_k
//
// truths has S label indices; probs is π [S, C], and so is grad. The probabilities are free variables: the chain rule
// through a softmax accounts for their sum of 1. The objective is to be maximised.
//
// The terms of the weighted sum:
//
//	accuracy, f1   R_a does not depend on π: J = Σ_a π_a·r(a)
//	calibration    R = 1 − ½·Σ_k (π_k − 1[k = truth])², for every a: the Brier score
//	               as a reward in [0,1]. It is a proper scoring rule: its mean over the
//	               truths of an input is highest at their true frequencies
//	expr:…         by reverse-mode differentiation of the expression
//
// A sample with a reward or gradient that is not finite fails: its total is NaN, its gradient 0. Gradients fit float32.
// Expected panics if the lengths do not match the labels, or if not Enumerable.
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
	said := make([]results, len(r.rewards))
	for j, one := range r.rewards {
		said[j] = newResults(len(truths))
		for i, truth := range truths {
			clear(slope)
			said[j].values[i] = one.Expected(truth, probs[i*classes:(i+1)*classes], slope)
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

// Observe passes a rollout's choices and rewards to stateful rewards such as f1. Call it once per rollout, after Score or
// Expected.
func (r *Labels) Observe(choices []Choice, s Scores) {
	for j, one := range r.rewards {
		if one.Observe != nil {
			one.Observe(choices, s.Rewards[j].Values)
		}
	}
}

// State returns the state of all rewards, for a checkpoint.
func (r *Labels) State() State {
	return stateOf(r.pieces, func(i int) func() any { return r.rewards[i].State })
}

// Restore continues from s. A state of other rewards or labels is an error.
func (r *Labels) Restore(s State) error {
	return s.restore(r.pieces, func(i int) func(json.RawMessage) error { return r.rewards[i].Restore })
}

// Close stops the programs. They cannot score anything afterwards.
func (r *Labels) Close() {
	for _, one := range r.rewards {
		if one.Close != nil {
			one.Close()
		}
	}
}
