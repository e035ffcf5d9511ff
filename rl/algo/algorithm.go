package algo

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"

	"rltrain/internal/nearest"
	"rltrain/rl"
	"rltrain/torch"
)

// An Algorithm is what one way of learning from samples has of its own: how rewards become advantages, and
// the loss that a policy descends on. Register makes it known to TokenRL and to the command by its name.
type Algorithm struct {
	Name string

	// What of a TokenRLConfig the algorithm leaves to choose. A choice that it does not leave is an error.
	Baseline  bool // Baseline
	Scale     bool // Scale
	Reduction bool // Reduction

	// Ratio is what of π/π_old the loss has, and so ClipLow, ClipHigh, and more than one update a step.
	Ratio Ratio

	// ByAdvantage says that the gradient of Loss is 0 where all advantages of a sample are, so that such samples
	// need no backward pass.
	ByAdvantage bool

	// Complete fills in what the configuration leaves open, and refuses what is wrong in it. nil = nothing.
	Complete func(c *TokenRLConfig) error

	// Advantages sets the Advantage of every sample of the step.
	Advantages func(c TokenRLConfig, step *Step)

	// Loss of the tokens of a batch, a scalar. It is a sum, over the batch, of what Weight or 1/N divides by the
	// counts of the whole minibatch, so that its division into batches changes no gradient.
	Loss func(s *torch.Scope, b *LossBatch, c TokenRLConfig) torch.Tensor

	// ValueLoss, where there is one, gives the policy a value head: Step's samples have Values, ValueCoef times
	// this is added to the loss, and Gamma, Lambda, ValueRate, ValueClip and ValueCoef are read.
	ValueLoss func(s *torch.Scope, b *LossBatch, c TokenRLConfig) torch.Tensor
}

// Ratio says of what a loss takes the ratio π/π_old, and clips it.
type Ratio int

const (
	NoRatio       Ratio = iota // samples serve one update
	TokenRatio                 // of each token
	SequenceRatio              // of each whole completion
)

// Step is what a policy has done in a step, for an algorithm to judge.
type Step struct {
	Groups  []rl.Group
	Rewards [][]float64 // of the samples of each group, with penalties; NaN where judging failed
	Given   []float64   // a baseline for each group, where Baseline is moving or greedy; NaN where there is none
	Samples []*TokenSample
	// Removed is the mean of what was taken off the rewards as a baseline, for the log; NaN where there is no
	// such figure.
	Removed float64
}

// TokenSample is a trajectory that is learnt from, with an entry for each sampled token.
type TokenSample struct {
	*rl.Trajectory
	Old       []float32 // log π_old; nil until the first update where nothing needs it before
	Reference []float32 // log π_ref; nil without a reference
	Penalty   []float64 // of KL, in the reward
	Overlong  float64   // penalty of the length, in the reward, at most 0
	Advantage []float32
	Value     []float32 // V_old, where there is a value head
	Return    []float32 // what V is to become
}

// LossBatch is M sampled tokens of S whole sequences of a minibatch.
type LossBatch struct {
	LogProb   torch.Tensor // [M] log π, through which the gradient goes
	Old       torch.Tensor // [M] log π_old
	Advantage torch.Tensor // [M]
	Weight    torch.Tensor // [M] share of each token in the mean over the minibatch, by Reduction; by token where that is no choice
	N         int          // sequences of the whole minibatch
	Tokens    int          // sampled tokens of the whole minibatch

	Value    torch.Tensor // [M] V, where there is a value head
	OldValue torch.Tensor // [M]
	Return   torch.Tensor // [M]

	part []*TokenSample
	rows *rl.Batch
}

// Sequences returns member [S, M], 1 where a token is of a sequence, and the advantage [S] of each sequence's
// first token.
func (b *LossBatch) Sequences(s *torch.Scope) (member, advantage torch.Tensor) {
	first := gather(b.part, func(x *TokenSample) float32 { return x.Advantage[0] })
	return membership(s, b.rows), s.Floats(first, int64(len(first)))
}

// Spread gives all tokens of each sample the advantage of its reward: an entry for each of Rewards.
func (step *Step) Spread(advantages [][]float64) {
	of := map[*rl.Trajectory]float32{}
	for g, group := range step.Groups {
		for i, x := range group {
			of[x] = float32(advantages[g][i])
		}
	}
	for _, x := range step.Samples {
		x.Advantage = make([]float32, len(x.Penalty))
		for i := range x.Advantage {
			x.Advantage[i] = of[x.Trajectory]
		}
	}
}

// compared is the advantage of each reward over the baseline. Samples that are not learnt from take part.
func compared(c TokenRLConfig, step *Step) {
	advantages := rl.Advantages{Baseline: c.Baseline, Scale: c.Scale}.Of(step.Rewards, step.Given)
	step.Spread(advantages)
	removed, n := 0.0, 0.0
	for g, rewards := range step.Rewards {
		for i, r := range rewards {
			if c.Scale == rl.ScaleNone && !math.IsNaN(r) {
				removed += r - advantages[g][i]
				n++
			}
		}
	}
	step.Removed = removed / n
}

var (
	algorithmsLock sync.RWMutex
	algorithms     = map[string]Algorithm{}
)

// Register makes an algorithm known, usually from an init function. It panics where the name is empty or
// taken, or where Advantages or Loss is missing.
func Register(a Algorithm) {
	algorithmsLock.Lock()
	defer algorithmsLock.Unlock()
	if _, taken := algorithms[a.Name]; taken || a.Name == "" || a.Advantages == nil || a.Loss == nil {
		panic(fmt.Sprintf("algo.Register: the name %q is empty or taken, or the algorithm has no advantages or no loss", a.Name))
	}
	algorithms[a.Name] = a
}

// Algorithms lists the algorithms registered, by name.
func Algorithms() []Algorithm {
	algorithmsLock.RLock()
	defer algorithmsLock.RUnlock()
	var all []Algorithm
	for _, name := range slices.Sorted(maps.Keys(algorithms)) {
		all = append(all, algorithms[name])
	}
	return all
}

func findAlgorithm(name string) (Algorithm, error) {
	var names []string
	for _, a := range Algorithms() {
		if a.Name == name {
			return a, nil
		}
		names = append(names, a.Name)
	}
	hint := ""
	if near := nearest.Name(name, names); near != "" {
		hint = fmt.Sprintf(" (did you mean %s?)", near)
	}
	return Algorithm{}, fmt.Errorf("algorithm %q is unknown%s: choose %s", name, hint, strings.Join(names, ", "))
}

// refuse names a choice in c that the algorithm does not leave.
func (a Algorithm) refuse(c TokenRLConfig) error {
	for _, choice := range []struct {
		name string
		made bool
	}{
		{"baseline", !a.Baseline && c.Baseline != ""},
		{"scale of advantages", !a.Scale && c.Scale != ""},
		{"reduction over tokens", !a.Reduction && c.Reduction != ""},
		{"second update on the same samples, having no ratio that corrects it,", a.Ratio == NoRatio && c.UpdateEpochs*c.Minibatches > 1},
	} {
		if choice.made {
			return fmt.Errorf("%s leaves no %s to choose: leave it out, or choose another algorithm", a.Name, choice.name)
		}
	}
	return nil
}
