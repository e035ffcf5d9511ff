package algo

import (
	"math"

	"rltrain/envs"
	"rltrain/rl"
	"rltrain/rl/report"
)

// report writes the line and the row of a step, and what the alarms say.
func (t *tokenReplay) report(r played, f replayFigures) error {
	c, s := t.config, &t.state
	rewards := gather(r.trajectories, (*rl.Trajectory).Reward)
	stats := rl.StatsOf([][]float64{rewards})
	scores := rl.ScoreAnswers(gather(r.trajectories, func(x *rl.Trajectory) *envs.Info { return x.Info }))
	turns := 0
	for _, x := range r.trajectories {
		s.Tokens += int64(len(x.Tokens))
		turns += len(x.Turns)
	}
	row := report.Row{
		"step": s.Step, "policy_version": s.Version, "num_tokens": s.Tokens,
		"reward": stats.Mean, "reward_std": stats.Std, "failed_rewards": stats.Failed,
		"accuracy": scores.Accuracy, "format_rate": scores.FormatRate,
		"learning_rate": t.schedule.At(s.Step-1) * c.LearningRate, "updates": len(f.updates),
		"buffer/size": t.buffer.Len(), "buffer/added": r.turns, "buffer/skipped": r.skipped, "buffer/staleness": f.staleness,
		"episode_length": float64(turns) / float64(len(r.trajectories)),
	}
	truncated := lengths(r.trajectories, row)
	u := f.row(c, row)
	if t.hooks.Now != nil {
		row["time/generation"], row["time/environment"] = r.generation.Seconds(), r.environment.Seconds()
		row["time/logprobs"], row["time/update"] = f.scoring.Seconds(), f.updating.Seconds()
		row["time/step"] = (r.generation + r.environment + f.scoring + f.updating).Seconds()
	}
	if t.hooks.logDue(s.Step) || s.Step == c.Steps {
		if err := t.hooks.row(row); err != nil {
			return err
		}
	}
	t.hooks.progress(s.Step, c.Steps, "reward %.3f", stats.Mean)
	if err := t.hooks.log("[SYNC %2d] %d/%d correct %d/%d formatted loss=%.4f reward=%.3f buffer=%d gen=%dms train=%dms version=%d",
		s.Step, scores.Correct, scores.N, int(math.Round(scores.FormatRate*float64(scores.N))), scores.N, u.Loss, stats.Mean, t.buffer.Len(),
		(r.generation + r.environment).Milliseconds(), (f.scoring + f.updating).Milliseconds(), s.Version); err != nil {
		return err
	}
	// Episodes are played once each, so there are no groups whose rewards could be equal.
	s.History = append(s.History, rl.Health{
		Truncated: truncated, Ended: share(r.trajectories, ended), Correct: scores.Accuracy,
		Formatted: scores.FormatRate, Tiers: scores.Tiers, Failed: float64(stats.Failed) / float64(len(r.trajectories)),
	})
	return t.warn(f)
}

// row adds the figures of the updates, and returns their means.
func (f *replayFigures) row(c TokenReplayConfig, row report.Row) turnFigures {
	if len(f.updates) == 0 {
		return turnFigures{}
	}
	var sum turnFigures
	n := float64(len(f.updates))
	for _, u := range f.updates {
		sum.Loss, sum.Norm = sum.Loss+u.Loss/n, sum.Norm+u.Norm/n
		sum.Entropy, sum.KL, sum.Tokens, sum.Turns = sum.Entropy+u.Entropy, sum.KL+u.KL, sum.Tokens+u.Tokens, sum.Turns+u.Turns
	}
	row["loss"], row["grad_norm"], row["entropy"] = sum.Loss, sum.Norm, sum.Entropy/sum.Tokens
	if c.refers() {
		row["kl/k1"] = sum.KL / sum.Turns
	}
	if f.compared > 0 {
		row["sampling/sampling_logp_difference/mean"], row["sampling/sampling_logp_difference/max"] = f.difference[0], f.difference[1]
	}
	return sum
}

// warn tells of the alarms that were not raised the step before, and of a step without an update.
func (t *tokenReplay) warn(f replayFigures) error {
	if err := t.hooks.alarms(t.state.History); err != nil {
		return err
	}
	if len(f.updates) == 0 {
		return t.hooks.log("warning: step %d has no turn to learn from; the policy stays as it is", t.state.Step)
	}
	return nil
}
