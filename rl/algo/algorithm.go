package algo

import (
	"errors"
	"math/rand/v2"

	"github.com/rltrain/rltrain/internal/options"
	"github.com/rltrain/rltrain/internal/registry"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// Algorithm turns the samples of a step into advantages, and defines the loss. The tagged fields of its type are its
// options.
//
// In each step the trainer gets samples from the source, computes the log-probabilities and values in Needs, calls Prepare
// once, and then Loss for each forward pass of each update.
type Algorithm interface {
	// Check returns an error if options do not fit together, given the number of samples per prompt. The ranges and the
	// allowed values in their tags are checked without it.
	Check(samplesPerPrompt int) error

	// Needs says what the trainer and the source must provide.
	Needs() Needs

	// Prepare sets Advantage of the samples of a step, and Return if the algorithm needs values. It adds what it measures
	// to the step's figures.
	Prepare(step *rl.Step) error

	// Loss returns the loss of the M actions of a batch, a scalar: a sum weighted by Weight, 1/Samples or 1/Actions, the
	// counts of the whole minibatch. So the division of a minibatch into batches changes no gradient:
	//
	//	∇L = Σ_batches ∇Loss(batch)
	Loss(s *torch.Scope, b *Batch) torch.Tensor
}

// Needs is what an algorithm needs besides log π of the actions.
type Needs struct {
	Rewards   bool  // samples have rewards; false = they are demonstrations or preferences
	Ratio     Ratio // whose ratio π/π_old the loss has; several updates per step need one
	Clip      Clip  // of that ratio, for the figures
	Repeats   bool  // several updates per step are allowed without a ratio
	Values    bool  // Sample.Value and Batch.Value, from a value head
	Reference bool  // Sample.Reference and Batch.Reference
	Labels    bool  // Batch.Labels; for classifiers only
	Together  bool  // the samples of a prompt stay in one forward pass
	Scores    bool  // Batch.Scores, of a reward model; its samples have no log π
	Replay    bool  // samples come from a replay buffer
	// SharedValues means that the gradient of Batch.Value reaches all weights, not only the value head, and that the loss
	// needs no values from before the update.
	SharedValues bool
	// Teacher names the model of Batch.Divergence or, if Sampled, of Sample.Teacher: a folder, a name on the hub or on Server, or
	// TeacherSelf; "" = none.
	Teacher   string
	Self      SelfTeacher    // with TeacherSelf
	Context   TeacherContext // Sample.Context
	Sampled   bool
	Server    TeacherServer
	Greedy    bool    // Step.Greedy, the reward of each prompt's greedy completion
	Single    bool    // preferences are single responses, good or bad, instead of pairs
	Dropout   bool    // turn the adapter's dropout on
	Noise     float64 // policy.Pass.Noise, with Dropout
	Reduction string  // of Batch.Weight
	// ByAction means that the loss is a sum over actions multiplied by Batch.Weight, so that some can be left out.
	ByAction bool
	// ByAdvantage means that a sample whose advantages are all 0 has no gradient, and needs no backward pass.
	ByAdvantage bool

	// Select picks actions of a minibatch for Batch.Selected, given log π before the update; nil = none. It needs another pass.
	Select func(batch []*rl.Sample, now Selection, rng *rand.Rand) Selection

	// Choose reduces a step to the samples to learn from; nil = all.
	Choose func(step *rl.Step)

	// ImplicitReward is the reward of a response of a preference, given its Σ log π, for evaluations; nil = Σ log π − Σ
	// log π_ref.
	ImplicitReward func(x *rl.Sample, logProb float64) float64
}

// Selection has a number for each action of the samples of a minibatch.
type Selection map[*rl.Sample][]float32

// Weighs says whether importance weights of advantages correct the loss. Pairs have no advantages, and a loss that may repeat
// without a ratio does not ask who has sampled.
func (n Needs) Weighs() bool { return n.Rewards && !n.Together && !n.Repeats }

// Ratio says whose ratio π/π_old a loss has.
type Ratio int

const (
	NoRatio       Ratio = iota // one update per step
	ActionRatio                // of each action
	SequenceRatio              // of all actions of a sample
	MeanRatio                  // geometric mean of those of a sample's actions
)

// Clip is the range [1−Low, 1+High] of a ratio.
type Clip struct {
	Low  float64 `option:"clip_low" default:"0.2" range:"(0,1)" help:"lower clip of the probability ratio: 1 - clip_low; the default of gspo is 3e-4"`
	High float64 `option:"clip_high" default:"0.2" range:"(0,)" help:"upper clip of the probability ratio: 1 + clip_high; the default of gspo is 4e-4"`
}

// Batch is what a loss gets: M actions of S whole samples of a minibatch.
type Batch struct {
	LogProbs  torch.Tensor // [M] log π, with its gradient
	Old       torch.Tensor // [M] log π_old
	Reference torch.Tensor // [M] log π_ref, with Needs.Reference or a KL in the trainer
	Advantage torch.Tensor // [M]; with Needs.Rewards
	Weight    torch.Tensor // [M] weight of each action in the mean over the minibatch, by Needs.Reduction; 0 if it is left out
	Even      torch.Tensor // [M] Weight with no action left out
	Entropy   torch.Tensor // [M] in nats

	Value    torch.Tensor // [M] V, with Needs.Values
	OldValue torch.Tensor // [M]
	Return   torch.Tensor // [M]; without OldValue if Needs.SharedValues
	Labels   torch.Tensor // [S, C] log π of every label, with Needs.Labels

	Scores torch.Tensor // [S] of a reward model, with Needs.Scores

	// Divergence is Σ w·D(policy, teacher) over the actions, with Needs.Teacher.
	Divergence func(d policy.Divergence) torch.Tensor

	// Uniform is w Σ H(u, policy) over the actions, the cross-entropy of the uniform distribution u over all tokens or labels.
	Uniform func(w float64) torch.Tensor

	Samples float64        // of the whole minibatch, with its share of Step.Masked
	Actions int            // of the whole minibatch
	First   bool           // this is the first batch of the minibatch
	Whole   []*rl.Sample   // the whole minibatch
	Body    []torch.Tensor // trained weights, without the heads
	Part    []*rl.Sample   // the S samples

	Selected Selection // 1 for each action that Needs.Select picked, else 0

	Figures map[string]float64 // sums over the minibatch of Note and Add
	Bounds  rl.Meter           // smallest and largest values of the minibatch
}

// Note adds a term of the loss to a figure of the update.
func (b *Batch) Note(s *torch.Scope, name string, term torch.Tensor) { b.Add(name, s.Item(term)) }

// Add adds to a figure of the update.
func (b *Batch) Add(name string, value float64) { b.Figures[name] += value }

// Ratio is ρ = π/π_old of each action [M].
func (b *Batch) Ratio(s *torch.Scope) torch.Tensor { return s.Exp(s.Sub(b.LogProbs, b.Old)) }

// Sequences returns Members and the mean advantage [S] of each sample's actions.
func (b *Batch) Sequences(s *torch.Scope) (member, advantage torch.Tensor) {
	means := make([]float32, len(b.Part))
	for i, x := range b.Part {
		sum := 0.0
		for _, a := range x.Advantage {
			sum += float64(a)
		}
		means[i] = float32(sum / float64(x.Len()))
	}
	return b.Members(s), s.Floats(means, int64(len(means)))
}

// Members is [S, M], 1 where an action belongs to a sample.
func (b *Batch) Members(s *torch.Scope) torch.Tensor {
	n, m := len(b.Part), 0
	for _, x := range b.Part {
		m += x.Len()
	}
	ones := make([]float32, n*m)
	at := 0
	for i, x := range b.Part {
		for range x.Actions {
			ones[i*m+at] = 1
			at++
		}
	}
	return s.Floats(ones, int64(n), int64(m))
}

// Constant is a tensor [M] without a gradient. set fills in the values of a sample's actions, of which now are log π.
func (b *Batch) Constant(s *torch.Scope, set func(x *rl.Sample, now, values []float32)) torch.Tensor {
	now := s.Read(b.LogProbs)
	values := make([]float32, len(now))
	rest := values
	rl.PerSample(b.Part, now, func(x *rl.Sample, now []float32) {
		set(x, now, rest[:x.Len()])
		rest = rest[x.Len():]
	})
	return s.Floats(values, int64(len(values)))
}

// BySign is a tensor [M]: positive where the advantage is above 0, else other.
func (b *Batch) BySign(s *torch.Scope, positive, other float64) torch.Tensor {
	return b.Constant(s, func(x *rl.Sample, _, values []float32) {
		for t, a := range x.Advantage {
			values[t] = float32(other)
			if a > 0 {
				values[t] = float32(positive)
			}
		}
	})
}

// Definition makes an algorithm known by its name.
type Definition struct {
	Name, Help string
	Labels     bool // it trains classifiers
	Tokens     bool // it trains language models
	// New returns a pointer to a struct whose tagged fields are the options. Register lets it set their defaults.
	New func() Algorithm
	// Pairs is the same for preferences of a data set; nil if the algorithm does not learn from them.
	Pairs func() Algorithm
}

// New returns an algorithm with the defaults of its options, which the command has too:
//
//	grpo := algo.New[algo.GRPO]()
//	grpo.Clip.High = 0.28
func New[T any, P interface {
	*T
	Algorithm
}]() P {
	a := P(new(T))
	options.Defaults(a)
	return a
}

// withDefaults makes a constructor set the defaults of the options.
func withDefaults(construct func() Algorithm) func() Algorithm {
	return func() Algorithm {
		a := construct()
		options.Defaults(a)
		return a
	}
}

// Fits says whether the algorithm trains policies of this kind.
func (d Definition) Fits(p policy.Policy) bool {
	switch p.(type) {
	case *policy.Classifier, *policy.Decider:
		return d.Labels
	}
	return d.Tokens
}

var algorithms registry.Registry[Definition]

// Register makes an algorithm known, usually from an init function. It panics if the name is empty or taken, or if New is
// missing.
func Register(d Definition) {
	algorithms.Add("algo.Register: algorithm", d.Name, d.defaulted(), func(earlier map[string]Definition) error {
		if _, taken := earlier[d.Name]; taken || d.Name == "" || d.New == nil {
			return errors.New("the name is empty or taken, or New is missing")
		}
		return nil
	})
}

// defaulted is d with algorithms that have the defaults of their options.
func (d Definition) defaulted() Definition {
	if d.New != nil {
		d.New = withDefaults(d.New)
	}
	if d.Pairs != nil {
		d.Pairs = withDefaults(d.Pairs)
	}
	return d
}

// Definitions lists the registered algorithms by name.
func Definitions() []Definition { return algorithms.All() }

// Find returns the definition of an algorithm.
func Find(name string) (Definition, error) { return algorithms.Find("algorithm", name) }
