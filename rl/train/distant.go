package train

import (
	"errors"
	"fmt"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/run"
)

// distant is a policy whose weights are on a service, which takes the optimizer's steps: tinker.Policy. It gives log π of the
// actions and nothing else.
type distant interface {
	Optimizer(beta1, beta2, epsilon, decay float64) run.Optimizer
	Measure(m rl.Meter) // what the service computed since the last step
}

// refuse returns an error if the algorithm or the configuration needs more of a distant policy than log π.
func (t *training) refuse() error {
	c, n := t.config, t.needs
	var found []error
	for _, x := range []struct {
		option string
		used   bool
		why    string
	}{
		{"algorithm", n.Values, "has a value head"},
		{"algorithm", n.Labels || n.Scores, "has no log-probabilities of tokens"},
		{"algorithm", n.Teacher != "", "compares all tokens of the policy with its teacher's"},
		{"entropy_coef", c.EntropyCoef != 0, "needs the probabilities of all tokens"},
		{"use_adaptive_entropy", c.Adaptive, "needs the probabilities of all tokens"},
		{"top_entropy_quantile", c.TopEntropy < 1, "needs the probabilities of all tokens"},
		{"router_aux_loss_coef", c.RouterCoef > 0, "needs the load of the experts"},
		{"gradient_checkpointing", c.Checkpoint, "is the service's to choose"},
		{"optim", c.Optim != "" && c.Optim != "adamw", "is not the service's: use adamw"},
		{"sync_ref_model", c.Sync, "needs the weights"},
		{"ref_update_every", c.ReferenceEvery > 0, "needs the weights: set it to 0"},
		{"temperature", c.Temperature != 1, "must be 1: the service's log-probabilities are those at temperature 1"},
	} {
		if x.used {
			found = append(found, envs.OptionErrorf(x.option, "%s; a policy on a service (--engine) gives the log-probabilities of its tokens alone", x.why))
		}
	}
	if t.hooks.Group.Size() > 1 {
		found = append(found, fmt.Errorf("several processes cannot train one policy on a service (--engine)"))
	}
	return errors.Join(found...)
}
