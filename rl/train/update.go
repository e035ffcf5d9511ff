package train

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch"
)

// updater moves the weights along the gradient of the loss.
type updater struct {
	*passes
	schedule  rl.Schedule
	optimizer run.Optimizer
	roles     []policy.Role // of the optimiser's groups
	body      []*torch.Var  // trained weights, without the heads
	number    int           // of the update in its step
	masked    float64       // masked samples of the step for each that is learned from
}

// A mixture is a policy whose layers may have experts.
type mixture interface{ Experts() int }

// newUpdater makes the optimiser of the policy's weights.
func newUpdater(p *passes) (*updater, error) {
	t := &updater{passes: p}
	if m, ok := p.policy.(mixture); p.config.RouterCoef > 0 && (!ok || m.Experts() == 0) {
		return nil, envs.OptionErrorf("router_aux_loss_coef", "is for language models with experts, which this policy is not")
	}
	var err error
	if t.schedule, err = rl.NewSchedule(p.config.Schedule, p.config.Steps, p.config.WarmupRatio, p.config.WarmupSteps, p.config.MinRate); err != nil {
		return nil, err
	}
	if far, ok := p.policy.(distant); ok {
		if err := CheckDistant(p.algorithm, p.config); err != nil {
			return nil, err
		}
		t.roles = []policy.Role{policy.Body}
		t.optimizer = far.Optimizer(p.config.AdamBeta1, p.config.AdamBeta2, p.config.AdamEpsilon, p.config.WeightDecay)
		return t, nil
	}
	parts, err := t.policy.Groups()
	if err != nil {
		return nil, err
	}
	var groups []torch.ParamGroup
	for _, g := range parts {
		if g.Role == policy.Value && !t.needs.Values {
			continue
		}
		group := t.config.group(g)
		if g.Role == policy.Body {
			t.body = append(t.body, g.Params...)
		}
		groups, t.roles = append(groups, group), append(t.roles, g.Role)
	}
	if len(t.body) == 0 {
		return nil, errors.New("the policy has no weights to train: it was loaded without an adapter, or with a merged one")
	}
	if t.config.Optim == OptimMuon && !slices.ContainsFunc(groups, func(g torch.ParamGroup) bool { return g.Muon && len(g.Params) > 0 }) {
		return nil, errors.New("optim muon is for the matrices of layers of a language model all of whose weights are trained: use optim adamw, or --tuning full")
	}
	adam := torch.NewOptimizer(t.config.AdamEpsilon, groups...)
	adam.Beta1, adam.Beta2 = t.config.AdamBeta1, t.config.AdamBeta2
	t.optimizer = adam
	return t, nil
}

// rates are the learning rates of the optimiser's groups.
func (t *updater) rates() []float64 {
	c, factor := t.config, t.schedule.At(t.state.Step)
	rates := make([]float64, len(t.roles))
	for i, role := range t.roles {
		rates[i] = factor * c.LearningRate
		switch {
		case role == policy.Head && c.HeadRate > 0:
			rates[i] = factor * c.HeadRate
		case role == policy.Value && c.ValueRate > 0:
			rates[i] = factor * c.ValueRate
		}
	}
	return rates
}

// learn updates the weights with the minibatches of a step, in one or several passes, and returns the number of updates
// that moved them.
func (t *updater) learn(step *rl.Step) (moved int, err error) {
	c := t.config
	total := 0
	t.micro, t.tokens = 0, 0
	t.masked = float64(step.Masked) / float64(max(1, len(step.Samples)))
	for epoch := range c.Epochs {
		for _, batch := range t.minibatches(step.Samples, epoch) {
			learning, idle := t.idle(batch)
			passes := len(t.parts(t.own(learning))) + len(t.parts(t.own(idle)))
			if len(learning) > 0 {
				passes *= 1 + t.surveys()
			}
			t.micros += passes
		}
	}
	defer func() {
		step.Figures.Total("updates", float64(moved))
		t.micros = 0
	}()
	for epoch := range c.Epochs {
		kl, actions := 0.0, 0.0
		for _, batch := range t.minibatches(step.Samples, epoch) {
			t.number = total
			u, err := t.gradient(batch)
			if err != nil {
				return moved, t.explain(batch, err)
			}
			if t.needs.Rewards && epoch == 0 && (t.scored || total == 0) {
				compareSampler(step.Figures, batch, t.state.Version)
			}
			// A single minibatch is too small a sample.
			kl, actions = kl+u.kl, actions+u.actions
			if c.TargetKL > 0 && kl/actions > 1.5*c.TargetKL {
				step.Notes = append(step.Notes, fmt.Sprintf("step %d: updates ended after %d: the KL exceeds 1.5 × target_kl %g", t.state.Step+1, total, c.TargetKL))
				return moved, torch.ZeroGrad(t.policy.Params())
			}
			norm := 0.0
			if !u.idle { // the momentum alone would undo what was learned
				if norm, err = t.optimizer.Step(t.rates(), c.MaxGradNorm); err != nil {
					if torch.OutOfMemory(err) {
						err = t.explainMemory(err)
					}
					return moved, t.explain(batch, err)
				}
				moved++
				t.adaptEntropy(u.certainty())
			}
			total++
			u.fill(step.Figures, norm, t.needs, t.accuracy)
		}
	}
	return moved, nil
}

// surveys is how many passes precede an update.
func (t *updater) surveys() (n int) {
	if t.config.TopEntropy < 1 {
		n++
	}
	if t.needs.Select != nil {
		n++
	}
	return n
}

// learns says whether the reward of a sample says anything about its actions.
func learns(x *rl.Sample) bool {
	return slices.ContainsFunc(x.Advantage, func(a float32) bool { return a != 0 })
}

// idle separates the samples of a batch without a gradient: those of a prompt whose rewards are all equal. Only the whole
// batch reproduces log-probabilities that were computed before, so a batch that has them stays whole.
func (t *updater) idle(batch []*rl.Sample) (learning, idle []*rl.Sample) {
	c := t.config
	if !t.needs.ByAdvantage || c.KLCoef > 0 {
		return batch, nil
	}
	for _, x := range batch {
		if learns(x) {
			learning = append(learning, x)
		} else {
			idle = append(idle, x)
		}
	}
	if (t.scored || c.EntropyCoef != 0 || c.Adaptive) && len(learning) > 0 {
		return batch, nil
	}
	return learning, idle
}

// gradient accumulates the gradient of a minibatch's loss.
func (t *updater) gradient(batch []*rl.Sample) (*update, error) {
	u := &update{figures: map[string]float64{}, bounds: rl.Meter{}}
	for _, x := range batch {
		u.actions += float64(x.Len())
	}
	learning, idle := t.idle(batch)
	u.idle = len(learning) == 0
	unscored := t.needs.Rewards && slices.ContainsFunc(batch, func(x *rl.Sample) bool { return x.Old == nil })
	parts := [][]*rl.Sample{learning, idle}
	if !u.idle {
		var err error
		if u.focus, err = t.focus(parts); err != nil {
			return u, err
		}
		if u.selected, err = t.pick(batch, parts, t.number); err != nil {
			return u, err
		}
	}
	first := t.holdsFirst(learning)
	learning, idle = t.own(learning), t.own(idle)
	asked := slices.DeleteFunc(slices.Concat(learning, idle), func(x *rl.Sample) bool { return x.Old != nil })
	err := t.withinMemory(func() error {
		u.forget()
		for _, x := range asked {
			x.Old = nil
		}
		err := t.run(u, batch, learning, idle, first)
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
	if unscored {
		if err := t.exchange(parts, oldOf); err != nil {
			return u, err
		}
	}
	if err := t.sum(u); err != nil || u.idle {
		return u, err
	}
	// The gradient may be finite nevertheless, and the rows of the run would lack a loss without a word.
	if loss := u.figures["loss"]; math.IsNaN(loss) || math.IsInf(loss, 0) {
		return u, errors.Join(&torch.NonFiniteError{What: "loss", Value: loss}, torch.ZeroGrad(t.policy.Params()))
	}
	return u, t.sumGrads()
}

// run runs the passes of a minibatch: forward and backward for the learning samples, forward for the idle ones.
func (t *updater) run(u *update, batch, learning, idle []*rl.Sample, first bool) error {
	if err := t.forward(torch.NoGrad, idle, func(s *torch.Scope, part []*rl.Sample, b *rl.Batch) {
		out := t.policy.Forward(s, b, policy.Pass{Temperature: t.config.Temperature})
		u.count(s, part, out, t.needs)
	}); err != nil {
		return err
	}
	descend := func(s *torch.Scope, part []*rl.Sample, b *rl.Batch, out policy.Output) {
		u.count(s, part, out, t.needs)
		lb := t.batch(s, part, b, out, len(batch), int(u.actions), u)
		lb.First, lb.Whole, first = first, batch, false
		loss := t.loss(s, lb)
		if c := t.config.RouterCoef; c > 0 {
			loss = s.Add(loss, s.Scale(balance(s, out.Load, float64(len(part))/float64(len(batch)), u.figures), c))
		}
		s.Backward(loss)
	}
	done, err := t.takeKept(learning, descend)
	if err != nil {
		return err
	}
	return t.forward(torch.Train, learning[done:], func(s *torch.Scope, part []*rl.Sample, b *rl.Batch) {
		pass := t.pass()
		if t.needs.Dropout {
			pass.Dropout, pass.Noise = true, t.needs.Noise
			for _, x := range part {
				b.Dropout = append(b.Dropout, rl.Stream(t.config.Seed, rl.StreamDropout, uint64(t.state.Step), uint64(x.Prompt)).Uint64())
			}
		}
		descend(s, part, b, t.policy.Forward(s, b, pass))
	})
}

// batch is a part as the loss sees it; n and actions are counts of the whole minibatch.
func (t *updater) batch(s *torch.Scope, part []*rl.Sample, b *rl.Batch, out policy.Output, n, actions int, u *update) *algo.Batch {
	m := int64(len(b.Actions))
	vector := func(list func(x *rl.Sample) []float32) torch.Tensor {
		all := make([]float32, 0, m)
		for _, x := range part {
			all = append(all, list(x)...)
		}
		return s.Floats(all, m)
	}
	samples := float64(n) * (1 + t.masked)
	shares := make([]float64, len(part))
	for i, x := range part {
		shares[i] = algo.ActionWeight(t.needs.Reduction, x.Len(), samples, actions, t.config.Longest)
	}
	lb := &algo.Batch{
		LogProbs: out.LogProbs, Entropy: out.Entropy, Labels: out.Labels, Weight: s.Floats(b.Spread(shares), m),
		Scores: out.Scores, Samples: samples, Actions: actions, Part: part, Figures: u.figures, Bounds: u.bounds, Selected: u.selected,
	}
	lb.Even = lb.Weight
	if u.focus != nil {
		lb.Weight = s.Mul(lb.Even, vector(func(x *rl.Sample) []float32 { return u.focus.kept[x] }))
	}
	lb.Uniform = func(w float64) torch.Tensor {
		loss, err := policy.Uniform(s, out, slices.Repeat([]float32{float32(w)}, int(m)))
		if err != nil {
			panic(err) // of an operator; torch.Do around this pass returns it
		}
		return loss
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
	if t.needs.Teacher != "" && !t.needs.Sampled {
		lb.Divergence = func(d policy.Divergence) torch.Tensor { return t.diverge(s, part, b, lb.Weight, out, d) }
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

// loss is the algorithm's loss, the entropy bonus and the KL penalty.
func (t *updater) loss(s *torch.Scope, b *algo.Batch) torch.Tensor {
	c := t.config
	loss := t.algorithm.Loss(s, b)
	if !t.needs.Rewards {
		return loss
	}
	if !t.needs.Values { // else the algorithm notes its terms
		b.Note(s, "policy_loss", loss)
	}
	// Where no reward says anything, the bonus alone would make the policy more random.
	if coef := t.entropyCoef(); coef != 0 && (!t.needs.ByAdvantage || slices.ContainsFunc(b.Whole, learns)) {
		loss = s.Sub(loss, s.Scale(s.Sum(s.Mul(b.Weight, b.Entropy)), coef))
	}
	if c.KLCoef > 0 && !c.KLInReward {
		weight := b.Even
		if c.KLCorrection {
			weight = s.Mul(weight, b.Ratio(s))
		}
		loss = s.Add(loss, s.Scale(lossOfKL(s, c.KLType, b.LogProbs, b.Reference, weight), t.kl.Coef()))
	}
	b.Note(s, "loss", loss)
	return loss
}

// balance is the share of a part in the loss that balances experts (Fedus 2021, equations 4 to 6), as in transformers: E times
// the sum over experts of the fraction of tokens that each gets and its mean probability. It notes the loss, and the load of
// the busiest expert relative to the mean.
func balance(s *torch.Scope, load torch.Tensor, share float64, figures map[string]float64) torch.Tensor {
	sums := s.Read(load)
	n := len(sums) / 2
	var tokens, choices float64 // times layers
	for e, p := range sums[:n] {
		tokens, choices = tokens+float64(p), choices+float64(sums[n+e])
	}
	weight := make([]float32, n)
	for e, count := range sums[n:] {
		weight[e] = float32(share * float64(n) * float64(count) / (tokens * tokens))
	}
	loss := s.Sum(s.Mul(s.Rows(load, s.Ints([]int64{0}, 1)), s.Floats(weight, 1, int64(n))))
	figures["router_aux_loss"] += float64(s.Read(loss)[0])
	figures["router_max_load"] += share * float64(slices.Max(sums[n:])) * float64(n) / choices
	return loss
}

// diverge evaluates the teacher on a batch.
func (t *updater) diverge(s *torch.Scope, part []*rl.Sample, b *rl.Batch, weight torch.Tensor, student policy.Output, d policy.Divergence) (loss torch.Tensor) {
	if err := torch.Do(torch.NoGrad, func(asked *torch.Scope) (err error) {
		loss, err = policy.Diverge(s, student, t.teach(asked, part, b), d, s.Read(weight))
		return err
	}); err != nil {
		panic(err) // of an operator; torch.Do around this pass returns it
	}
	return loss
}

// explain names the samples of a minibatch if its loss or gradient is not finite.
func (t *updater) explain(batch []*rl.Sample, err error) error {
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
