package algo

import (
	"errors"
	"fmt"

	"rltrain/envs/intent"
	"rltrain/rl"
	"rltrain/rl/report"
	"rltrain/torch"
)

// ppoState is all that changes from update to update, the weights and the optimiser's moments aside.
type ppoState struct {
	Step        int                 `json:"step"`    // updates applied
	Episode     int                 `json:"episode"` // under way, from 1
	Epoch       int                 `json:"epoch"`   // of the rollout, from 0
	Batch       int                 `json:"batch"`   // next minibatch of the epoch
	Collected   bool                `json:"collected"`
	Buffer      rl.BufferState      `json:"buffer"`
	Rewards     intent.RewardsState `json:"rewards"`
	Explained   float64             `json:"explained_variance"`
	Totals      ppoTotals           `json:"totals"`   // of the episode
	Window      ppoTotals           `json:"window"`   // since the last row
	EpochKL     ppoTotals           `json:"epoch_kl"` // of the epoch
	Before      Validation          `json:"before"`
	Best        Validation          `json:"best"`
	BestEpisode int                 `json:"best_episode"`
	BestReturn  float64             `json:"best_return"`
}

// ppoTotals sums the figures of some updates.
type ppoTotals struct {
	Updates int        `json:"updates"`
	Sum     ppoFigures `json:"sum"`
}

// ppoFigures are what an update is judged by: means over its minibatch.
type ppoFigures struct {
	Policy  float64 `json:"policy"`  // the surrogate, or minus the expected reward
	Value   float64 `json:"value"`   // the value loss
	Entropy float64 `json:"entropy"` // nats
	KL      float64 `json:"kl"`      // nats, from π_old
	Clipped float64 `json:"clipped"` // share of ratios outside of the clip
	Norm    float64 `json:"norm"`    // of the gradient before clipping
	Reward  float64 `json:"reward"`
	V       float64 `json:"v"` // V(x)
}

func (t *ppo) row(f ppoFigures) report.Row {
	return report.Row{
		"step": t.state.Step, "reward": f.Reward, "policy_loss": f.Policy, "value_loss": f.Value,
		"entropy": f.Entropy, "approx_kl": f.KL, "clip_fraction": f.Clipped, "grad_norm": f.Norm, "value": f.V,
		"explained_variance": t.state.Explained, "learning_rate": t.config.LearningRate,
	}
}

func (a *ppoTotals) add(f ppoFigures) {
	a.Updates++
	a.Sum = a.Sum.combine(f, 1, 1)
}

func (a ppoTotals) mean() ppoFigures {
	return a.Sum.combine(ppoFigures{}, 1/float64(max(1, a.Updates)), 0)
}

// combine is x·f + y·g.
func (f ppoFigures) combine(g ppoFigures, x, y float64) ppoFigures {
	return ppoFigures{
		Policy: x*f.Policy + y*g.Policy, Value: x*f.Value + y*g.Value, Entropy: x*f.Entropy + y*g.Entropy,
		KL: x*f.KL + y*g.KL, Clipped: x*f.Clipped + y*g.Clipped, Norm: x*f.Norm + y*g.Norm,
		Reward: x*f.Reward + y*g.Reward, V: x*f.V + y*g.V,
	}
}

func (t *ppo) reportRollout(n, failed int, mean float64) error {
	names, equal := "", n > 0 && !t.rewards.ReadsProbs()
	for i, stats := range t.rewards.Stats() {
		if i > 0 {
			names += ","
		}
		names += stats.Name
	}
	if err := t.hooks.log("Collected rollout: %d steps, avg return=%.4f, reward_metric=%s", n, mean, names); err != nil {
		return err
	}
	for _, r := range t.buffer.Reward {
		equal = equal && r == t.buffer.Reward[0]
	}
	if equal {
		if err := t.hooks.log("warning: every reward of the rollout is %.4g, so it teaches the policy nothing", t.buffer.Reward[0]); err != nil {
			return err
		}
	}
	if failed > 0 {
		return t.hooks.log("warning: the reward of %d of %d texts failed; they are left out", failed, n+failed)
	}
	return nil
}

func (t *ppo) save() error {
	t.state.Buffer, t.state.Rewards = t.buffer.State(), t.rewards.State()
	return t.hooks.Save(t.state.Step, func(dir string) error {
		return saveCheckpoint(t.policy, dir, t.optimizer, t.state, t.best)
	})
}

// stop saves where it can, and ends with ErrStopped. A rollout under way is not saved but collected again, to
// the same bytes, from the checkpoint at the end of the episode before, or from the start.
func (t *ppo) stop() error {
	if t.hooks.Save == nil || !t.state.Collected {
		return ErrStopped
	}
	return errors.Join(ErrStopped, t.save())
}

func (t *ppo) explain(batch []int, err error) error {
	var nonFinite *torch.NonFiniteError
	if !errors.As(err, &nonFinite) {
		return fmt.Errorf("update %d: %w", t.state.Step+1, err)
	}
	rows := gather(batch, func(at int) int { return t.buffer.Sample[at] })
	return t.hooks.broken(t.state.Step+1, rows, map[string]any{
		"episode": t.state.Episode, "actions": gather(batch, func(at int) int { return t.buffer.Action[at] }),
		"advantages": gather(batch, func(at int) float32 { return t.buffer.Advantage[at] }),
		"logprobs":   gather(batch, func(at int) float32 { return t.buffer.LogProb[at] }),
	}, err)
}
