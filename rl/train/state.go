package train

import (
	"encoding/json"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/run"
)

// training is what all parts of the trainer share.
type training struct {
	policy    policy.Policy
	algorithm algo.Algorithm
	needs     algo.Needs
	accuracy  string // name of the figure of correct actions
	config    Config
	hooks     run.Hooks
	kl        *rl.KLController
	state     state
	scored    bool // log π_old of this step's samples is computed before its first update
}

// state is what changes from step to step, besides the weights and the optimiser's moments.
type state struct {
	Step    int                  `json:"step"`
	Version uint64               `json:"version"`
	Done    bool                 `json:"done"` // an evaluation ended training
	Window  rl.Meter             `json:"window"`
	Watch   rl.Watch             `json:"watch"`
	KL      rl.KLControllerState `json:"kl"`
	Judged  evaluations          `json:"judged"`
	Entropy *entropyState        `json:"entropy,omitempty"` // nil before the first update with EntropyControl
	// MicroTokens replaces Config.MicroTokens after memory ran out; 0 = it never did.
	MicroTokens int             `json:"micro_tokens,omitempty"`
	Silent      int             `json:"silent,omitempty"` // steps without a signal, from the first on
	Source      json.RawMessage `json:"source"`
	Algorithm   json.RawMessage `json:"algorithm"`
}

// entropyState is the coefficient of the entropy bonus and the mean entropy of the last update.
type entropyState struct {
	Coef float64 `json:"coef"`
	Last float64 `json:"last"`
}

// evaluations are what a checkpoint keeps of the evaluations so far.
type evaluations struct {
	Before    json.RawMessage `json:"before,omitempty"`
	Best      json.RawMessage `json:"best,omitempty"`
	Last      json.RawMessage `json:"last,omitempty"`
	BestScore float64         `json:"best_score"`
	// BeforeScore and LastScore are scores in words, such as "accuracy 0.25".
	BeforeScore string `json:"before_score,omitempty"`
	LastScore   string `json:"last_score,omitempty"`
	BestStep    int    `json:"best_step"`
	Waited      int    `json:"waited,omitempty"` // evaluations since the best
}

// refers says whether log π_ref is needed.
func (t *training) refers() bool { return t.config.refers(t.needs) }

// scoresFirst says whether log π_old is needed before the first update of a step.
func (t *training) scoresFirst() bool {
	c := t.config
	return t.needs.Values && !t.needs.SharedValues || t.needs.Sampled || t.needs.Ratio != algo.NoRatio && c.repeats() || c.KLCoef > 0 && c.KLInReward
}
