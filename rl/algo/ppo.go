package algo

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"rltrain/envs/intent"
	"rltrain/rl"
	"rltrain/rl/report"
	"rltrain/torch"
)

// PPOConfig is what PPO on a label policy needs to know.
type PPOConfig struct {
	Episodes     int     // rollouts, each followed by an update
	RolloutSize  int     // steps a rollout holds at most
	BatchSize    int     // steps a minibatch
	UpdateEpochs int     // passes over a rollout
	LearningRate float64 // of adapter and classification head
	ValueRate    float64 // learning rate of the value head
	Gamma        float64
	Lambda       float64
	ClipLow      float64 // the ratio is clipped to [1−ClipLow, 1+ClipHigh]
	ClipHigh     float64
	ValueClip    float64 // the value may move this far in an update; 0 = any way
	ValueCoef    float64
	EntropyCoef  float64
	TargetKL     float64 // a rollout's update stops beyond 1.5 times this; 0 = never
	Whiten       bool    // advantages to mean 0 and deviation 1
	MaxGradNorm  float64 // 0 = no clipping
	Metric       string  // validation figure that picks the best episode
	MicroTokens  int     // tokens a forward pass may hold; 0 = the whole minibatch
	Seed         uint64
}

// PPOResult is how PPO ended. The policy holds the weights of the best episode; episode 0 is the policy as
// it was given, so the result is never worse than that by the validation figure.
type PPOResult struct {
	Updates     int
	BestEpisode int
	Before      Validation
	Best        Validation
	BestReturn  float64 // highest mean reward of a rollout
}

// ppo is PPO under way.
type ppo struct {
	policy    *LabelPolicy
	train     Examples
	rewards   *intent.Rewards
	config    PPOConfig
	hooks     Hooks
	optimizer *torch.AdamW
	buffer    *rl.Buffer
	state     ppoState
	best      snapshot
}

// PPO improves a label policy by proximal policy optimisation (Schulman 2017) as a contextual bandit: an
// episode draws texts, samples a label a ~ π(·|x) for each, pays r, and ends there, so the return is r and
// the advantage A = r − V(x). Then, for some epochs of shuffled minibatches, it descends on
//
//	L = mean max(−A ρ, −A clip(ρ, 1−ε_low, 1+ε_high))                     ρ = π(a|x)/π_old(a|x)
//	  + c_v · ½ mean max((V−R)², (clip(V, V_old ± ε_v) − R)²)
//	  − c_e · mean H(π(·|x))
//
// with A whitened over the rollout. π_old is the trainer's own forward pass on the rollout in the
// minibatches of the first epoch, so the first ratio is exactly 1. Dropout is off. The loop over a rollout
// ends where the mean of ρ − 1 − log ρ (Schulman 2020, "Approximating KL divergence", k3) over an epoch so
// far passes 1.5 times the target: a minibatch alone is too small a sample to stop at.
//
// Rewards that read the policy's own probabilities change when the policy does, which a policy gradient
// does not see. They are differentiated through: the first line of L becomes −mean Σ_a π(a|x) R(a, π), over
// all labels, exact and without a ratio.
//
// Every random choice is a function of (seed, episode, example), and a checkpoint holds the rollout, so a
// resumed run ends with the same bytes as one that was never stopped.
func PPO(ctx context.Context, p *LabelPolicy, train, validation Examples, rewards *intent.Rewards, c PPOConfig, h Hooks) (PPOResult, error) {
	if train.Len() == 0 || validation.Len() == 0 {
		return PPOResult{}, fmt.Errorf("ppo: %d training and %d validation rows; both are needed", train.Len(), validation.Len())
	}
	t := newPPO(p, train, rewards, c, h)
	defer t.optimizer.Close()
	if err := t.start(ctx, validation); err != nil {
		return PPOResult{}, err
	}
	for t.state.Episode <= c.Episodes {
		if err := t.episode(ctx, validation); err != nil {
			return PPOResult{}, err
		}
	}
	if err := t.best.putBack(p); err != nil {
		return PPOResult{}, err
	}
	s := t.state
	if err := h.log("PPO training complete. Best return: %.4f (best episode by validation %s: %d)", s.BestReturn, c.Metric, s.BestEpisode); err != nil {
		return PPOResult{}, err
	}
	return PPOResult{Updates: s.Step, BestEpisode: s.BestEpisode, Before: s.Before, Best: s.Best, BestReturn: s.BestReturn}, nil
}

func newPPO(p *LabelPolicy, train Examples, rewards *intent.Rewards, c PPOConfig, h Hooks) *ppo {
	return &ppo{policy: p, train: train, rewards: rewards, config: c, hooks: h, buffer: rl.NewBuffer(c.RolloutSize),
		optimizer: torch.NewAdamW(torch.AdamEps, torch.ParamGroup{Params: p.adapterParams()},
			torch.ParamGroup{Params: p.headParams()}, torch.ParamGroup{Params: p.valueParams()}),
		state: ppoState{Episode: 1}}
}

// start resumes, or measures the policy as it was given.
func (t *ppo) start(ctx context.Context, validation Examples) error {
	var err error
	if t.hooks.Resume != "" {
		if t.best, err = restoreCheckpoint(t.policy, t.hooks.Resume, t.optimizer, &t.state); err != nil {
			return err
		}
		if err := t.rewards.Restore(t.state.Rewards); err != nil {
			return fmt.Errorf("checkpoint: rewards: %w", err)
		}
		return t.buffer.Restore(t.state.Buffer)
	}
	if t.best, err = takeSnapshot(t.policy); err != nil {
		return err
	}
	if t.state.Before, err = t.validate(ctx, validation); err != nil {
		return err
	}
	t.state.Best = t.state.Before
	return t.hooks.row(t.state.Before.row(report.Row{"step": 0, "episode": 0, "eval_reward": t.state.Before.Reward}))
}

// episode collects a rollout, or goes on with that of a checkpoint, updates on it and validates.
func (t *ppo) episode(ctx context.Context, validation Examples) error {
	c, s := t.config, &t.state
	if !s.Collected {
		if err := t.hooks.log("PPO Episode %d/%d", s.Episode, c.Episodes); err != nil {
			return err
		}
		if err := t.collect(ctx); err != nil {
			return err
		}
	}
	perEpoch := (t.buffer.Len() + c.BatchSize - 1) / c.BatchSize
	total := c.Episodes * c.UpdateEpochs * perEpoch
	stopped := t.buffer.Len() == 0
	for ; s.Epoch < c.UpdateEpochs && !stopped; s.Epoch, s.Batch, s.EpochKL = s.Epoch+1, 0, (ppoTotals{}) {
		for batches := t.minibatches(s.Epoch); s.Batch < len(batches); {
			if ctx.Err() != nil {
				return t.stop()
			}
			began := t.hooks.now()
			figures, err := t.update(batches[s.Batch])
			if errors.Is(err, errTargetKL) {
				stopped = true
				break
			}
			if err != nil {
				return t.explain(batches[s.Batch], err)
			}
			s.Step++
			s.Batch++
			for _, totals := range []*ppoTotals{&s.Totals, &s.Window, &s.EpochKL} {
				totals.add(figures)
			}
			done := ((s.Episode-1)*c.UpdateEpochs+s.Epoch)*perEpoch + s.Batch
			t.hooks.progress(done, total, "reward %.3f, KL %.4f", figures.Reward, figures.KL)
			if t.hooks.logDue(s.Step) {
				row := t.row(s.Window.mean())
				s.Window = ppoTotals{}
				if t.hooks.Now != nil {
					row["time/step"] = t.hooks.now().Sub(began).Seconds()
				}
				if err := t.hooks.row(row); err != nil {
					return err
				}
			}
			if t.hooks.saveDue(s.Step) {
				if err := t.save(); err != nil {
					return err
				}
			}
		}
	}
	return t.endEpisode(ctx, validation, stopped)
}

// minibatches divides the rollout for one epoch.
func (t *ppo) minibatches(epoch int) [][]int {
	return t.buffer.Minibatches(rl.Stream(t.config.Seed, streamMinibatch, uint64(t.state.Episode), uint64(epoch)), t.config.BatchSize)
}

// collect fills the buffer with one step for each drawn text: a label sampled from π, its log-probability,
// V(x) and its reward. Texts whose reward failed are left out.
func (t *ppo) collect(ctx context.Context) error {
	c, s := t.config, &t.state
	drawn := rl.Stream(c.Seed, streamRollout, uint64(s.Episode)).Perm(t.train.Len())
	drawn = drawn[:min(len(drawn), c.RolloutSize)]

	// The minibatches of the first epoch depend on the number of steps alone: forward passes in just these
	// give old log-probabilities that the first update reproduces bit by bit.
	t.buffer.Reset()
	for _, n := range drawn {
		t.buffer.Add(rl.Step{Sample: n, Done: true})
	}
	steps := make([]rl.Step, len(drawn))
	probs := make([][]float32, len(drawn))
	for _, batch := range t.minibatches(0) {
		if err := ctx.Err(); err != nil {
			return t.stop()
		}
		if err := t.act(batch, drawn, steps, probs); err != nil {
			return fmt.Errorf("rollout of episode %d: %w", s.Episode, err)
		}
	}

	t.buffer.Reset()
	t.rewards.ResetStats()
	grad := make([]float64, len(t.policy.Labels))
	sum := 0.0
	for i, step := range steps {
		var ok bool
		if t.rewards.ReadsProbs() {
			var expected float64
			expected, ok = t.rewards.Expected(t.train.Labels[step.Sample], probs[i], grad)
			step.Reward = float32(expected)
		} else {
			step.Reward, ok = t.rewards.Score(step.Action, t.train.Labels[step.Sample])
		}
		if ok {
			t.buffer.Add(step)
			sum += float64(step.Reward)
		}
	}
	t.buffer.Finish(c.Gamma, c.Lambda, 0)
	s.Explained = rl.ExplainedVariance(t.buffer.Value, t.buffer.Return)
	if c.Whiten {
		t.buffer.Whiten()
	}
	n := t.buffer.Len()
	mean := sum / float64(max(1, n))
	if s.Episode == 1 || mean > s.BestReturn {
		s.BestReturn = mean
	}
	s.Collected, s.Epoch, s.Batch, s.Totals, s.EpochKL = true, 0, 0, ppoTotals{}, ppoTotals{}
	return t.reportRollout(n, len(drawn)-n, mean)
}

// act runs the policy on the drawn texts of one batch and samples a label for each.
func (t *ppo) act(batch, drawn []int, steps []rl.Step, probs [][]float32) error {
	indices := gather(batch, func(at int) int { return drawn[at] })
	ids, _ := t.train.at(indices)
	classes := len(t.policy.Labels)
	return torch.Do(torch.NoGrad, func(s *torch.Scope) error {
		for _, part := range microBatches(ids, t.config.MicroTokens) {
			z := t.policy.features(s, ids[part[0]:part[1]], torch.Dropout{})
			logProbs, values := s.Read(t.policy.logProbs(s, z)), s.Read(t.policy.values(s, z))
			for i := part[0]; i < part[1]; i++ {
				row := logProbs[(i-part[0])*classes : (i-part[0]+1)*classes]
				pi := make([]float32, classes)
				for k, lp := range row {
					pi[k] = float32(math.Exp(float64(lp)))
				}
				rng := rl.Stream(t.config.Seed, streamAction, uint64(t.state.Episode), uint64(indices[i]))
				action := sample(pi, rng)
				steps[batch[i]] = rl.Step{Sample: indices[i], Action: action, LogProb: row[action], Value: values[i-part[0]], Done: true}
				probs[batch[i]] = pi
			}
		}
		return nil
	})
}

// sample draws an index with the probabilities pi.
func sample(pi []float32, rng *rand.Rand) int {
	total := 0.0
	for _, p := range pi {
		total += float64(p)
	}
	u := rng.Float64() * total
	last := 0
	for k, p := range pi {
		if p > 0 {
			last = k
		}
		if u -= float64(p); u < 0 {
			return k
		}
	}
	return last
}

// errTargetKL ends the update of a rollout before a step that starts too far from π_old.
var errTargetKL = errors.New("the policy has moved past the target KL")

// update is one step of the optimiser on the buffer's steps of the given positions.
func (t *ppo) update(batch []int) (ppoFigures, error) {
	c, b, p := t.config, t.buffer, t.policy
	n := float64(len(batch))
	indices := gather(batch, func(at int) int { return b.Sample[at] })
	ids, labels := t.train.at(indices)
	var f ppoFigures
	for _, part := range microBatches(ids, c.MicroTokens) {
		steps := batch[part[0]:part[1]]
		if err := torch.Do(torch.Train, func(s *torch.Scope) error {
			z := p.features(s, ids[part[0]:part[1]], torch.Dropout{})
			logProbs := p.logProbs(s, z)
			probs := s.Exp(logProbs)
			var policy torch.Tensor
			size := int64(len(steps))
			actions := s.Ints(gather(steps, func(at int) int64 { return int64(b.Action[at]) }), size)
			logProb := s.Pick(logProbs, actions)
			old := gather(steps, func(at int) float32 { return b.LogProb[at] })
			if t.rewards.ReadsProbs() {
				policy = t.enumerated(s, probs, labels[part[0]:part[1]])
			} else {
				advantage := s.Floats(gather(steps, func(at int) float32 { return b.Advantage[at] }), size)
				policy = clippedSurrogate(s, logProb, s.Floats(old, size), advantage, c.ClipLow, c.ClipHigh)
			}
			values := p.values(s, z)
			value := clippedValueLoss(s, values,
				s.Floats(gather(steps, func(at int) float32 { return b.Value[at] }), size),
				s.Floats(gather(steps, func(at int) float32 { return b.Return[at] }), size), c.ValueClip)
			entropy := s.Neg(s.Sum(s.Mul(probs, logProbs)))
			kl, clipped := divergence(s.Read(logProb), old, c.ClipLow, c.ClipHigh)
			f.Policy += s.Item(policy) / n
			f.Value += s.Item(value) / n
			f.Entropy += s.Item(entropy) / n
			f.V += s.Item(s.Sum(values)) / n
			f.KL += kl / n
			f.Clipped += clipped / n
			loss := s.Add(s.Add(policy, s.Scale(value, c.ValueCoef)), s.Scale(entropy, -c.EntropyCoef))
			s.Backward(s.Scale(loss, 1/n))
			return nil
		}); err != nil {
			return f, err
		}
	}
	for _, at := range batch {
		f.Reward += float64(b.Reward[at]) / n
	}
	epoch := t.state.EpochKL
	epoch.add(f)
	if c.TargetKL > 0 && epoch.mean().KL > 1.5*c.TargetKL {
		return f, errors.Join(errTargetKL, torch.ZeroGrad(p.params()))
	}
	var err error
	f.Norm, err = t.optimizer.Step([]float64{c.LearningRate, c.LearningRate, c.ValueRate}, c.MaxGradNorm)
	return f, err
}

// clippedSurrogate is Σ max(−A ρ, −A clip(ρ, 1−low, 1+high)) with ρ = exp(logProb − old); all [S].
func clippedSurrogate(s *torch.Scope, logProb, old, advantage torch.Tensor, low, high float64) torch.Tensor {
	ratio := s.Exp(s.Sub(logProb, old))
	cost := s.Neg(advantage)
	return s.Sum(s.Maximum(s.Mul(cost, ratio), s.Mul(cost, s.Clamp(ratio, 1-low, 1+high))))
}

// clippedValueLoss is ½ Σ max((V−R)², (V_old + clip(V−V_old, ±limit) − R)²); limit 0 = ½ Σ (V−R)². All [S].
func clippedValueLoss(s *torch.Scope, values, old, returns torch.Tensor, limit float64) torch.Tensor {
	miss := s.Sub(values, returns)
	squared := s.Mul(miss, miss)
	if limit > 0 {
		moved := s.Sub(s.Add(old, s.Clamp(s.Sub(values, old), -limit, limit)), returns)
		squared = s.Maximum(squared, s.Mul(moved, moved))
	}
	return s.Scale(s.Sum(squared), 0.5)
}

// enumerated is −Σ_x Σ_a π(a|x) R(a, π) for rewards that read π. probs [S, C]. Go computes the objective's
// value and its gradient g with respect to π; the returned tensor has that value and that gradient: it is
// −Σ π·g, shifted by a constant.
func (t *ppo) enumerated(s *torch.Scope, probs torch.Tensor, labels []int64) torch.Tensor {
	classes := len(t.policy.Labels)
	flat := s.Read(probs)
	slope := make([]float32, len(flat))
	grad := make([]float64, classes)
	objective, linear := 0.0, 0.0
	for i, label := range labels {
		row := flat[i*classes : (i+1)*classes]
		j, ok := t.rewards.Expected(int(label), row, grad)
		if !ok {
			continue // missing data: no gradient from this text
		}
		objective += j
		for k, g := range grad {
			slope[i*classes+k] = float32(g)
			linear += g * float64(row[k])
		}
	}
	product := s.Sum(s.Mul(probs, s.Floats(slope, int64(len(labels)), int64(classes))))
	return s.Shift(s.Neg(product), linear-objective)
}

// divergence sums ρ − 1 − log ρ, the k3 estimate of KL(π_old‖π), and counts ratios outside of the clip.
func divergence(logProb, old []float32, low, high float64) (kl, clipped float64) {
	for i := range logProb {
		d := float64(logProb[i]) - float64(old[i])
		ratio := math.Exp(d)
		kl += ratio - 1 - d
		if ratio < 1-low || ratio > 1+high {
			clipped++
		}
	}
	return kl, clipped
}

func gather[T, V any](at []T, value func(at T) V) []V {
	out := make([]V, len(at))
	for i, n := range at {
		out[i] = value(n)
	}
	return out
}

// endEpisode validates, keeps the weights where they are the best so far, and moves on.
func (t *ppo) endEpisode(ctx context.Context, validation Examples, stopped bool) error {
	c, s := t.config, &t.state
	f, note := s.Totals.mean(), ""
	if stopped && t.buffer.Len() > 0 {
		note = fmt.Sprintf(" (stopped after %d updates: KL past 1.5 × %g)", s.Totals.Updates, c.TargetKL)
	}
	if err := t.hooks.log("PPO Update: policy_loss=%.4f, value_loss=%.4f, entropy=%.4f, clip_fraction=%.3f, approx_kl=%.5f, explained_variance=%.3f, grad_norm=%.3f%s",
		f.Policy, f.Value, f.Entropy, f.Clipped, f.KL, s.Explained, f.Norm, note); err != nil {
		return err
	}
	v, err := t.validate(ctx, validation)
	if err != nil {
		return err
	}
	if err := t.hooks.row(v.row(report.Row{"step": s.Step, "episode": s.Episode, "eval_reward": v.Reward})); err != nil {
		return err
	}
	better, err := v.betterThan(s.Best, c.Metric)
	if err != nil {
		return err
	}
	if better {
		s.Best, s.BestEpisode = v, s.Episode
		if t.best, err = takeSnapshot(t.policy); err != nil {
			return err
		}
	}
	if err := t.hooks.log("Validation: accuracy=%.4f, f1_macro=%.4f, ece=%.4f, brier=%.4f, reward=%.4f (best episode: %d)",
		v.Accuracy, v.F1Macro, v.ECE, v.Brier, v.Reward, s.BestEpisode); err != nil {
		return err
	}
	t.buffer.Reset()
	s.Episode, s.Collected, s.Epoch, s.Batch = s.Episode+1, false, 0, 0
	if t.hooks.Save != nil {
		return t.save()
	}
	return nil
}

// validate measures the policy; its reward is that expected over its own choice of label, on counts and
// statistics of their own.
func (t *ppo) validate(ctx context.Context, validation Examples) (Validation, error) {
	v, probs, err := t.policy.validate(ctx, validation)
	if err != nil {
		return Validation{}, err
	}
	kept := t.rewards.State()
	grad := make([]float64, len(t.policy.Labels))
	n := 0
	for i, y := range validation.Labels {
		if j, ok := t.rewards.Expected(y, probs[i], grad); ok {
			v.Reward += j
			n++
		}
	}
	v.Reward /= float64(max(1, n))
	return v, t.rewards.Restore(kept)
}
