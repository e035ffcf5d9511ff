package train

import (
	"context"
	"encoding/json"
	"math"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch"
)

// symbols is the number of tokens, and of labels, that a tablePolicy has.
const symbols = 5

// tablePolicy is a policy small enough to compute by hand. The logits of an action are a bias plus the table row of the
// token before it (for a label: the text's first token); the value belongs to that token.
type tablePolicy struct {
	logits, bias, value *torch.Var // [symbols, symbols], [symbols], [symbols, 1]; value is nil until requested
	base                []float32  // logits without the adapter
	fresh               bool
	bodyBias            bool // the bias belongs to the body, not to a head
	version             int
}

func newTable(t testing.TB, seed uint64) *tablePolicy {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	parameter := func(dims ...int64) *torch.Var {
		n := int64(1)
		for _, d := range dims {
			n *= d
		}
		return must.Open(torch.Parameter(normals(rng, int(n), 0.7), dims...))(t)
	}
	p := &tablePolicy{logits: parameter(symbols, symbols), bias: parameter(symbols), base: normals(rng, symbols*symbols, 0.7)}
	t.Cleanup(func() { torch.CloseAll(p.value) })
	return p
}

func normals(rng *rand.Rand, n int, deviation float64) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(deviation * rng.NormFloat64())
	}
	return x
}

func (p *tablePolicy) Forward(s *torch.Scope, b *rl.Batch, pass policy.Pass) policy.Output {
	var all []int32
	var starts []int64
	for _, q := range b.Sequences {
		starts = append(starts, int64(len(all)))
		all = append(all, q...)
	}
	rows, temperature := b.Rows, pass.Temperature
	if rows == nil {
		rows, temperature = starts, 1
	}
	states := make([]int64, len(rows))
	for i, row := range rows {
		states[i] = int64(all[row])
	}
	m := int64(len(states))
	table := p.logits.T()
	if pass.Base {
		table = s.Floats(p.base, symbols, symbols)
	}
	logits := s.Add(s.Rows(table, s.Ints(states, m)), p.bias.T())
	labels := s.LogSoftmax(s.Scale(logits, 1/temperature))
	out := policy.Output{
		LogProbs: s.Pick(labels, s.Ints(b.Actions, m)), Labels: labels,
		Entropy: s.Neg(s.SumLast(s.Mul(s.Exp(labels), labels))),
		Rank: func(s *torch.Scope) []int64 {
			ranks := make([]int64, m)
			for i, l := range s.Read(labels) {
				row := i / symbols
				if l > s.Read(labels)[row*symbols+int(b.Actions[row])] {
					ranks[row]++
				}
			}
			return ranks
		},
	}
	if pass.Values {
		out.Values = s.Squeeze(s.Rows(p.value.T(), s.Ints(states, m)))
	}
	return out
}

func (p *tablePolicy) Params() []*torch.Var {
	params := []*torch.Var{p.logits, p.bias}
	if p.value != nil {
		params = append(params, p.value)
	}
	return params
}

func (p *tablePolicy) Groups() ([]policy.Group, error) {
	role := policy.Head
	if p.bodyBias {
		role = policy.Body
	}
	groups := []policy.Group{{Role: policy.Body, Params: []*torch.Var{p.logits}, Decay: true}, {Role: role, Params: []*torch.Var{p.bias}}}
	if p.value != nil {
		groups = append(groups, policy.Group{Role: policy.Value, Params: []*torch.Var{p.value}})
	}
	return groups, nil
}

func (p *tablePolicy) AddValueHead() (err error) {
	if p.value == nil {
		p.value, err = torch.Parameter(normals(rand.New(rand.NewPCG(9, 9)), symbols, 0.5), symbols, 1)
	}
	return err
}

func (p *tablePolicy) Fresh() (bool, error) { return p.fresh, nil }
func (p *tablePolicy) Changed()             { p.version++ }

func (p *tablePolicy) SaveWeights(dir string) error {
	weights, err := run.TakeSnapshot(p)
	if err != nil {
		return err
	}
	return files.SaveJSON(filepath.Join(dir, "table.json"), weights)
}

func (p *tablePolicy) LoadWeights(dir string) error {
	var weights run.Snapshot
	if err := files.LoadJSON(filepath.Join(dir, "table.json"), &weights); err != nil {
		return err
	}
	return weights.PutBack(p)
}

// fixed is a source of samples made by a function of the step.
type fixed func(step int) *rl.Step

func (f fixed) Next(ctx context.Context, at rl.At) (*rl.Step, error) { return f(at.Step), ctx.Err() }
func (f fixed) State() any                                           { return nil }
func (f fixed) Restore(json.RawMessage) error                        { return nil }

// tokenStep has three prompts with four samples of 1 to 4 actions each, two of them from an older policy. It covers all
// reward cases: missing, equal within a prompt, given on the way, and a penalty.
func tokenStep(step int) *rl.Step {
	rng := rand.New(rand.NewPCG(uint64(step), 4))
	s := &rl.Step{}
	for prompt := range 3 {
		var group []*rl.Sample
		for i := range 4 {
			x := &rl.Sample{Prompt: prompt, Index: i, Episode: prompt*4 + i, Tokens: []int32{rng.Int32N(symbols)}}
			for range 1 + rng.IntN(4) {
				given := rng.IntN(2) // environment text between two actions
				for range given {
					x.Tokens = append(x.Tokens, rng.Int32N(symbols))
				}
				x.Rows = append(x.Rows, len(x.Tokens)-1)
				x.Tokens = append(x.Tokens, rng.Int32N(symbols))
				x.Actions = append(x.Actions, x.Tokens[len(x.Tokens)-1])
				x.Rewards = append(x.Rewards, 0.1*float64(rng.IntN(3)))
				x.BehaviorLogProbs = append(x.BehaviorLogProbs, float32(-1.6+0.8*rng.NormFloat64()))
			}
			last := len(x.Rewards) - 1
			x.Rewards[last] += rng.Float64()
			switch {
			case prompt == 1: // nothing to choose between
				clear(x.Rewards)
				x.Rewards[last] = 0.5
			case prompt == 2 && i == 1:
				x.Rewards[last] = math.NaN()
			case prompt == 0 && i == 2:
				x.Overlong = -0.4
			}
			group = append(group, x)
			if x.HasReward() {
				s.Samples = append(s.Samples, x)
			}
		}
		s.Groups = append(s.Groups, group)
		s.Greedy = append(s.Greedy, 0.3*float64(prompt))
	}
	return s
}

// labelStep is twelve texts of one to three tokens, with a label chosen for each.
func labelStep(step int) *rl.Step {
	rng := rand.New(rand.NewPCG(uint64(step), 5))
	s := &rl.Step{}
	for i := range 12 {
		x := &rl.Sample{Prompt: i, Episode: i, Actions: []int32{rng.Int32N(symbols)}, Truth: rng.Int32N(symbols), Rewards: []float64{rng.Float64()}}
		for range 1 + rng.IntN(3) {
			x.Tokens = append(x.Tokens, rng.Int32N(symbols))
		}
		s.Samples, s.Groups = append(s.Samples, x), append(s.Groups, []*rl.Sample{x})
	}
	return s
}

// replayedStep is labelStep with larger rewards, so that some errors exceed 1, and one choice sampled twice.
func replayedStep(step int) *rl.Step {
	s := labelStep(step)
	for _, x := range s.Samples {
		x.Rewards[0] *= 3
	}
	s.Samples, s.Groups = append(s.Samples, s.Samples[3]), nil
	return s
}
