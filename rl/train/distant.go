package train

import (
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/run"
)

// distant is a policy whose weights are on a service, which takes the optimizer's steps: tinker.Policy. It gives log π of the
// actions and nothing else.
type distant interface {
	Optimizer(beta1, beta2, epsilon, decay float64) run.Optimizer
	Measure(m rl.Meter) // what the service computed since the last step
}

// CheckDistant returns an error, of the option, if an algorithm or a configuration needs more of a policy on a service than
// log π.
func CheckDistant(a algo.Algorithm, c Config) error {
	c, n := c.complete(), a.Needs()
	for _, x := range []struct {
		option string
		used   bool
		why    string
	}{
		{"algorithm", n.Values, "it needs a value head"},
		{"algorithm", n.Labels || n.Scores, "it needs more than the log-probabilities of tokens"},
		{"algorithm", n.Teacher != "" && !n.Sampled, "it needs the probabilities of all tokens: use divergence sampled"},
		{"teacher", n.Teacher == algo.TeacherSelf, "self needs the weights"},
		{"neftune_noise_alpha", n.Noise > 0, "a service has no noise"},
		{"entropy_coef", c.EntropyCoef != 0, "needs the probabilities of all tokens"},
		{"use_adaptive_entropy", c.Adaptive, "needs the probabilities of all tokens"},
		{"top_entropy_quantile", c.TopEntropy < 1, "needs the probabilities of all tokens"},
		{"router_aux_loss_coef", c.RouterCoef > 0, "needs the load of the experts"},
		{"optim", c.Optim != "" && c.Optim != "adamw", "a service has adamw"},
		{"sync_ref_model", c.Sync, "needs the weights"},
		{"ref_update_every", c.ReferenceEvery > 0, "needs the weights: set it to 0"},
		{"temperature", c.Temperature != 1, "its log-probabilities are those at temperature 1"},
	} {
		if x.used {
			return envs.OptionErrorf(x.option, "cannot be combined with a policy on a service (--engine): %s", x.why)
		}
	}
	return nil
}
