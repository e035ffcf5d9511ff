package envs

import (
	"context"

	"github.com/rltrain/rltrain/torch/transformers/decision"
	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

// Decision is a question about a state, and what is known of its answer.
type Decision struct {
	State    jinja.Value // text, object or list
	Question decision.Question
	// Target is the probability of each option of the question, in order; nil if only Feedback is known.
	Target   []float64
	Feedback *Feedback
	Row      int    // number of its row; the questions of a row share the state
	Split    string // dataset.Train, Val or Test; "" if the rows have no splits
	File     string
	Line     int
}

// Feedback is the reward of one option that was chosen in the past.
type Feedback struct {
	Chosen      int     // index of the option
	Reward      float64 // 0 (wrong) to 1 (right)
	Probability float64 // with which it was chosen
}

// Truth is the index of the most likely option of the target, the first of equal ones; -1 without a target.
func (d *Decision) Truth() int {
	best := -1
	for i, p := range d.Target {
		if best < 0 || p > d.Target[best] {
			best = i
		}
	}
	return best
}

// DecisionSource provides typed questions about states. Its task trains a decision model.
type DecisionSource interface {
	// Decisions returns the questions of all rows in order. Without splits in the data, Split is "".
	Decisions(ctx context.Context, s Setup) ([]Decision, error)
	// Scores tells whether a model answers by the tokens of labels, instead of a head: "score", "head", or "auto".
	PolicyKind() string
	// OnlyChosen tells whether RL sees the reward of the sampled option alone.
	OnlyChosen() bool
}
