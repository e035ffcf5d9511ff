package algo

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/rltrain/rltrain/internal/nearest"
	"github.com/rltrain/rltrain/internal/options"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// Algorithm is one way of learning: what it makes of the samples of a step, and the loss that the policy descends on.
// The fields of its type are its options, by their tags.
//
// In each step the trainer asks the source for samples, takes the log-probabilities and values that Needs names, calls
// Prepare once, and then Loss for each forward pass of each update.
type Algorithm interface {
	// Check returns an error if options do not fit together, given the number of samples per prompt. The ranges and the
	// allowed values in their tags are checked without it.
	Check(samplesPerPrompt int) error

	// Needs says what the algorithm reads.
	Needs() Needs

	// Prepare turns the rewards of a step into the Advantage of each of its samples, and with values into Return.
	// What it measures goes into the step's figures.
	Prepare(step *rl.Step) error

	// Loss of the M actions of a batch, a scalar. It is a sum over the batch of what Weight, 1/Samples or 1/Actions
	// divides by the counts of the whole minibatch, so that its division into batches changes no gradient:
	//
	//	∇L = Σ_batches ∇Loss(batch)
	Loss(s *torch.Scope, b *Batch) torch.Tensor
}

// Needs is what an algorithm reads beside log π of the actions.
type Needs struct {
	Rewards   bool  // samples are what a policy did and was paid for, not what it is to imitate
	Ratio     Ratio // of what the loss has π/π_old: more than one update a step needs one
	Clip      Clip  // of that ratio, for the figures
	Repeats   bool  // more than one update a step although there is no ratio
	Values    bool  // Value, and Batch.Value: the policy gets a value head
	Reference bool  // Reference, and Batch.Reference
	Labels    bool  // Batch.Labels: the algorithm is for classifiers alone
	Together  bool  // the samples of a prompt are compared with each other: they stay in one forward pass
	Scores    bool  // Batch.Scores: the policy is a reward model, whose samples have no log π
	Replay    bool  // samples come from a replay buffer, which earlier versions of the policy filled
	// SharedValues is of Values that are part of the policy: their gradient reaches the other weights too, and the loss
	// needs none from before the update.
	SharedValues bool
	// Teacher names the model whose distribution Batch.Divergence compares with: a folder, or a name on the hub; "" = none.
	Teacher   string
	Greedy    bool // Step.Greedy: the reward of each prompt's greedy completion
	Single    bool // of preferences: rows are single answers, good or bad, and not pairs
	Dropout   bool // the adapter's dropout is on
	Reduction string
	// ByAdvantage says that the gradient of Loss is 0 where all advantages of a sample are, so that such samples need
	// no backward pass.
	ByAdvantage bool

	// Choose picks the samples of a step that are learnt from, before anything is asked about them; nil = all.
	Choose func(step *rl.Step)

	// ImplicitReward is what the policy holds a sample of a preference to be worth, given its Σ log π; nil = Σ log π − Σ
	// log π_ref. Evaluations report it.
	ImplicitReward func(x *rl.Sample, logProb float64) float64
}

// Ratio says of what a loss takes the ratio π/π_old, and clips it.
type Ratio int

const (
	NoRatio       Ratio = iota // samples serve one update
	ActionRatio                // of each action
	SequenceRatio              // of all actions of a sample together
)

// Clip is the range [1−Low, 1+High] that a ratio is held in.
type Clip struct {
	Low  float64 `option:"clip_low" default:"0.2" range:"(0,1)" help:"the probability ratio is clipped at 1 - clip_low"`
	High float64 `option:"clip_high" default:"0.2" range:"(0,)" help:"and at 1 + clip_high"`
}

// Batch is M actions of S whole samples of a minibatch, as a loss sees them.
type Batch struct {
	LogProbs  torch.Tensor // [M] log π, through which the gradient goes
	Old       torch.Tensor // [M] log π_old
	Reference torch.Tensor // [M] log π_ref; with Needs.Reference, or where the trainer has one
	Advantage torch.Tensor // [M]; with Needs.Rewards
	Weight    torch.Tensor // [M] share of each action in the mean over the minibatch, by Needs.Reduction
	Entropy   torch.Tensor // [M] in nats

	Value    torch.Tensor // [M] V, with Needs.Values
	OldValue torch.Tensor // [M]
	Return   torch.Tensor // [M]; without OldValue if Needs.SharedValues
	Labels   torch.Tensor // [S, C] log π of every label, with Needs.Labels

	Scores torch.Tensor // [S] of a reward model, with Needs.Scores

	// Divergence is Σ w·D of the policy's distribution from the teacher's over the actions, with Needs.Teacher.
	Divergence func(d policy.Divergence) torch.Tensor

	Samples int // of the whole minibatch
	Actions int // of the whole minibatch
	First   bool
	Whole   []*rl.Sample   // the whole minibatch
	Body    []torch.Tensor // the weights that are trained, but for the heads
	Part    []*rl.Sample   // the S samples

	Figures map[string]float64 // sums over the minibatch of what Note and Add were told
}

// Note adds a term of the loss, as it is weighted there, to a figure of the update.
func (b *Batch) Note(s *torch.Scope, name string, term torch.Tensor) { b.Add(name, s.Item(term)) }

// Add adds a share of the minibatch to a figure of the update.
func (b *Batch) Add(name string, share float64) { b.Figures[name] += share }

// Sequences returns member [S, M], 1 where an action is of a sample, and the advantage [S] of each sample's first
// action.
func (b *Batch) Sequences(s *torch.Scope) (member, advantage torch.Tensor) {
	first := make([]float32, len(b.Part))
	for i, x := range b.Part {
		first[i] = x.Advantage[0]
	}
	return b.Members(s), s.Floats(first, int64(len(first)))
}

// Members is [S, M], 1 where an action is of a sample.
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
	if _, isLabel := p.(*policy.Classifier); isLabel {
		return d.Labels
	}
	return d.Tokens
}

var (
	registryLock sync.RWMutex
	registry     = map[string]Definition{}
)

// Register makes an algorithm known, usually from an init function. It panics if the name is empty or taken, or if New is
// missing.
func Register(d Definition) {
	registryLock.Lock()
	defer registryLock.Unlock()
	if _, taken := registry[d.Name]; taken || d.Name == "" || d.New == nil {
		panic(fmt.Sprintf("algo.Register: the name %q is empty or taken, or New is missing", d.Name))
	}
	d.New = withDefaults(d.New)
	if d.Pairs != nil {
		d.Pairs = withDefaults(d.Pairs)
	}
	registry[d.Name] = d
}

// Definitions lists the algorithms registered, by name.
func Definitions() []Definition {
	registryLock.RLock()
	defer registryLock.RUnlock()
	var all []Definition
	for _, name := range slices.Sorted(maps.Keys(registry)) {
		all = append(all, registry[name])
	}
	return all
}

// Find is the definition of an algorithm.
func Find(name string) (Definition, error) {
	var names []string
	for _, d := range Definitions() {
		if d.Name == name {
			return d, nil
		}
		names = append(names, d.Name)
	}
	hint := ""
	if near := nearest.Name(name, names); near != "" {
		hint = fmt.Sprintf(" (did you mean %s?)", near)
	}
	return Definition{}, fmt.Errorf("algorithm %q is unknown%s: choose %s", name, hint, strings.Join(names, ", "))
}
