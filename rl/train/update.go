package train

import (
	"errors"
	"fmt"
	"slices"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/torch"
)

// learn makes the policy better by the samples of a step.
func (t *Trainer) learn(step *rl.Step) error {
	began := t.hooks.Time()
	t.scored = t.scoredFirst() || step.Prefetched
	defer t.letGo()
	if t.needs.Choose != nil {
		t.needs.Choose(step)
	}
	err := t.score(step.Samples)
	if err == nil {
		err = t.askAside(step.KLSamples)
	}
	if err != nil {
		return fmt.Errorf("step %d: %w", t.state.Step+1, err)
	}
	scoring := t.hooks.Time().Sub(began)
	step.Figures.Mean("time/logprobs", scoring.Seconds(), 1)
	if err := t.algorithm.Prepare(step); err != nil {
		return fmt.Errorf("step %d: %w", t.state.Step+1, err)
	}
	if step.Prefetched {
		t.weighByImportance(step)
	}
	m := step.Figures
	m.Last("learning_rate", t.schedule.At(t.state.Step)*t.config.LearningRate)
	if t.config.KLCoef > 0 {
		m.Last("kl_coef", t.kl.Coef())
	}
	updates, err := t.updates(step)
	if err != nil {
		return err
	}
	if updates > 0 {
		t.policy.Changed()
		t.state.Version++
	}
	t.measure(step)
	if err := measureGPU(m); err != nil {
		return err
	}
	t.state.Step++
	if every := t.config.ReferenceEvery; every > 0 && t.state.Step%every == 0 && t.reference.weights != nil {
		if err := t.reference.take(t.policy); err != nil {
			return err
		}
	}
	spent := t.hooks.Time().Sub(began) - scoring
	m.Mean("time/update", spent.Seconds(), 1)
	m.Mean("time/step", spent.Seconds()+scoring.Seconds()+m.Get("time/generation")+m.Get("time/environment"), 1)
	if t.needs.Rewards && len(step.Samples) == 0 {
		step.Notes = append(step.Notes, fmt.Sprintf("warning: step %d has no sample to learn from; the policy stays as it is", t.state.Step))
	}
	return nil
}

// measureGPU notes what the memory of the GPU holds, in bytes, and how busy it is, in percent, where one computes.
func measureGPU(m rl.Meter) error {
	memory, err := torch.MemoryOfGPU()
	if err != nil || memory == nil {
		return err
	}
	m.Last("gpu/memory_allocated", float64(memory.Allocated))
	m.Last("gpu/memory_peak", float64(memory.Peak))
	m.Last("gpu/memory_reserved", float64(memory.Reserved))
	// Not every driver tells.
	if use, err := torch.UseOfGPU(); err == nil {
		m.Last("gpu/busy", float64(use.Busy))
		m.Last("gpu/memory_busy", float64(use.Memory))
	}
	return nil
}

// minibatches divides the samples for one pass.
func (t *Trainer) minibatches(samples []*rl.Sample, epoch int) [][]*rl.Sample {
	var batches [][]*rl.Sample
	for _, part := range rl.Minibatches(t.config.Seed, t.state.Step, epoch, len(samples), t.config.Minibatches, t.config.MinibatchSize) {
		batch := make([]*rl.Sample, len(part))
		for i, n := range part {
			batch[i] = samples[n]
		}
		batches = append(batches, batch)
	}
	return batches
}

// forward runs visit on each part of a batch.
func (t *Trainer) forward(mode torch.Mode, batch []*rl.Sample, visit func(s *torch.Scope, part []*rl.Sample, b *rl.Batch)) error {
	if len(batch) == 0 {
		return nil
	}
	for _, part := range t.parts(batch) {
		if err := torch.Do(mode, func(s *torch.Scope) error {
			visit(s, part, rl.NewBatch(part))
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// ask runs visit, which has to bear being run again, on each part of a batch of which no gradient is wanted.
func (t *Trainer) ask(batch []*rl.Sample, visit func(s *torch.Scope, part []*rl.Sample, b *rl.Batch)) error {
	return t.withinMemory(func() error { return t.forward(torch.NoGrad, batch, visit) }, batch)
}

// parts divides a batch for forward passes.
func (t *Trainer) parts(batch []*rl.Sample) [][]*rl.Sample {
	return rl.Parts(batch, t.needs.Together, t.microTokens())
}

// microTokens is how many tokens a forward pass may hold: as the run was told to, or fewer where memory ran out.
func (t *Trainer) microTokens() int {
	if told := t.config.MicroTokens; t.state.MicroTokens == 0 || told > 0 && told < t.state.MicroTokens {
		return told
	}
	return t.state.MicroTokens
}

// withinMemory runs forward passes of batches, and backward ones, again from their beginning whenever memory runs out,
// with passes half as large. What forward has left behind, it has to take away itself when it is run again.
func (t *Trainer) withinMemory(forward func() error, batches ...[]*rl.Sample) error {
	for {
		err := forward()
		if !torch.OutOfMemory(err) {
			return err
		}
		t.letGo()
		if err := t.halve(err, batches); err != nil {
			return err
		}
	}
}

// halve makes the passes of this run half as large as the largest of batches is, or says what else there is to do.
func (t *Trainer) halve(cause error, batches [][]*rl.Sample) error {
	var largest []*rl.Sample
	tokens := 0
	for _, batch := range batches {
		if len(batch) == 0 {
			continue
		}
		for _, part := range t.parts(batch) {
			if n := rl.Tokens(part); n > tokens {
				largest, tokens = part, n
			}
		}
	}
	units := len(largest)
	if t.needs.Together {
		units = len(rl.Units(largest))
	}
	pass := fmt.Sprintf("a pass of %s, %s tokens", report.Plural(len(largest), "sample"), report.Count(int64(tokens)))
	switch {
	case units < 2:
		checkpoint := ""
		if !t.config.Checkpoint {
			checkpoint = "use gradient_checkpointing where a language model is trained, or "
		}
		return fmt.Errorf("%w; %s cannot be divided: %strain on texts of at most %s tokens, half as long (max_length, max_new_tokens)", cause, pass, checkpoint, report.Count(int64(max(1, tokens/2))))
	case !t.config.OOMRetry:
		return fmt.Errorf("%w; that was %s: set tokens_per_micro_batch to %d, which is half, or oom_retry", cause, pass, tokens/2)
	}
	t.state.MicroTokens = tokens / 2
	return t.hooks.Logf("warning: step %d: memory ran out in %s (%v); once more, and from here on, with at most %s tokens a pass: tokens_per_micro_batch %d does so from the start",
		t.state.Step+1, pass, cause, report.Count(int64(t.state.MicroTokens)), t.state.MicroTokens)
}

// explainMemory says what helps where weights and the optimiser's state leave no room.
func (t *Trainer) explainMemory(cause error) error {
	elements := int64(0)
	for _, v := range t.policy.Params() {
		n, err := v.Elements()
		if err != nil {
			return errors.Join(cause, err)
		}
		elements += n
	}
	return fmt.Errorf("%w; gradients and AdamW's state of %s trained weights take %s bytes: train an adapter, or one of lower rank", cause, report.Count(elements), report.Count(12*elements))
}

// updates descends on the loss in passes of minibatches, and returns how many of them moved the weights.
func (t *Trainer) updates(step *rl.Step) (moved int, err error) {
	c := t.config
	total := 0
	defer func() { step.Figures.Total("updates", float64(moved)) }() // where the divergence stops them too
	for epoch := range c.Epochs {
		kl, actions := 0.0, 0.0
		for _, batch := range t.minibatches(step.Samples, epoch) {
			u, err := t.gradient(batch)
			if err != nil {
				return moved, t.explain(batch, err)
			}
			if epoch == 0 && (t.scored || total == 0) {
				t.compareSampler(step.Figures, batch)
			}
			// A minibatch alone is too small a sample to stop at.
			kl, actions = kl+u.kl, actions+u.actions
			if c.TargetKL > 0 && kl/actions > 1.5*c.TargetKL {
				step.Notes = append(step.Notes, fmt.Sprintf("stopped the updates of step %d after %d: KL past 1.5 × %g", t.state.Step+1, total, c.TargetKL))
				return moved, torch.ZeroGrad(t.policy.Params())
			}
			norm := 0.0
			if !u.idle { // a step of the momentum alone would lead away from what was learnt
				if norm, err = t.optimizer.Step(t.rates(), c.MaxGradNorm); err != nil {
					if torch.OutOfMemory(err) {
						err = t.explainMemory(err)
					}
					return moved, t.explain(batch, err)
				}
				moved++
			}
			total++
			u.fill(step.Figures, norm, t.needs, t.accuracy)
		}
	}
	return moved, nil
}

// idle divides a batch into the samples that have a part in the gradient and those that have none: where the
// answers to a prompt all earn the same, there is nothing to learn from them. Log-probabilities that were asked for
// before are reproduced by the whole batch only, so it is not divided then.
func (t *Trainer) idle(batch []*rl.Sample) (learning, idle []*rl.Sample) {
	c := t.config
	if !t.needs.ByAdvantage || c.EntropyCoef != 0 || c.KLCoef > 0 {
		return batch, nil
	}
	for _, x := range batch {
		if slices.ContainsFunc(x.Advantage, func(a float32) bool { return a != 0 }) {
			learning = append(learning, x)
		} else {
			idle = append(idle, x)
		}
	}
	if t.scored && len(learning) > 0 {
		return batch, nil
	}
	return learning, idle
}

// gradient accumulates the gradient of a minibatch's loss.
func (t *Trainer) gradient(batch []*rl.Sample) (*update, error) {
	u := &update{figures: map[string]float64{}}
	for _, x := range batch {
		u.actions += float64(x.Len())
	}
	learning, idle := t.idle(batch)
	u.idle = len(learning) == 0
	unasked := t.needs.Rewards && slices.ContainsFunc(batch, func(x *rl.Sample) bool { return x.Old == nil })
	parts := [][]*rl.Sample{learning, idle}
	first := t.hooks.Group.Rank() == t.holderOfFirst(learning)
	learning, idle = t.own(learning), t.own(idle)
	asked := slices.DeleteFunc(slices.Concat(learning, idle), func(x *rl.Sample) bool { return x.Old != nil })
	err := t.withinMemory(func() error {
		u.forget()
		for _, x := range asked {
			x.Old = nil
		}
		err := t.passes(u, batch, learning, idle, first)
		if torch.OutOfMemory(err) {
			if err := torch.ZeroGrad(t.policy.Params()); err != nil {
				return err
			}
		}
		return err
	}, learning, idle)
	if err != nil {
		return u, err
	}
	if unasked {
		if err := t.exchange(parts, oldOf); err != nil {
			return u, err
		}
	}
	return u, t.sum(u)
}

// passes are those of a minibatch: forward and backward of what is learnt from, forward of the rest.
func (t *Trainer) passes(u *update, batch, learning, idle []*rl.Sample, first bool) error {
	if err := t.forward(torch.NoGrad, idle, func(s *torch.Scope, part []*rl.Sample, b *rl.Batch) {
		out := t.policy.Forward(s, b, policy.Pass{Temperature: t.config.Temperature})
		u.count(s, part, out, t.needs)
	}); err != nil {
		return err
	}
	descend := func(s *torch.Scope, part []*rl.Sample, b *rl.Batch, out policy.Output) {
		u.count(s, part, out, t.needs)
		lb := t.batch(s, part, b, out, len(batch), int(u.actions), u.figures)
		lb.First, lb.Whole, first = first, batch, false
		s.Backward(t.loss(s, lb))
	}
	done, err := t.takeKept(learning, descend)
	if err != nil {
		return err
	}
	return t.forward(torch.Train, learning[done:], func(s *torch.Scope, part []*rl.Sample, b *rl.Batch) {
		pass := t.pass()
		if t.needs.Dropout {
			pass.Dropout = true
			for _, x := range part {
				b.Dropout = append(b.Dropout, rl.Stream(t.config.Seed, rl.StreamDropout, uint64(t.state.Step), uint64(x.Prompt)).Uint64())
			}
		}
		descend(s, part, b, t.policy.Forward(s, b, pass))
	})
}

// batch is a part as a loss sees it; n and actions are counts of the whole minibatch.
func (t *Trainer) batch(s *torch.Scope, part []*rl.Sample, b *rl.Batch, out policy.Output, n, actions int, figures map[string]float64) *algo.Batch {
	m := int64(len(b.Actions))
	vector := func(list func(x *rl.Sample) []float32) torch.Tensor {
		all := make([]float32, 0, m)
		for _, x := range part {
			all = append(all, list(x)...)
		}
		return s.Floats(all, m)
	}
	shares := make([]float64, len(part))
	for i, x := range part {
		shares[i] = algo.ActionWeight(t.needs.Reduction, x.Len(), n, actions, t.config.Longest)
	}
	lb := &algo.Batch{
		LogProbs: out.LogProbs, Entropy: out.Entropy, Labels: out.Labels, Weight: s.Floats(b.Spread(shares), m),
		Scores: out.Scores, Samples: n, Actions: actions, Part: part, Figures: figures,
	}
	if t.needs.Rewards {
		lb.Old = vector(func(x *rl.Sample) []float32 { return x.Old })
		lb.Advantage = vector(func(x *rl.Sample) []float32 { return x.Advantage })
	} else {
		for _, v := range t.body {
			lb.Body = append(lb.Body, v.T())
		}
	}
	if t.refers() {
		lb.Reference = vector(func(x *rl.Sample) []float32 { return x.Reference })
	}
	if t.needs.Teacher != "" {
		lb.Divergence = func(d policy.Divergence) torch.Tensor { return t.diverge(s, b, lb.Weight, out, d) }
	}
	if t.needs.Values {
		lb.Value = out.Values
		lb.Return = vector(func(x *rl.Sample) []float32 { return x.Return })
		if !t.needs.SharedValues {
			lb.OldValue = vector(func(x *rl.Sample) []float32 { return x.Value })
		}
	}
	return lb
}

// loss is the algorithm's with what the trainer adds to it.
func (t *Trainer) loss(s *torch.Scope, b *algo.Batch) torch.Tensor {
	c := t.config
	loss := t.algorithm.Loss(s, b)
	if !t.needs.Rewards {
		return loss
	}
	if !t.needs.Values { // else the algorithm tells its terms apart
		b.Note(s, "policy_loss", loss)
	}
	if c.EntropyCoef != 0 {
		loss = s.Sub(loss, s.Scale(s.Sum(s.Mul(b.Weight, b.Entropy)), c.EntropyCoef))
	}
	if c.KLCoef > 0 && !c.KLInReward {
		loss = s.Add(loss, s.Scale(lossOfKL(s, c.KLType, b.LogProbs, b.Reference, b.Weight), t.kl.Coef()))
	}
	b.Note(s, "loss", loss)
	return loss
}

// explain names the samples of a minibatch whose gradient is not finite.
func (t *Trainer) explain(batch []*rl.Sample, err error) error {
	var nonFinite *torch.NonFiniteError
	if !errors.As(err, &nonFinite) {
		return fmt.Errorf("step %d: %w", t.state.Step+1, err)
	}
	var prompts, indices []int
	var tokens, actions [][]int32
	var rewards []float64
	var advantages, old [][]float32
	for _, x := range batch {
		prompts, indices = append(prompts, x.Prompt), append(indices, x.Index)
		tokens, actions = append(tokens, x.Tokens), append(actions, x.Actions)
		rewards, advantages, old = append(rewards, x.Reward()), append(advantages, x.Advantage), append(old, x.Old)
	}
	return t.hooks.Broken(t.state.Step+1, prompts, map[string]any{
		"samples": indices, "tokens": tokens, "actions": actions, "rewards": rewards, "advantages": advantages, "logprobs": old,
	}, err)
}
