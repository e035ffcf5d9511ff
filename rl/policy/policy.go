// Package policy holds what acts and learns: classifiers, whose action is a label, and language models, whose actions
// are tokens. It knows how a policy is made, loaded, saved and merged, how texts become its tokens, and how it writes;
// how it gets better is for package algo.
package policy

import (
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch"
)

// Policy is a policy as an algorithm sees it. The trainer calls Forward, for a batch of samples at a time: without
// gradient for log-probabilities before an update, with it for the loss. Label and Token are the two kinds.
type Policy interface {
	run.Weights

	// Forward reads the S sequences of a batch and says what the policy thinks of their M actions.
	Forward(s *torch.Scope, b *rl.Batch, p Pass) Output

	// Groups are the parts of Params, for the optimiser.
	Groups() []Group

	// AddValueHead gives the policy a value head, saved with its weights: the one that it was loaded with, or one of
	// zeros. Where it has one nothing happens.
	AddValueHead() error

	// Fresh says whether the policy without its adapter is the policy itself: the adapter was never trained.
	Fresh() (bool, error)
}

// Pass says how Forward computes.
type Pass struct {
	Base        bool    // without the adapter
	Values      bool    // values are wanted; the policy has a value head
	Through     bool    // and their gradient goes on into the rest of the weights
	Dropout     bool    // of the adapter's input, by the keys of the batch
	Checkpoint  bool    // keep only each block's input for the gradient: less memory, a third more time
	Temperature float64 // that divides the logits of a language model; a classifier's are as they are
}

// Output is what a policy says of the M actions of a batch.
type Output struct {
	LogProbs torch.Tensor // [M] log π of each action, in nats
	Entropy  torch.Tensor // [M] of the distribution at each action, in nats
	Rank     func(s *torch.Scope) []int64
	Values   torch.Tensor // [M] V, where it was asked for; its gradient ends at the value head, unless Pass.Through
	Labels   torch.Tensor // [S, C] log π of every label; of a Label policy only
	Scores   torch.Tensor // [S] rewards; of a reward model only

	head head // of a language model only, see Diverge
}

// Role is what a part of the weights is for.
type Role string

// The roles of weights.
const (
	Body  Role = "body"  // the adapter, or all weights of a language model
	Head  Role = "head"  // the classification head
	Value Role = "value" // the value head
)

// Group is weights that are optimised alike.
type Group struct {
	Role   Role
	Params []*torch.Var
	Decay  bool // weight decay acts on them: matrices, but no norms and biases
}

// predictTokens bounds a batch of predictions: large enough for full matrix products, small enough that
// its activations stay in tens of megabytes.
const predictTokens = 4096

// values is V of the states x [M, H], [M]. Unless it is to go through, its gradient ends here: the first errors of a
// head that starts at zero would otherwise drown what the policy has to learn.
func values(s *torch.Scope, x torch.Tensor, head valueHead, pass Pass) torch.Tensor {
	if !pass.Through {
		x = s.Detach(x)
	}
	return s.Squeeze(s.Linear(x, head.weight.T(), head.bias.T()))
}
