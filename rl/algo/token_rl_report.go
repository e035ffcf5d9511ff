package algo

import (
	"math"
	"slices"

	"rltrain/envs"
	"rltrain/rl"
	"rltrain/rl/report"
)

// measure compares, over all tokens learnt from, the trainer with the sampler and the policy with its
// reference, both as they were before the updates.
func (f *tokenFigures) measure(c TokenRLConfig) {
	n := 0.0
	for _, x := range f.samples {
		for at, sampled := range x.sampledLogProbs(c.Temperature) {
			now := float64(x.Old[at])
			gap := math.Abs(now - float64(sampled))
			f.difference[0] += gap
			f.difference[1] = max(f.difference[1], gap)
			if x.Reference != nil {
				reference := float64(x.Reference[at])
				f.kl[0] += rl.K1.Value(now, reference)
				f.kl[1] += rl.K2.Value(now, reference)
				f.kl[2] += rl.K3.Value(now, reference)
			}
			n++
		}
	}
	f.klSequence = f.kl[0] / float64(len(f.samples))
	f.difference[0] /= n
	for i := range f.kl {
		f.kl[i] /= n
	}
}

// report writes the line and the row of a step, and what the alarms say.
func (t *tokenRL) report(r collection, f tokenFigures) error {
	c, s := t.config, &t.state
	stats := rl.StatsOf(rewardsOf(r.played))
	all := flatten(r.played, func(g rl.Group) []*rl.Trajectory { return g })
	scores := rl.ScoreAnswers(gather(all, func(x *rl.Trajectory) *envs.Info { return x.Info }))
	formatted := int(math.Round(scores.FormatRate * float64(scores.N)))
	for _, x := range all {
		s.Tokens += int64(len(x.Tokens))
	}
	row := report.Row{
		"step": s.Step, "policy_version": s.Version, "num_tokens": s.Tokens,
		"reward": stats.Mean, "reward_std": stats.Std, "frac_reward_zero_std": stats.ZeroStd, "failed_rewards": stats.Failed,
		"accuracy": scores.Accuracy, "format_rate": scores.FormatRate,
		"learning_rate": t.schedule.At(s.Step-1) * c.LearningRate,
	}
	truncated := lengths(all, row)
	u := f.row(t.algorithm, c, row)
	if c.KLCoef > 0 {
		row["kl/k1"], row["kl/k2"], row["kl/k3"], row["kl_coef"] = f.kl[0], f.kl[1], f.kl[2], t.kl.Coef()
	}
	row["failed_episodes"], row["timeouts"] = r.failed.n, r.failed.timeouts
	if c.Async {
		row["staleness"] = t.staleness(f.samples)
		if len(f.samples) > 0 {
			const name = "sampling/importance_sampling_ratio/"
			row[name+"min"], row[name+"mean"], row[name+"max"] = f.ratios[0], f.ratios[1], f.ratios[2]
		}
	}
	if c.DynamicSampling {
		row["dropped_prompts"] = r.dropped
	}
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
	if err := t.hooks.log("[SYNC %2d] %d/%d correct %d/%d formatted loss=%.4f reward=%.3f gen=%dms train=%dms version=%d",
		s.Step, scores.Correct, scores.N, formatted, scores.N, u.Loss, stats.Mean,
		(r.generation + r.environment).Milliseconds(), (f.scoring + f.updating).Milliseconds(), s.Version); err != nil {
		return err
	}
	if c.Verbose {
		for _, x := range all {
			if err := t.reportSample(x); err != nil {
				return err
			}
		}
	}
	s.History = append(s.History, rl.Health{
		ZeroStd: stats.ZeroStd, Truncated: truncated, Ended: share(all, ended), Correct: scores.Accuracy,
		Formatted: scores.FormatRate, Tiers: scores.Tiers, KL: f.kl[2], Failed: float64(stats.Failed) / float64(len(all)),
	})
	if r.failed.n > 0 {
		if err := t.hooks.log("warning: %d episodes of step %d failed, %d of them by running out of time, and are left out; the first: %v", r.failed.n, s.Step, r.failed.timeouts, r.failed.first); err != nil {
			return err
		}
	}
	return t.warn(f)
}

// staleness is how many updates the policy that was learning was ahead of the oldest of its samples.
func (t *tokenRL) staleness(samples []*TokenSample) uint64 {
	oldest := t.state.Version
	for _, x := range samples {
		oldest = min(oldest, x.Version+1) // the update since then is this step's
	}
	return t.state.Version - oldest
}

// row adds the figures of the updates, and returns their means.
func (f *tokenFigures) row(a Algorithm, c TokenRLConfig, row report.Row) updateFigures {
	if len(f.samples) == 0 {
		return updateFigures{}
	}
	var sum updateFigures
	n := float64(max(1, len(f.minibatch)))
	lowest, highest := 1.0, 0.0
	for _, u := range f.minibatch {
		sum.Loss, sum.Policy, sum.Value, sum.Norm = sum.Loss+u.Loss/n, sum.Policy+u.Policy/n, sum.Value+u.Value/n, sum.Norm+u.Norm/n
		sum.Entropy, sum.KL, sum.Tokens = sum.Entropy+u.Entropy, sum.KL+u.KL, sum.Tokens+u.Tokens
		sum.Low, sum.High, sum.Ratios = sum.Low+u.Low, sum.High+u.High, sum.Ratios+u.Ratios
		lowest, highest = min(lowest, u.Low/u.Ratios), max(highest, u.High/u.Ratios)
	}
	tokens, ratios := max(1, sum.Tokens), max(1, sum.Ratios)
	row["loss"], row["policy_loss"], row["grad_norm"] = sum.Loss, sum.Policy, sum.Norm
	row["entropy"], row["updates"] = sum.Entropy/tokens, f.updates()
	size := 0.0
	advantages := flatten(f.samples, func(x *TokenSample) []float32 { return x.Advantage })
	for _, x := range advantages {
		size += math.Abs(float64(x)) / float64(len(advantages))
	}
	row["advantage_abs_mean"] = size
	if a.Ratio != NoRatio {
		row["approx_kl"] = sum.KL / tokens
		row["clip_ratio/low_mean"], row["clip_ratio/high_mean"] = sum.Low/ratios, sum.High/ratios
		row["clip_ratio/low_min"], row["clip_ratio/high_max"] = lowest, highest
		row["clip_ratio/region_mean"] = (sum.Low + sum.High) / ratios
	}
	if !math.IsNaN(f.baseline) {
		row["baseline/mean"] = f.baseline
	}
	if a.ValueLoss != nil {
		row["value_loss"], row["explained_variance"] = sum.Value, f.explained()
	}
	// Of a filtered distribution at another temperature than 1 the trainer has no counterpart.
	if c.Temperature == 1 || !c.filtered() {
		row["sampling/sampling_logp_difference/mean"], row["sampling/sampling_logp_difference/max"] = f.difference[0], f.difference[1]
	}
	return sum
}

// lengths adds how long the completions are, and returns the share of those cut off.
func lengths(all []*rl.Trajectory, row report.Row) (truncated float64) {
	add := func(name string, n []int) {
		if len(n) == 0 {
			return
		}
		sum := 0
		for _, length := range n {
			sum += length
		}
		row["completions/mean_"+name] = float64(sum) / float64(len(n))
		row["completions/min_"+name], row["completions/max_"+name] = slices.Min(n), slices.Max(n)
	}
	add("length", gather(all, (*rl.Trajectory).Length))
	var whole []int
	for _, x := range all {
		if x.Stop != envs.StopLength {
			whole = append(whole, x.Length())
		}
	}
	add("terminated_length", whole)
	truncated = 1 - float64(len(whole))/float64(len(all))
	row["completions/clipped_ratio"] = truncated
	return truncated
}

func ended(x *rl.Trajectory) bool { return x.Stop == envs.StopEnd || x.Stop == envs.StopString }

// share is how many of all are so.
func share(all []*rl.Trajectory, so func(x *rl.Trajectory) bool) float64 {
	n := 0
	for _, x := range all {
		if so(x) {
			n++
		}
	}
	return float64(n) / float64(len(all))
}

// warn tells of the alarms that were not raised the step before, and of a step without an update.
func (t *tokenRL) warn(f tokenFigures) error {
	if err := t.hooks.alarms(t.state.History); err != nil {
		return err
	}
	switch {
	case len(f.samples) == 0:
		return t.hooks.log("warning: step %d has no sample to learn from; the policy stays as it is", t.state.Step)
	case f.stopped:
		return t.hooks.log("stopped the updates of step %d after %d: KL past 1.5 × %g", t.state.Step, f.updates(), t.config.TargetKL)
	}
	return nil
}

// reportSample writes what the policy wrote, the environment's words between it included.
func (t *tokenRL) reportSample(x *rl.Trajectory) error {
	first := slices.Index(x.Source, rl.Sampled)
	text := ""
	if first >= 0 {
		var err error
		if text, err = t.policy.Tokenizer.Decode(x.Tokens[first:], false); err != nil {
			return err
		}
	}
	return t.hooks.log("  episode %d, sample %d: reward %g, %s: %q", x.Prompt, x.Sample, x.Reward(), x.Stop, text)
}

// reportEnd closes the lines of the steps. Where a run was resumed, it is about the part since then.
func (t *tokenRL) reportEnd() error {
	if t.hooks.Now == nil {
		return nil
	}
	wall, n := t.hooks.now().Sub(t.began).Seconds(), t.state.Generations-t.earlier
	return t.hooks.log("%.1f s wall time, %d generations, %.1f generations/s, policy version %d", wall, n, float64(n)/wall, t.state.Version)
}
