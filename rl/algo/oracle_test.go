package algo

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"rltrain/envs/reward"
	"rltrain/rl"
	"rltrain/torch/torchtest"
)

// What follows computes whole steps of training a second time, in float64 and by hand: log-probabilities by the
// softmax, losses by their formulas, gradients by differences, and AdamW by its definition. It shares nothing with the
// trainer but the samples and which of them make a minibatch.

// action is an action of a minibatch, as the oracle has it.
type action struct {
	x                 *rl.Sample
	at                int // which of the sample's
	state, what       int
	lp, entropy, v    float64 // at the weights in question
	pi                []float64
	old, ref, adv     float64
	oldV, ret, length float64
}

// oracle is the state of a training run by hand.
type oracle struct {
	c       oracleCase
	x       []float64 // logits, bias, values
	m, v    []float64 // moments of AdamW
	count   int       // its steps
	coef    float64   // of the divergence
	moving  float64   // baseline of the next step
	removed float64   // mean baseline of this step
}

// oracleCase is an algorithm with the formulas that it has to follow.
type oracleCase struct {
	name       string
	algorithm  func() Algorithm
	config     Config
	labels     bool
	prefetched bool
	joined     bool // samples two by two make an episode
	asked      bool // the source brings log π_old and V, and they are far from those of the weights
	reduction  string
	penalty    float64 // feature alignment

	// advantages fills in adv, and with values ret, of a step's actions, sample by sample.
	advantages func(o *oracle, step *rl.Step, acts map[*rl.Sample][]action)
	// loss is that of a minibatch of n samples.
	loss func(o *oracle, acts []action, n float64) float64
	clip Clip
}

const (
	atBias  = symbols * symbols
	atValue = atBias + symbols
	all     = atValue + symbols
)

func (o *oracle) temperature() float64 {
	if o.c.labels || o.c.config.Temperature == 0 {
		return 1
	}
	return o.c.config.Temperature
}

// probs is the policy of weights x at a state.
func (o *oracle) probs(x []float64, state int) []float64 {
	pi, sum := make([]float64, symbols), 0.0
	for k := range pi {
		pi[k] = math.Exp((x[state*symbols+k] + x[atBias+k]) / o.temperature())
		sum += pi[k]
	}
	for k := range pi {
		pi[k] /= sum
	}
	return pi
}

// look fills in what weights x say of actions.
func (o *oracle) look(x []float64, acts []action) []action {
	out := slices.Clone(acts)
	for i := range out {
		a := &out[i]
		a.pi = o.probs(x, a.state)
		a.lp, a.v, a.entropy = math.Log(a.pi[a.what]), x[atValue+a.state], 0
		for _, p := range a.pi {
			a.entropy -= p * math.Log(p)
		}
	}
	return out
}

// actions are those of a sample.
func (o *oracle) actions(x *rl.Sample) []action {
	acts := make([]action, len(x.Actions))
	for i := range acts {
		row := 0
		if x.Rows != nil {
			row = x.Rows[i]
		}
		acts[i] = action{x: x, at: i, state: int(x.Tokens[row]), what: int(x.Actions[i]), length: float64(len(x.Actions))}
	}
	return acts
}

// weight is the share of an action in the mean over a minibatch of n samples and m actions.
func (o *oracle) weight(a action, n, m float64) float64 {
	switch o.c.reduction {
	case "sequence":
		return 1 / n / a.length
	case "dr_grpo":
		return 1 / n / float64(o.c.config.Longest)
	}
	return 1 / m
}

// divergence is k(d) by the definitions of Schulman 2020.
func divergence(kind string, d float64) float64 {
	return map[string]float64{"k1": d, "k2": d * d / 2, "k3": math.Exp(-d) - 1 + d}[kind]
}

// total is the loss of a minibatch with all that the trainer adds, at weights x.
func (o *oracle) total(x []float64, acts []action, n float64) float64 {
	c, m := o.c.config, float64(len(acts))
	acts = o.look(x, acts)
	sum := o.c.loss(o, acts, n)
	if o.c.penalty > 0 { // on the norms of the matrices of the body
		sum += o.c.penalty * norm(x[:atBias])
		if !o.c.labels {
			sum += o.c.penalty * norm(x[atBias:atValue])
		}
	}
	for _, a := range acts {
		sum -= c.EntropyCoef * o.weight(a, n, m) * a.entropy
		if c.KLCoef > 0 && !c.KLInReward {
			sum += o.coef * o.weight(a, n, m) * divergence(c.KLType, a.lp-a.ref)
		}
	}
	return sum
}

// gradient of the loss by central differences.
func (o *oracle) gradient(acts []action, n float64) []float64 {
	const h = 1e-5
	g := make([]float64, all)
	for i := range g {
		at := func(by float64) float64 {
			x := slices.Clone(o.x)
			x[i] += by
			return o.total(x, acts, n)
		}
		g[i] = (at(h) - at(-h)) / (2 * h)
	}
	return g
}

// adamW moves the weights, those of the value head clipped apart.
func (o *oracle) adamW(g []float64, factor float64) {
	c := o.c.config
	rate := func(i int) float64 {
		switch {
		case i >= atValue && c.ValueRate > 0:
			return factor * c.ValueRate
		case i >= atBias && i < atValue && o.c.labels && c.HeadRate > 0:
			return factor * c.HeadRate
		}
		return factor * c.LearningRate
	}
	for _, part := range [][]float64{g[:atValue], g[atValue:]} {
		if n := norm(part); c.MaxGradNorm > 0 && n > c.MaxGradNorm {
			for i := range part {
				part[i] *= c.MaxGradNorm / n
			}
		}
	}
	o.count++
	for i := range g {
		o.m[i], o.v[i] = 0.9*o.m[i]+0.1*g[i], 0.999*o.v[i]+0.001*g[i]*g[i]
		mean, square := o.m[i]/(1-math.Pow(0.9, float64(o.count))), o.v[i]/(1-math.Pow(0.999, float64(o.count)))
		if i < atBias {
			o.x[i] *= 1 - rate(i)*c.WeightDecay
		}
		o.x[i] -= rate(i) * mean / (math.Sqrt(square) + 1e-8)
	}
}

func norm(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	return math.Sqrt(sum)
}

// quiet is the part of the loss that no figure shows: the penalty on norms.
func (o *oracle) quiet() float64 {
	if o.c.penalty == 0 {
		return 0
	}
	without := *o
	without.c.penalty = 0
	without.c.loss = func(*oracle, []action, float64) float64 { return 0 }
	with := without
	with.c.penalty = o.c.penalty
	return with.total(o.x, nil, 1) - without.total(o.x, nil, 1)
}

// step takes one step and returns the figures that the trainer is to report.
func (o *oracle) step(at int, factor float64, step *rl.Step, reference []float64) map[string]float64 {
	c := o.c.config
	needs := o.c.algorithm().Needs()
	acts := map[*rl.Sample][]action{}
	figures := map[string]float64{"learning_rate": factor * c.LearningRate}
	sequence, seen := 0.0, 0.0
	for _, x := range slices.Concat(append(step.Groups, step.Samples)...) {
		list := o.look(o.x, o.actions(x))
		asked := o.look(reference, list)
		for i := range list {
			list[i].old, list[i].oldV, list[i].ref = list[i].lp, list[i].v, asked[i].lp
			if o.c.asked && x.Old != nil {
				list[i].old, list[i].oldV = float64(x.Old[i]), float64(x.Value[i])
			}
		}
		acts[x] = list
	}
	for _, x := range step.Samples {
		for _, a := range acts[x] {
			for _, kind := range []string{"k1", "k2", "k3"} {
				figures["kl/"+kind] += divergence(kind, a.old-a.ref)
			}
			sequence += a.old - a.ref
			seen++
		}
	}
	if o.c.advantages != nil {
		o.c.advantages(o, step, acts)
	}
	if needs.Values {
		figures["explained_variance"] = explained(step, acts)
	}
	if o.c.prefetched {
		for _, x := range step.Samples {
			figures["sampling/importance_sampling_ratio/mean"] += o.importance(acts[x]) / seen
		}
	}
	for _, kind := range []string{"kl/k1", "kl/k2", "kl/k3"} {
		figures[kind] /= seen
	}
	updates, terms, compared := 0.0, 0.0, 0.0
	stopped := false
passes:
	for epoch := range max(1, c.Epochs) {
		kl, looked := 0.0, 0.0
		for _, part := range rl.Minibatches(c.Seed, at, epoch, len(step.Samples), max(1, c.Minibatches), c.MinibatchSize) {
			var batch []action
			for _, i := range part {
				batch = append(batch, acts[step.Samples[i]]...)
			}
			now := o.look(o.x, batch)
			n := float64(len(part))
			for _, a := range now {
				d := a.lp - a.old
				kl, looked = kl+math.Exp(d)-1-d, looked+1
				figures["entropy"] += a.entropy
				figures["approx_kl"] += math.Exp(d) - 1 - d
				terms++
			}
			low, high, ratios := o.heldBack(now)
			figures["clip_ratio/low_mean"], figures["clip_ratio/high_mean"] = figures["clip_ratio/low_mean"]+low, figures["clip_ratio/high_mean"]+high
			figures["clip_ratio/region_mean"], compared = figures["clip_ratio/region_mean"]+low+high, compared+ratios
			if c.TargetKL > 0 && kl/looked > 1.5*c.TargetKL {
				stopped = true
				break passes
			}
			figures["loss"] += o.total(o.x, batch, n) - o.quiet()
			if needs.Values {
				policy := surrogate(o, now, n)
				figures["policy_loss"] += policy
				figures["value_loss"] += (o.c.loss(o, now, n) - policy) / valueCoef
			} else if needs.Rewards {
				figures["policy_loss"] += o.c.loss(o, now, n)
			}
			g := o.gradient(batch, n)
			figures["grad_norm"] += norm(g[:atValue])
			o.adamW(g, factor)
			updates++
		}
	}
	for _, name := range []string{"loss", "policy_loss", "value_loss", "grad_norm"} {
		if _, known := figures[name]; known {
			figures[name] /= updates
		}
	}
	figures["entropy"], figures["approx_kl"] = figures["entropy"]/terms, figures["approx_kl"]/terms
	held := []string{"clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean"}
	for _, name := range held {
		figures[name] /= compared
	}
	if stopped { // the minibatch that stopped the step is in no figure
		delete(figures, "entropy")
	}
	if stopped || needs.Ratio == NoRatio {
		delete(figures, "approx_kl")
		for _, name := range held {
			delete(figures, name)
		}
	}
	if c.MinibatchSize > 0 || c.KLCoef == 0 { // replayed turns are asked about one minibatch after the other
		for _, name := range []string{"kl/k1", "kl/k2", "kl/k3"} {
			delete(figures, name)
		}
	}
	if needs.Rewards {
		size := 0.0
		for _, x := range step.Samples {
			for _, a := range acts[x] {
				size += math.Abs(a.adv) / seen
			}
		}
		figures["advantage_abs_mean"] = size
	}
	figures["updates"] = updates
	if c.KLCoef > 0 {
		figures["kl_coef"] = o.coef
		if c.KLTarget > 0 { // Ziegler et al. 2019
			n := float64(len(step.Samples))
			e := min(max(sequence/n/c.KLTarget-1, -0.2), 0.2)
			o.coef *= 1 + e*min(1, n/c.KLHorizon)
		}
	}
	return figures
}

// heldBack counts the ratios of a minibatch, and those that the clip holds back from below and from above.
func (o *oracle) heldBack(acts []action) (low, high, ratios float64) {
	together := map[*rl.Sample]float64{}
	for _, a := range acts {
		together[a.x] += a.lp - a.old
	}
	_, whole := o.c.algorithm().(*RLOO)
	for _, a := range acts {
		d := a.lp - a.old
		if whole {
			if d = together[a.x]; a.at > 0 {
				continue
			}
		}
		ratios++
		if r := math.Exp(d); r < 1-o.c.clip.Low && a.adv < 0 {
			low++
		} else if r > 1+o.c.clip.High && a.adv > 0 {
			high++
		}
	}
	return low, high, ratios
}

// importance weighs the advantages of a sample that an older policy drew, and returns the sum of the weights before
// they are bounded.
func (o *oracle) importance(acts []action) (sum float64) {
	together := 0.0
	for _, a := range acts {
		together += a.old - float64(a.x.Drawn[a.at])
	}
	for i, a := range acts {
		d := a.old - float64(a.x.Drawn[a.at])
		if _, whole := o.c.algorithm().(*RLOO); whole {
			d = together
		}
		acts[i].adv *= min(3, math.Exp(d))
		sum += math.Exp(d)
	}
	return sum
}

// explained is the share of the returns' variance that the values tell.
func explained(step *rl.Step, acts map[*rl.Sample][]action) float64 {
	var returns, left []float64
	for _, x := range step.Samples {
		for _, a := range acts[x] {
			returns, left = append(returns, a.ret), append(left, a.ret-a.oldV)
		}
	}
	return 1 - deviation(left)*deviation(left)/deviation(returns)/deviation(returns)
}

// paid is what a sample earned, and what it earned less the penalties.
func (o *oracle) paid(acts []action) (raw, penalised float64) {
	for _, a := range acts {
		raw += a.x.Rewards[a.at]
		penalised += o.income(a)
	}
	return raw, penalised
}

// income of an action: its reward less the penalty of the divergence, and of the last one that of the length.
func (o *oracle) income(a action) float64 {
	r := a.x.Rewards[a.at]
	if c := o.c.config; c.KLInReward {
		r -= o.coef * divergence(c.KLType, a.old-a.ref)
	}
	if a.at == len(a.x.Actions)-1 {
		r += a.x.Overlong
	}
	return r
}

// spread gives the actions of each sample the advantage of its penalised reward r, by its group and by all rewards of
// the step, without the missing ones; differ says whether those of the group differ before penalties.
func compared(advantage func(o *oracle, g int, step *rl.Step, r float64, group, everyone []float64, differ, allDiffer bool) float64) func(*oracle, *rl.Step, map[*rl.Sample][]action) {
	return func(o *oracle, step *rl.Step, acts map[*rl.Sample][]action) {
		var groups, raws [][]float64
		for _, group := range step.Groups {
			var rewards, raw []float64
			for _, x := range group {
				if before, after := o.paid(acts[x]); !math.IsNaN(after) {
					rewards, raw = append(rewards, after), append(raw, before)
				}
			}
			groups, raws = append(groups, rewards), append(raws, raw)
		}
		var removed []float64
		differ := func(x []float64) bool { return slices.Max(x) != slices.Min(x) }
		for g, group := range step.Groups {
			for _, x := range group {
				_, r := o.paid(acts[x])
				a := 0.0
				if !math.IsNaN(r) {
					a = advantage(o, g, step, r, groups[g], slices.Concat(groups...), differ(raws[g]), differ(slices.Concat(raws...)))
					removed = append(removed, r-a)
				}
				for i := range acts[x] {
					acts[x][i].adv = a
				}
			}
		}
		o.moving = 0.7*o.moving + 0.3*average(slices.Concat(groups...))
		o.removed = average(removed)
	}
}

func average(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v
	}
	return sum / float64(len(x))
}

// deviation is the unbiased standard deviation.
func deviation(x []float64) float64 {
	sum, m := 0.0, average(x)
	for _, v := range x {
		sum += (v - m) * (v - m)
	}
	return math.Sqrt(sum / float64(len(x)-1))
}

// returned makes the clamped reward of each sample its advantage.
func returned(o *oracle, step *rl.Step, acts map[*rl.Sample][]action) {
	for x, list := range acts {
		total := 0.0
		for _, r := range x.Rewards {
			total += r
		}
		for i := range list {
			list[i].adv = min(max(total, 0.2), 0.9)
		}
	}
}

// estimated is GAE by its sum Σ (γλ)^l δ, and whitening.
func estimated(gamma, lambda float64, whiten bool) func(o *oracle, step *rl.Step, acts map[*rl.Sample][]action) {
	return func(o *oracle, step *rl.Step, acts map[*rl.Sample][]action) {
		var everything []*action
		episodes := map[int][]*action{}
		for _, x := range step.Samples {
			for i := range acts[x] {
				a := &acts[x][i]
				everything, episodes[x.Episode] = append(everything, a), append(episodes[x.Episode], a)
			}
		}
		for _, e := range episodes {
			for t, a := range e {
				for l := t; l < len(e); l++ {
					delta := o.income(*e[l]) - e[l].oldV
					if l+1 < len(e) {
						delta += gamma * e[l+1].oldV
					}
					a.adv += math.Pow(gamma*lambda, float64(l-t)) * delta
				}
				a.ret = a.adv + a.oldV
			}
		}
		if !whiten {
			return
		}
		mean, square := 0.0, 0.0
		for _, a := range everything {
			mean += a.adv / float64(len(everything))
		}
		for _, a := range everything {
			square += (a.adv - mean) * (a.adv - mean) / float64(len(everything))
		}
		for _, a := range everything {
			a.adv = (a.adv - mean) / math.Sqrt(square+1e-8)
		}
	}
}

// The losses.

func policyGradient(o *oracle, acts []action, n float64) (sum float64) {
	for _, a := range acts {
		sum -= o.weight(a, n, float64(len(acts))) * a.adv * a.lp
	}
	return sum
}

func surrogate(o *oracle, acts []action, n float64) (sum float64) {
	for _, a := range acts {
		ratio := math.Exp(a.lp - a.old)
		sum -= o.weight(a, n, float64(len(acts))) * math.Min(ratio*a.adv, math.Min(math.Max(ratio, 1-o.c.clip.Low), 1+o.c.clip.High)*a.adv)
	}
	return sum
}

func sequenceSurrogate(o *oracle, acts []action, n float64) (sum float64) {
	together, advantage := map[*rl.Sample]float64{}, map[*rl.Sample]float64{}
	for _, a := range acts {
		together[a.x] += a.lp - a.old
		if a.at == 0 {
			advantage[a.x] = a.adv
		}
	}
	for x, d := range together {
		ratio, a := math.Exp(d), advantage[x]
		sum -= math.Min(ratio*a, math.Min(math.Max(ratio, 1-o.c.clip.Low), 1+o.c.clip.High)*a) / n
	}
	return sum
}

const valueCoef = 0.7

func actorCritic(valueClip float64) func(o *oracle, acts []action, n float64) float64 {
	return func(o *oracle, acts []action, n float64) float64 {
		sum := surrogate(o, acts, n)
		for _, a := range acts {
			miss := (a.v - a.ret) * (a.v - a.ret)
			if valueClip > 0 {
				moved := a.oldV + math.Min(math.Max(a.v-a.oldV, -valueClip), valueClip) - a.ret
				miss = math.Max(miss, moved*moved)
			}
			sum += valueCoef * 0.5 * miss / float64(len(acts))
		}
		return sum
	}
}

func imitation(o *oracle, acts []action, n float64) (sum float64) {
	for _, a := range acts {
		sum -= a.lp / float64(len(acts))
	}
	return sum
}

// expectation is −mean Σ_a π_a R_a with R = Brier's score as a reward, twice accuracy, and an expression.
func expectation(o *oracle, acts []action, n float64) (sum float64) {
	for _, a := range acts {
		distance := 0.0
		for k, p := range a.pi {
			if k == int(a.x.Truth) {
				p--
			}
			distance += p * p
		}
		for k, p := range a.pi {
			correct := 0.0
			if k == int(a.x.Truth) {
				correct = 1
			}
			sum -= p * ((1 - distance/2) + 2*correct + 0.5*(correct-0.5*(1-correct)*p)) / n
		}
	}
	return sum
}

func stable(o *oracle, acts []action, n float64) (sum float64) {
	for _, a := range acts {
		sum -= a.lp * (a.adv - 0.3*(a.lp-a.ref)/a.length) / a.length / n
	}
	return sum
}

func distiller(o *oracle, acts []action, n float64) (sum float64) {
	for _, a := range acts {
		sum -= (a.adv*a.lp + 0.3*a.ref) / a.length / n
	}
	return sum
}

// oracleCases are all algorithms, with their options, and the regularisers of the trainer.
func oracleCases(t *testing.T) []oracleCase {
	clip := Clip{0.1, 0.15}
	base := Config{
		Steps: 4, Optimisation: Optimisation{LearningRate: 0.05, Schedule: "linear", WarmupSteps: 1, WeightDecay: 0.1},
		ValueRate: 0.08, HeadRate: 0.03, Temperature: 0.7, Longest: 6, Samples: 4, MicroTokens: 7, Seed: 3,
	}
	with := func(changes ...func(c *Config)) Config {
		c := base
		for _, change := range changes {
			change(&c)
		}
		return c
	}
	twice := func(c *Config) { c.Minibatches, c.Epochs = 2, 2 }
	entropy := func(c *Config) { c.EntropyCoef = 0.05 }
	clipped := func(c *Config) { c.MaxGradNorm = 0.02 }
	kl := func(kind string, inReward bool) func(c *Config) {
		return func(c *Config) { c.KLCoef, c.KLType, c.KLInReward = 0.2, kind, inReward }
	}
	adaptive := func(c *Config) { c.KLTarget, c.KLHorizon = 0.3, 40 }
	drawn := func(c *Config) { c.MinibatchSize = 5 }

	none := compared(func(_ *oracle, _ int, _ *rl.Step, r float64, _, _ []float64, _, _ bool) float64 { return r })
	group := compared(func(_ *oracle, _ int, _ *rl.Step, r float64, g, _ []float64, _, _ bool) float64 {
		return r - average(g)
	})
	scaled := compared(func(_ *oracle, _ int, _ *rl.Step, r float64, g, _ []float64, differ, _ bool) float64 {
		if !differ {
			return r - average(g)
		}
		return (r - average(g)) / (deviation(g) + 1e-4)
	})
	byAll := compared(func(_ *oracle, _ int, _ *rl.Step, r float64, g, everyone []float64, _, differ bool) float64 {
		return (r - average(g)) / (deviation(everyone) + 1e-4)
	})
	others := compared(func(_ *oracle, _ int, _ *rl.Step, r float64, g, _ []float64, _, _ bool) float64 {
		sum := -r
		for _, v := range g {
			sum += v
		}
		return r - sum/float64(len(g)-1)
	})
	batch := compared(func(_ *oracle, _ int, _ *rl.Step, r float64, _, everyone []float64, _, _ bool) float64 {
		return r - average(everyone)
	})
	batchScaled := compared(func(_ *oracle, _ int, _ *rl.Step, r float64, _, everyone []float64, _, _ bool) float64 {
		return (r - average(everyone)) / (deviation(everyone) + 1e-4)
	})
	moving := compared(func(o *oracle, _ int, _ *rl.Step, r float64, _, _ []float64, _, _ bool) float64 { return r - o.moving })
	greedy := compared(func(_ *oracle, g int, step *rl.Step, r float64, _, _ []float64, _, _ bool) float64 {
		return r - step.Greedy[g]
	})

	reinforce := func(baseline, scale, reduction string) func() Algorithm {
		return func() Algorithm {
			return &Reinforce{Baseline: baseline, Scale: scale, Start: 0.3, Decay: 0.7, Reduction: Reduction{reduction}}
		}
	}
	grpo := func(scale, reduction string) func() Algorithm {
		return func() Algorithm { return &GRPO{Scale: scale, Reduction: Reduction{reduction}, Clip: clip} }
	}
	rloo := func() Algorithm { return &RLOO{clip} }
	ppo := func(gamma, valueClip float64, whiten bool) func() Algorithm {
		return func() Algorithm {
			return &PPO{Clip: clip, Gamma: gamma, Lambda: 0.9, ValueClip: valueClip, ValueCoef: valueCoef, Whiten: whiten}
		}
	}
	rewards, err := reward.ParseLabels("calibration,accuracy=2,expr:'correct - 0.5*(1-correct)*confidence'=0.5", []string{"a", "b", "c", "d", "e"}, reward.Options{})
	if err != nil {
		t.Fatal(err)
	}
	bounds := Returns{0.2, 0.9}
	return []oracleCase{
		{name: "sft of tokens", algorithm: func() Algorithm { return &SFT{} }, config: with(clipped), loss: imitation},
		{name: "sft of labels", labels: true, algorithm: func() Algorithm { return &SFT{} }, config: with(), loss: imitation},
		{name: "sft of tokens, aligned", penalty: 0.02, algorithm: func() Algorithm { return &SFT{0.02} }, config: with(clipped), loss: imitation},
		{name: "sft of labels, aligned", penalty: 0.02, labels: true, algorithm: func() Algorithm { return &SFT{0.02} }, config: with(), loss: imitation},

		{name: "reinforce, no baseline", algorithm: reinforce("none", "", ""), config: with(entropy), reduction: "sequence", advantages: none, loss: policyGradient},
		{name: "reinforce, group", algorithm: reinforce("group", "", "token"), config: with(), reduction: "token", advantages: group, loss: policyGradient},
		{name: "reinforce, group scaled", algorithm: reinforce("group", "group", "dr_grpo"), config: with(), reduction: "dr_grpo", advantages: scaled, loss: policyGradient},
		{name: "reinforce, group scaled by all", algorithm: reinforce("group", "batch", ""), config: with(), reduction: "sequence", advantages: byAll, loss: policyGradient},
		{name: "reinforce, leave one out", algorithm: reinforce("leave_one_out", "", ""), config: with(kl("k3", false)), reduction: "sequence", advantages: others, loss: policyGradient},
		{name: "reinforce, batch", algorithm: reinforce("batch", "", ""), config: with(kl("k1", true)), reduction: "sequence", advantages: batch, loss: policyGradient},
		{name: "reinforce, batch scaled", algorithm: reinforce("batch", "batch", ""), config: with(), reduction: "sequence", advantages: batchScaled, loss: policyGradient},
		{name: "reinforce, moving", algorithm: reinforce("", "", ""), config: with(), reduction: "sequence", advantages: moving, loss: policyGradient},
		{name: "reinforce, greedy", algorithm: reinforce("greedy", "", ""), config: with(), reduction: "sequence", advantages: greedy, loss: policyGradient},
		{name: "reinforce, prefetched", prefetched: true, algorithm: reinforce("", "", ""), config: with(), reduction: "sequence", advantages: moving, loss: policyGradient},
		{name: "reinforce of labels", labels: true, algorithm: reinforce("", "", ""), config: with(entropy), reduction: "sequence", advantages: moving, loss: policyGradient},

		{name: "rloo", clip: clip, algorithm: rloo, config: with(twice, entropy), advantages: others, loss: sequenceSurrogate},
		{name: "rloo, far from the old policy", asked: true, clip: clip, algorithm: rloo, config: with(twice, entropy), advantages: others, loss: sequenceSurrogate},
		{name: "rloo, prefetched", clip: clip, prefetched: true, algorithm: rloo, config: with(twice, kl("k2", false)), advantages: others, loss: sequenceSurrogate},
		{name: "rloo, divergence in the reward", clip: clip, algorithm: rloo, config: with(twice, kl("k3", true)), advantages: others, loss: sequenceSurrogate},

		{name: "grpo", clip: clip, algorithm: grpo("", ""), config: with(twice), reduction: "token", advantages: scaled, loss: surrogate},
		{name: "grpo, entropy and k2", clip: clip, algorithm: grpo("", "sequence"), config: with(twice, entropy, kl("k2", false)), reduction: "sequence", advantages: scaled, loss: surrogate},
		{name: "grpo, adaptive k3", clip: clip, algorithm: grpo("", ""), config: with(twice, kl("k3", false), adaptive, clipped), reduction: "token", advantages: scaled, loss: surrogate},
		{name: "dr grpo", clip: clip, algorithm: grpo("none", "dr_grpo"), config: with(twice, entropy), reduction: "dr_grpo", advantages: group, loss: surrogate},
		{name: "grpo, k1 in the reward", clip: clip, algorithm: grpo("", ""), config: with(twice, kl("k1", true), adaptive), reduction: "token", advantages: scaled, loss: surrogate},
		{name: "grpo, k2 in the reward, by all", clip: clip, algorithm: grpo("batch", ""), config: with(twice, kl("k2", true)), reduction: "token", advantages: byAll, loss: surrogate},
		{name: "grpo, prefetched", clip: clip, prefetched: true, algorithm: grpo("", ""), config: with(twice), reduction: "token", advantages: scaled, loss: surrogate},
		{name: "grpo, far from the old policy", asked: true, clip: clip, algorithm: grpo("", ""), config: with(twice), reduction: "token", advantages: scaled, loss: surrogate},
		{name: "grpo, stopped", clip: clip, algorithm: grpo("", ""), config: with(twice, func(c *Config) { c.TargetKL = 0.001 }), reduction: "token", advantages: scaled, loss: surrogate},

		{name: "ppo", clip: clip, algorithm: ppo(1, 0.1, true), config: with(twice, entropy, clipped), advantages: estimated(1, 0.9, true), loss: actorCritic(0.1)},
		{name: "ppo, discounted, no clip of values", clip: clip, algorithm: ppo(0.8, 0, false), config: with(twice, kl("k3", false)), advantages: estimated(0.8, 0.9, false), loss: actorCritic(0)},
		{name: "ppo, divergence in the reward", clip: clip, algorithm: ppo(0.8, 0.1, true), config: with(twice, kl("k1", true), adaptive), advantages: estimated(0.8, 0.9, true), loss: actorCritic(0.1)},
		{name: "ppo, episodes of two samples", joined: true, clip: clip, algorithm: ppo(0.8, 0.1, true), config: with(twice), advantages: estimated(0.8, 0.9, true), loss: actorCritic(0.1)},
		{name: "ppo, far from the old policy", asked: true, clip: clip, algorithm: ppo(0.8, 0.1, true), config: with(twice), advantages: estimated(0.8, 0.9, true), loss: actorCritic(0.1)},
		{name: "ppo of labels", labels: true, clip: clip, algorithm: ppo(0.8, 0.1, true), config: with(twice, entropy), advantages: estimated(0.8, 0.9, true), loss: actorCritic(0.1)},

		{name: "expected", labels: true, clip: clip, algorithm: func() Algorithm { return &Expected{Rewards: rewards, Clip: clip} }, config: with(twice, entropy, kl("k3", false)), loss: expectation},
		{name: "replayed", algorithm: func() Algorithm { return &Replayed{bounds} }, config: with(drawn, entropy), reduction: "sequence", advantages: returned, loss: policyGradient},
		{name: "stable", algorithm: func() Algorithm { return &Stable{bounds, 0.3} }, config: with(drawn), reduction: "sequence", advantages: returned, loss: stable},
		{name: "stable without a reference", algorithm: func() Algorithm { return &Stable{bounds, 0} }, config: with(drawn), reduction: "sequence", advantages: returned, loss: policyGradient},
		{name: "distiller", algorithm: func() Algorithm { return &Distiller{bounds, 0.3} }, config: with(drawn), reduction: "sequence", advantages: returned, loss: distiller},
	}
}

// TestStepsByHand takes three steps of every algorithm, each of up to four updates, and compares with the oracle: what
// the trainer reports, the moments of AdamW, which are means of the gradients, and the weights.
func TestStepsByHand(t *testing.T) {
	for _, c := range oracleCases(t) {
		t.Run(c.name, func(t *testing.T) { c.compare(t) })
	}
}

func (c oracleCase) compare(t *testing.T) {
	torchtest.NoLeaks(t)
	p, other := newTable(t, 1), newTable(t, 2)
	p.bodyBias = !c.labels
	samples := tokenStep
	if c.labels {
		samples = labelStep
	}
	source := func(at int) *rl.Step {
		step := samples(at)
		step.Prefetched = c.prefetched
		if c.joined {
			for i, x := range step.Samples {
				x.Episode = i / 2
			}
		}
		if c.asked {
			rng := rand.New(rand.NewPCG(uint64(at), 6))
			for _, x := range step.Samples {
				x.Old, x.Value = x.Drawn, normals(rng, x.Len(), 0.5)
			}
		}
		return step
	}
	config := c.config
	a := c.algorithm()
	if config.KLCoef > 0 || a.Needs().Reference {
		config.Reference = other
	}
	trainer, err := New(p, fixed(source), a, config, (&recorded{}).hooks())
	if err != nil {
		t.Fatal(err)
	}
	defer trainer.Close()
	o := &oracle{c: c, x: weightsOf64(t, p), m: make([]float64, all), v: make([]float64, all), coef: config.KLCoef, moving: 0.3}
	reference := weightsOf64(t, other)
	for at, factor := range []float64{1. / 2, 1, 2. / 3} {
		want := o.step(at, factor, source(at), reference)
		got, err := trainer.Step(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range want {
			if _, has := got[name]; !has || math.Abs(got.Get(name)-value) > 2e-4*(0.05+math.Abs(value)) {
				t.Errorf("step %d: %s is %v, by hand %v", at+1, name, got.Get(name), value)
			}
		}
	}
	state, err := trainer.optimizer.State()
	if err != nil {
		t.Fatal(err)
	}
	n := len(slices.Concat(state.First...))
	for name, pair := range map[string][2][]float32{
		"first moments":  {slices.Concat(state.First...), narrow(o.m)[:n]},
		"second moments": {slices.Concat(state.Second...), narrow(o.v)[:n]},
		"weights":        {narrow(weightsOf64(t, p)), narrow(o.x)},
	} {
		if e := torchtest.RelativeError(pair[0], pair[1]); !(e < 3e-4) {
			t.Errorf("%s are off by %.2g of themselves", name, e)
		}
	}
	if state.Steps != o.count {
		t.Errorf("%d updates, by hand %d", state.Steps, o.count)
	}
}

// weightsOf64 are the weights of a table, 0 where it has no value head.
func weightsOf64(t *testing.T, p *tablePolicy) []float64 {
	t.Helper()
	x := make([]float64, 0, all)
	for _, part := range weightsOf(t, p) {
		for _, v := range part {
			x = append(x, float64(v))
		}
	}
	return append(x, make([]float64, all-len(x))...)
}

func narrow(x []float64) []float32 {
	out := make([]float32, len(x))
	for i, v := range x {
		out[i] = float32(v)
	}
	return out
}
