package train_test

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/rollout"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/rl/train"
	"github.com/rltrain/rltrain/torch"
)

// routing is a task of episodes of three classifications: each request goes to the small model or to the large one,
// which may be asked once in an episode. A request is answered well by the large model (1) and less well by the small
// one: the easy ones as well, the plain ones nearly so (0.8), the hard ones not at all (0). What is best for a request depends on
// what may still come.
type routing struct{}

var (
	routes      = []string{"small", "large"}
	kinds       = []string{"easy", "plain", "hard"}
	smallIsPaid = []float64{1, 0.8, 0}
)

const requests = 3

func (routing) Len(envs.Part) int { return 0 }

func (routing) Episode(_ envs.Part, index int) (envs.Env, error) {
	return &requestsOf{index: index}, nil
}

// requestsOf is one episode.
type requestsOf struct {
	index, turn int
	spent       bool
}

func (e *requestsOf) kind() int {
	return rl.Stream(5, uint64(e.index), uint64(e.turn)).IntN(len(kinds))
}

// text says all that matters: a classifier reads nothing else.
func (e *requestsOf) text() string { return stateText(requests-e.turn, e.spent, e.kind()) }

func stateText(left int, spent bool, kind int) string {
	return fmt.Sprintf("left%d spent-%v %s", left, spent, kinds[kind])
}

func (e *requestsOf) Reset(context.Context) (envs.Observation, error) {
	e.turn, e.spent = 0, false
	return envs.Observation{Text: e.text()}, nil
}

func (e *requestsOf) Step(_ context.Context, a envs.Action) (envs.Step, error) {
	step := envs.Step{Keep: len(a.Text), Reward: paid(a.Text, e.spent, e.kind())}
	e.spent = e.spent || a.Text == "large"
	if e.turn++; e.turn == requests {
		step.Done = true
	} else {
		step.Append = e.text()
	}
	return step, nil
}

// paid is what a choice earns; the large model does not answer twice.
func paid(route string, spent bool, kind int) float64 {
	switch {
	case route == "small":
		return smallIsPaid[kind]
	case spent:
		return 0
	}
	return 1
}

// router is the smallest policy there is: a row of logits and a value for each text, of which encodeState makes the
// number. A policy.Label on an encoder takes its place as it is.
type router struct{ logits, values *torch.Var }

func newRouter() *router {
	n := len(kinds) * 2 * requests
	return &router{must(torch.Parameter(make([]float32, 2*n), int64(n), 2)), must(torch.Parameter(make([]float32, n), int64(n), 1))}
}

func (p *router) Forward(s *torch.Scope, b *rl.Batch, pass policy.Pass) policy.Output {
	var texts []int64
	for _, ids := range b.Sequences {
		texts = append(texts, int64(ids[0]))
	}
	index := s.Ints(texts, int64(len(texts)))
	labels := s.LogSoftmax(s.Rows(p.logits.T(), index))
	return policy.Output{
		LogProbs: s.Pick(labels, s.Ints(b.Actions, int64(len(texts)))), Labels: labels,
		Entropy: s.Neg(s.SumLast(s.Mul(s.Exp(labels), labels))), Values: s.Squeeze(s.Rows(p.values.T(), index)),
	}
}

func (p *router) Params() []*torch.Var { return []*torch.Var{p.logits, p.values} }
func (p *router) Groups() []policy.Group {
	return []policy.Group{{Role: policy.Body, Params: []*torch.Var{p.logits}}, {Role: policy.Value, Params: []*torch.Var{p.values}}}
}
func (p *router) AddValueHead() error      { return nil }
func (p *router) Fresh() (bool, error)     { return false, nil }
func (p *router) Changed()                 {}
func (p *router) SaveWeights(string) error { return errors.ErrUnsupported }
func (p *router) LoadWeights(string) error { return errors.ErrUnsupported }
func (p *router) Close()                   { torch.CloseAll(p.Params()...) }

// encodeState is a tokenizer with a token for each of the eighteen texts.
func encodeState(text string) ([]int32, error) {
	var left, kind int
	var spent bool
	name := ""
	if _, err := fmt.Sscanf(text, "left%d spent-%t %s", &left, &spent, &name); err != nil {
		return nil, err
	}
	kind = slices.Index(kinds, name)
	if spent {
		kind += len(kinds)
	}
	return []int32{int32(2*len(kinds)*(left-1) + kind)}, nil
}

// value is what an episode earns on average from a state on, with what choose says; exact, by all that may come.
func value(choose func(left int, spent bool, kind int) string, left int, spent bool) float64 {
	if left == 0 {
		return 0
	}
	sum := 0.0
	for kind := range kinds {
		route := choose(left, spent, kind)
		sum += paid(route, spent, kind) + value(choose, left-1, spent || route == "large")
	}
	return sum / float64(len(kinds))
}

// best is the choice of dynamic programming.
func best(left int, spent bool, kind int) string {
	worth := func(route string) float64 {
		return paid(route, spent, kind) + value(best, left-1, spent || route == "large")
	}
	if worth("large") > worth("small") {
		return "large"
	}
	return "small"
}

// greedy is what a policy does.
func greedy(p *router) func(left int, spent bool, kind int) string {
	logits := must(p.logits.Read())
	return func(left int, spent bool, kind int) string {
		at := 2 * must(encodeState(stateText(left, spent, kind)))[0]
		if logits[at] >= logits[at+1] {
			return routes[0]
		}
		return routes[1]
	}
}

// Episodes of several classifications share a budget, and with it what they earn: the policy learns to keep the large
// model for a request that needs it.
func ExampleTrain_episodesOfLabels() {
	p := newRouter()
	defer p.Close()
	source := must(rollout.NewLabelEpisodes(p, routes, encodeState, routing{}, rollout.LabelEpisodesConfig{Episodes: 32, Values: true, Seed: 1}))
	fmt.Printf("at best %.3f; before %.3f\n", value(best, requests, false), value(greedy(p), requests, false))
	must(train.Run(context.Background(), p, source, &algo.A2C{Gamma: 1, Lambda: 0.95, ValueCoef: 0.5, Whiten: true}, train.Config{
		Steps: 100, Optimisation: train.Optimisation{LearningRate: 0.1, Schedule: "linear", MaxGradNorm: 1}, ValueRate: 0.1, Seed: 1,
		Regularisation: train.Regularisation{EntropyCoef: 0.02},
	}, run.Hooks{}))
	fmt.Printf("after %.3f\n", value(greedy(p), requests, false))
	// Output:
	// at best 2.533; before 1.800
	// after 2.533
}
