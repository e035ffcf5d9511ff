// Package policy has what acts and learns: CausalLM, a language model whose actions are tokens, Classifier, whose action is
// a label, and RewardModel, which scores completions. It makes, loads, saves and merges policies, turns texts into their
// tokens, and generates. How a policy improves is for package algo.
package policy

import (
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch"
)

// Policy is a policy as an algorithm sees it. The trainer calls Forward for one batch of samples at a time: without
// gradient for log-probabilities before an update, with gradient for the loss. CausalLM, Classifier and RewardModel
// implement it.
type Policy interface {
	run.Weights

	// Forward runs the policy on the S sequences of a batch and evaluates their M actions.
	Forward(s *torch.Scope, b *rl.Batch, p Pass) Output

	// Groups are the parts of Params, for the optimiser.
	Groups() ([]Group, error)

	// AddValueHead gives the policy a value head, saved with its weights: the one in the folder that the policy was loaded
	// from, or one of zeros. It does nothing if the policy has one.
	AddValueHead() error

	// Fresh says whether the policy equals its base model: the adapter was never trained.
	Fresh() (bool, error)
}

// Pass says how Forward computes.
type Pass struct {
	Base        bool    // without the adapter
	Values      bool    // compute values; the policy has a value head
	EndToEnd    bool    // the gradient of the values reaches the other weights too
	Dropout     bool    // of the adapter's input, by the keys of the batch
	Noise       float64 // alpha of the noise on the embeddings of a CausalLM's tokens (NEFTune), by the keys of the batch; 0 = none
	Load        bool    // measure the load of a mixture's experts
	Checkpoint  bool    // keep only each block's input for the gradient: less memory, a third more time
	Temperature float64 // divides the logits of a language model; a classifier ignores it
}

// Output is a policy's evaluation of the M actions of a batch.
type Output struct {
	LogProbs torch.Tensor // [M] log π of each action, in nats
	Entropy  torch.Tensor // [M] of the distribution at each action, in nats
	// Rank counts for each action the actions that are more likely, [M].
	Rank   func(s *torch.Scope) []int64
	Values torch.Tensor // [M] V, with Pass.Values; its gradient ends at the value head, unless Pass.Through
	Labels torch.Tensor // [S, C] log π of every label, from a Classifier
	Scores torch.Tensor // [S] rewards, from a RewardModel
	Load   torch.Tensor // [2, E] as in torch.Pass, with Pass.Load

	vocabulary vocabulary // from a CausalLM
}

// vocabulary gives the distributions over all tokens at the M actions of a batch.
type vocabulary struct {
	states   torch.Tensor                                           // [M, H]
	size     int                                                    // V
	logProbs func(s *torch.Scope, states torch.Tensor) torch.Tensor // log π of every token, [m, V], of states [m, H]
}

// Role says what a group of weights is for.
type Role string

// The roles of weights.
const (
	Body  Role = "body"  // the adapter, or all weights of a language model
	Head  Role = "head"  // the classification head
	Value Role = "value" // the value head
)

// Group is a set of weights with the same optimiser settings.
type Group struct {
	Role   Role
	Params []*torch.Var
	Decay  bool // weight decay applies: to matrices, not to norms and biases
	Hidden bool // matrices of layers, all of whose weights are trained
}
