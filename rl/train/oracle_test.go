package train

import (
	"math"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
)

// The oracle computes training steps a second time, in float64 and by hand: log-probabilities by the softmax, losses by
// their formulas, gradients by finite differences, and AdamW by its definition. It shares only the samples and their
// division into minibatches with the trainer.

// action is an action of a minibatch.
type action struct {
	x                 *rl.Sample
	at                int // index in the sample
	state, what       int
	lp, entropy, v    float64 // at the current weights
	pi                []float64
	old, ref, adv     float64
	oldV, ret, length float64
	left              bool // not learned from
}

// oracle is the state of a training run by hand.
type oracle struct {
	c       oracleCase
	x       []float64 // logits, bias, values
	m, v    []float64 // moments of AdamW
	count   int       // steps of AdamW
	coef    float64   // KL coefficient
	moving  float64   // baseline of the next step
	removed float64   // mean baseline of this step
	bonus   float64   // coefficient of an adaptive entropy bonus
	certain float64   // mean entropy of the last update's kept actions; NaN before the first
	stopped bool      // the KL ended this step early
}

// oracleCase is an algorithm with its formulas.
type oracleCase struct {
	referenceNLL bool // the metric of that name is reported
	name         string
	algorithm    func() algo.Algorithm
	config       Config
	labels       bool
	samples      func(step int) *rl.Step // nil = tokenStep or labelStep
	prefetched   bool
	joined       bool // samples two by two make an episode
	asked        bool // the source provides log π_old and V, far from those of the weights
	reduction    string
	penalty      float64 // feature alignment
	masked       int     // samples of a step that count in means only
	least        float64 // reward of the samples that are learned from

	// advantages fills in adv, and with values ret, for a step's actions, sample by sample.
	advantages func(o *oracle, step *rl.Step, acts map[*rl.Sample][]action)
	// loss is the loss of a minibatch of n samples.
	loss  func(o *oracle, acts []action, n float64) float64
	clip  algo.Clip
	delta float64 // two-sided clip; 0 = off
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

// probs is the policy with weights x at a state.
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

// look computes log-probabilities and values of actions with weights x.
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

// actions returns a sample's actions.
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

// weight is an action's weight in the mean over a minibatch of n samples and m actions.
func (o *oracle) weight(a action, n, m float64) float64 {
	if a.left {
		return 0
	}
	switch o.c.reduction {
	case "sequence":
		return 1 / n / a.length
	case "dr_grpo":
		return 1 / n / float64(o.c.config.Longest)
	case "sum":
		return 1 / n
	}
	return 1 / m
}

// divergence is k(d) by the definitions of Schulman 2020.
func divergence(kind string, d float64) float64 {
	return map[string]float64{"k1": d, "k2": d * d / 2, "k3": math.Exp(-d) - 1 + d}[kind]
}

// total is the loss of a minibatch with all of the trainer's terms, at weights x.
func (o *oracle) total(x []float64, acts []action, n float64) float64 {
	c, m := o.c.config, float64(len(acts))
	acts = o.look(x, acts)
	sum := o.c.loss(o, acts, n)
	if o.c.penalty > 0 { // on the norms of the body's matrices
		sum += o.c.penalty * norm(x[:atBias])
		if !o.c.labels {
			sum += o.c.penalty * norm(x[atBias:atValue])
		}
	}
	coef := c.EntropyCoef
	if c.Adaptive {
		if coef = o.bonus; !(o.certain <= c.Target) {
			coef = 0
		}
	}
	for _, a := range acts {
		sum -= coef * o.weight(a, n, m) * a.entropy
		a.left = false
		if c.KLCoef > 0 && !c.KLInReward {
			ratio := 1.0
			if c.KLCorrection {
				ratio = math.Exp(a.lp - a.old)
			}
			sum += o.coef * o.weight(a, n, m) * ratio * divergence(c.KLType, a.lp-a.ref)
		}
	}
	return sum
}

// gradient differentiates the loss by central differences.
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

// adamW updates the weights; the value head is clipped separately.
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
	beta1, beta2, epsilon := 0.9, 0.999, 1e-8
	if c.AdamEpsilon > 0 {
		beta1, beta2, epsilon = c.AdamBeta1, c.AdamBeta2, c.AdamEpsilon
	}
	for i := range g {
		o.m[i], o.v[i] = beta1*o.m[i]+(1-beta1)*g[i], beta2*o.v[i]+(1-beta2)*g[i]*g[i]
		mean, square := o.m[i]/(1-math.Pow(beta1, float64(o.count))), o.v[i]/(1-math.Pow(beta2, float64(o.count)))
		if i < atBias {
			o.x[i] *= 1 - rate(i)*c.WeightDecay
		}
		o.x[i] -= rate(i) * mean / (math.Sqrt(square) + epsilon)
	}
}

func norm(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	return math.Sqrt(sum)
}

// quiet is the part of the loss that no metric shows: the penalty on norms.
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

// handStep is a step in progress.
type handStep struct {
	*rl.Step
	number    int
	factor    float64 // of the learning rates
	acts      map[*rl.Sample][]action
	figures   map[string]float64
	sequences float64 // Σ log π − log π_ref
	seen      float64 // trained actions
}

// step takes one step and returns the metrics that the trainer must report.
func (o *oracle) step(number int, factor float64, samples *rl.Step, reference []float64) map[string]float64 {
	c, needs := o.c.config, o.c.algorithm().Needs()
	step := &handStep{
		Step: samples, number: number, factor: factor, acts: map[*rl.Sample][]action{},
		figures: map[string]float64{"learning_rate": factor * c.LearningRate},
	}
	if o.c.least > 0 {
		step.Samples = slices.DeleteFunc(step.Samples, func(x *rl.Sample) bool { return x.Penalised() < o.c.least })
	}
	o.ask(step, reference)
	if o.c.advantages != nil {
		o.c.advantages(o, step.Step, step.acts)
	}
	if needs.Values && !needs.SharedValues {
		step.figures["explained_variance"] = explained(step.Step, step.acts)
	}
	if o.c.prefetched {
		for _, x := range step.Samples {
			step.figures["sampling/importance_sampling_ratio/mean"] += o.importance(step.acts[x]) / step.seen
		}
	}
	if needs.Rewards && !needs.SharedValues {
		size := 0.0
		for _, x := range step.Samples {
			for _, a := range step.acts[x] {
				size += math.Abs(a.adv) / step.seen
			}
		}
		step.figures["advantage_abs_mean"] = size
	}
	o.descend(step)
	if c.KLCoef > 0 {
		step.figures["kl_coef"] = o.coef
		if c.KLTarget > 0 { // Ziegler et al. 2019
			n := float64(len(step.Samples))
			e := min(max(step.sequences/n/c.KLTarget-1, -0.2), 0.2)
			o.coef *= 1 + e*min(1, n/c.KLHorizon)
		}
	}
	return step.figures
}

// ask fills in the scores of the policy and its reference before the updates.
func (o *oracle) ask(step *handStep, reference []float64) {
	for _, x := range slices.Concat(append(step.Groups, step.Samples)...) {
		list := o.look(o.x, o.actions(x))
		asked := o.look(reference, list)
		for i := range list {
			list[i].old, list[i].oldV, list[i].ref = list[i].lp, list[i].v, asked[i].lp
			if o.c.asked && x.Old != nil {
				list[i].old, list[i].oldV = float64(x.Old[i]), float64(x.Value[i])
			}
		}
		step.acts[x] = list
	}
	for _, x := range step.Samples {
		for _, a := range step.acts[x] {
			step.sequences += a.old - a.ref
			step.seen++
		}
	}
	if o.c.config.MinibatchSize > 0 || o.c.config.KLCoef == 0 { // replayed turns are scored minibatch by minibatch
		return
	}
	for _, x := range step.Samples {
		for _, a := range step.acts[x] {
			for _, kind := range []string{"k1", "k2", "k3"} {
				step.figures["kl/"+kind] += divergence(kind, a.old-a.ref) / step.seen
			}
		}
	}
}

// descend makes a step's updates.
func (o *oracle) descend(step *handStep) {
	c, needs, figures := o.c.config, o.c.algorithm().Needs(), step.figures
	var sums handSums
	updates := 0.0
	o.stopped = false
	for epoch := range max(1, c.Epochs) {
		var pass handSums
		for _, part := range rl.Minibatches(c.Seed, step.number, epoch, len(step.Samples), max(1, c.Minibatches), c.MinibatchSize) {
			var batch []action
			for _, i := range part {
				batch = append(batch, step.acts[step.Samples[i]]...)
			}
			now, n := o.look(o.x, batch), float64(len(part))*(1+float64(step.Masked)/float64(len(step.Samples)))
			threshold, kept := o.leave(batch, now)
			o.add(&pass, now)
			if c.TargetKL > 0 && pass.kl/pass.actions > 1.5*c.TargetKL {
				o.stopped = true
				break
			}
			o.add(&sums, now)
			figures["loss"] += o.total(o.x, batch, n) - o.quiet()
			if needs.SharedValues {
				figures["td_loss"] += o.c.loss(o, now, n)
			} else if needs.Values {
				policy := surrogate(o, now, n)
				if needs.Ratio == algo.NoRatio {
					policy = policyGradient(o, now, n)
				}
				figures["policy_loss"] += policy
				figures["value_loss"] += (o.c.loss(o, now, n) - policy) / valueCoef
			} else if needs.Rewards {
				figures["policy_loss"] += o.c.loss(o, now, n)
			}
			if o.c.referenceNLL {
				figures["reference_nll"] += referenceNLL(now, n)
			}
			g := o.gradient(batch, n)
			figures["grad_norm"] += norm(g[:atValue])
			o.adamW(g, step.factor)
			updates++
			if c.TopEntropy > 0 {
				figures["top_entropy/threshold"] += threshold
				figures["top_entropy/mean"] += kept
			}
			if c.Adaptive {
				if o.certain = kept; kept <= c.Target {
					o.bonus = math.Min(o.bonus+c.Delta, c.Max)
				} else {
					o.bonus = math.Max(o.bonus-c.Delta, c.Min)
				}
				figures["entropy_coef"] = o.bonus
			}
		}
		if o.stopped {
			break
		}
	}
	for _, name := range []string{"loss", "policy_loss", "value_loss", "td_loss", "reference_nll", "grad_norm", "top_entropy/threshold", "top_entropy/mean"} {
		if _, known := figures[name]; known {
			figures[name] /= updates
		}
	}
	figures["updates"], figures["entropy"] = updates, sums.entropy/sums.actions
	if needs.Rewards && sums.early[1] > 0 {
		figures["entropy/quarter_1"], figures["entropy/quarter_4"] = sums.early[0]/sums.early[1], sums.late[0]/sums.late[1]
	}
	if needs.Ratio != algo.NoRatio {
		figures["approx_kl"] = sums.kl / sums.actions
		figures["clip_ratio/low_mean"], figures["clip_ratio/high_mean"] = sums.low/sums.ratios, sums.high/sums.ratios
		figures["clip_ratio/region_mean"] = (sums.low + sums.high) / sums.ratios
	}
}

// importance weights the advantages of a sample from an older policy, and returns the sum of the weights before the
// bound.
func (o *oracle) importance(acts []action) (sum float64) {
	together := 0.0
	for _, a := range acts {
		together += a.old - float64(a.x.BehaviorLogProbs[a.at])
	}
	for i, a := range acts {
		d := a.old - float64(a.x.BehaviorLogProbs[a.at])
		mode, low, high := o.c.config.Mode, o.c.config.Low, o.c.config.High
		if high == 0 {
			mode, high = map[bool]string{true: "sequence_truncate", false: "token_truncate"}[o.c.algorithm().Needs().Ratio == algo.SequenceRatio], 3
		}
		switch {
		case strings.HasPrefix(mode, "sequence"):
			d = together
		case mode == "geometric_mask":
			d = together / a.length
		}
		weight := math.Exp(d)
		switch inside := low <= weight && weight <= high; {
		case strings.HasSuffix(mode, "truncate"):
			weight = math.Min(math.Max(weight, low), high)
		case !inside:
			weight = 0
		case mode == "geometric_mask":
			weight = 1
		}
		acts[i].adv *= weight
		sum += math.Exp(d)
	}
	return sum
}

// explained is the explained variance of the returns.
func explained(step *rl.Step, acts map[*rl.Sample][]action) float64 {
	var returns, left []float64
	for _, x := range step.Samples {
		for _, a := range acts[x] {
			returns, left = append(returns, a.ret), append(left, a.ret-a.oldV)
		}
	}
	return 1 - deviation(left)*deviation(left)/deviation(returns)/deviation(returns)
}
