package train

import (
	"cmp"
	"math"
	"slices"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
)

// The oracle's cases of objectives since GRPO, each by its paper's formula. Where a formula stops a gradient, the oracle takes
// that factor at the weights before the update.

// objectiveCases are algorithms that compare the samples of a prompt, near the old policy and far from it.
func objectiveCases(base Config) []oracleCase {
	twice := base
	twice.Minibatches, twice.Epochs = 2, 2
	penalised := twice
	penalised.KLCoef, penalised.KLType, penalised.KLInReward = 0.2, "k1", true
	clip, narrow := algo.Clip{Low: 0.1, High: 0.15}, algo.Clip{Low: 0.02, High: 0.03}
	by := func(reduction string) algo.Reduction { return algo.Reduction{Reduction: reduction} }
	gspo := func(delta float64, reduction string) func() algo.Algorithm {
		return func() algo.Algorithm {
			return &algo.GSPO{Clip: narrow, TwoSided: algo.TwoSided{Delta: delta}, Reduction: by(reduction)}
		}
	}
	cispo := func() algo.Algorithm { return &algo.CISPO{Floor: 0.8, Cap: 1.3} }
	gmpo := func() algo.Algorithm { return &algo.GMPO{Low: 0.1, High: 0.2} }
	dppo := func(divergence string, delta float64) func() algo.Algorithm {
		return func() algo.Algorithm { return &algo.DPPO{Divergence: divergence, Delta: delta, Cap: 1.4} }
	}
	clipCov := func(fraction float64) func() algo.Algorithm {
		return func() algo.Algorithm { return &algo.ClipCov{Clip: clip, Fraction: fraction, Low: 0.1, High: 0.8} }
	}
	klCov := func() algo.Algorithm { return &algo.KLCov{Fraction: 0.3, Coef: 0.7} }
	plus := func(baseline string, gamma float64) func() algo.Algorithm {
		return func() algo.Algorithm { return &algo.ReinforcePlusPlus{Baseline: baseline, Gamma: gamma, Clip: clip} }
	}
	twoSided := func() algo.Algorithm {
		return &algo.GRPO{Clip: clip, TwoSided: algo.TwoSided{Delta: 1.4}, Reduction: by("token")}
	}
	dual := func() algo.Algorithm {
		return &algo.PPO{Clip: clip, TwoSided: algo.TwoSided{Delta: 1.4}, Gamma: 0.8, Lambda: 0.9, ValueCoef: valueCoef}
	}
	scaledBy := func(scale string) algo.AdvantageScale { return algo.AdvantageScale{Scale: scale} }
	maxRL := func() algo.Algorithm { return &algo.GRPO{Clip: clip, AdvantageScale: scaledBy("mean")} }
	opo := func() algo.Algorithm { return &algo.Reinforce{Baseline: "length", Decay: 0.7} }
	capped := algo.Clip{Low: 0.2, High: 0.3}
	bounded := algo.Clip{Low: -math.Expm1(-0.1), High: math.Expm1(0.2)}
	free := algo.Clip{Low: 1, High: math.Inf(1)}
	corrected := func(mode string, low, high float64) oracleCase {
		c := twice
		c.OffPolicy = OffPolicy{Mode: mode, Low: low, High: high}
		return oracleCase{name: "grpo, " + mode, prefetched: true, clip: clip, config: c, reduction: "token", advantages: standardised, loss: surrogate,
			algorithm: func() algo.Algorithm { return &algo.GRPO{Clip: clip} }}
	}
	atOne := twice
	atOne.Temperature = 1
	taught := func() algo.Algorithm {
		return &algo.Distill{Teacher: "given", Divergence: "sampled", Server: algo.TeacherServer{URL: "given", Concurrency: 1, Timeout: 1}}
	}
	return []oracleCase{
		{name: "distill, sampled", samples: withTeacher, clip: free, algorithm: taught, config: atOne, reduction: "token", advantages: nearer, loss: surrogate},
		{name: "clip cov", clip: clip, algorithm: clipCov(1), config: twice, reduction: "token", advantages: standardised, loss: leftOut},
		{name: "clip cov, far from the old policy", asked: true, clip: clip, algorithm: clipCov(1), config: twice, reduction: "token", advantages: standardised, loss: leftOut},
		{name: "kl cov", clip: free, algorithm: klCov, config: twice, reduction: "token", advantages: standardised, loss: covPenalty},
		{name: "kl cov, far from the old policy", asked: true, clip: free, algorithm: klCov, config: twice, reduction: "token", advantages: standardised, loss: covPenalty},
		{name: "sft of tokens, dynamic", algorithm: func() algo.Algorithm { return &algo.SFT{Dynamic: true} }, config: base, loss: dynamicImitation},
		{name: "sft of tokens, smoothed", algorithm: func() algo.Algorithm { return &algo.SFT{Smoothing: algo.Smoothing{Factor: 0.2}} }, config: base, loss: smoothedImitation},
		{name: "sft of labels, smoothed", labels: true, algorithm: func() algo.Algorithm { return &algo.SFT{Smoothing: algo.Smoothing{Factor: 0.2}} }, config: base, loss: smoothedImitation},
		corrected("token_truncate", 0.5, 2), corrected("token_mask", 0.3, 3), corrected("sequence_truncate", 0.2, 4),
		corrected("sequence_mask", 0.1, 8), corrected("geometric_mask", 0.45, 2),
		{name: "rft", least: 0.6, algorithm: func() algo.Algorithm { return &algo.RFT{MinReward: 0.6, Keep: "all"} }, config: twice, reduction: "token", advantages: praised, loss: policyGradient},
		{name: "gspo", clip: narrow, algorithm: gspo(0, ""), config: twice, reduction: "sequence", advantages: standardised, loss: ratioOfMeans},
		{name: "gspo, two-sided, far from the old policy", delta: 1.1, asked: true, clip: narrow, algorithm: gspo(1.1, "sum"), config: twice, reduction: "sum", advantages: standardised, loss: ratioOfMeans},
		{name: "gspo, prefetched", prefetched: true, clip: narrow, algorithm: gspo(0, ""), config: twice, reduction: "sequence", advantages: standardised, loss: ratioOfTokens},
		{name: "cispo", clip: capped, algorithm: cispo, config: twice, reduction: "token", advantages: standardised, loss: cappedWeights},
		{name: "cispo, far from the old policy", asked: true, clip: capped, algorithm: cispo, config: twice, reduction: "token", advantages: standardised, loss: cappedWeights},
		{name: "gmpo", asked: true, clip: bounded, algorithm: gmpo, config: twice, reduction: "sequence", advantages: standardised, loss: geometric},
		{name: "gmpo, masked samples", masked: 3, clip: bounded, algorithm: gmpo, config: twice, reduction: "sequence", advantages: standardised, loss: geometric},
		{name: "dppo, total variation", asked: true, clip: algo.Clip{Low: 1, High: 0.4}, algorithm: dppo("tv", 0.1), config: twice, reduction: "token", advantages: standardised, loss: unmoved(0.1, 1.4, apart)},
		{name: "dppo, KL", asked: true, clip: algo.Clip{Low: 1, High: 0.4}, algorithm: dppo("kl", 0.02), config: twice, reduction: "token", advantages: standardised, loss: unmoved(0.02, 1.4, binaryKL)},
		{name: "reinforce++", clip: clip, algorithm: plus("none", 0.8), config: penalised, reduction: "token", advantages: whitenedReturns(0.8), loss: surrogate},
		{name: "reinforce++, baseline", clip: clip, algorithm: plus("group", 1), config: twice, reduction: "token", advantages: whitenedComparison, loss: surrogate},
		{name: "grpo, two-sided", delta: 1.4, asked: true, clip: clip, algorithm: twoSided, config: twice, reduction: "token", advantages: standardised, loss: surrogate},
		{name: "ppo, two-sided", delta: 1.4, asked: true, clip: clip, algorithm: dual, config: twice, reduction: "token", advantages: estimated(0.8, 0.9, false), loss: actorCritic(0)},
		{name: "maxrl", clip: clip, algorithm: maxRL, config: twice, reduction: "token", advantages: relative, loss: surrogate},
		{name: "opo", algorithm: opo, config: base, reduction: "sequence", advantages: lengthWeighted, loss: policyGradient},
		{name: "gpg", samples: withZeros, algorithm: func() algo.Algorithm { return &algo.GPG{} }, config: base, reduction: "token", advantages: paidFor, loss: policyGradient},
	}
}

// standardised is GRPO's advantage.
var standardised = compared(func(c comparison) float64 {
	if !c.differ {
		return c.r - average(c.group)
	}
	return (c.r - average(c.group)) / (deviation(c.group) + 1e-4)
})

// centred is that of algorithms which divide by nothing.
var centred = compared(func(c comparison) float64 { return c.r - average(c.group) })

// praised is RFT's.
var praised = compared(func(comparison) float64 { return 1 })

// relative is MaxRL's: (r − mean)/mean, with the mean of the rewards before penalties.
var relative = compared(func(c comparison) float64 {
	if !c.differ {
		return c.r - average(c.group)
	}
	var raw []float64
	for _, x := range c.step.Groups[c.at] {
		if x.HasReward() {
			raw = append(raw, x.Reward())
		}
	}
	return (c.r - average(c.group)) / average(raw)
})

// lengthWeighted is OPO's: r − Σ L·r/Σ L.
var lengthWeighted = compared(func(c comparison) float64 {
	sum, length := 0.0, 0.0
	for _, x := range c.step.Groups[c.at] {
		if x.HasReward() {
			sum, length = sum+float64(len(x.Actions))*x.Penalised(), length+float64(len(x.Actions))
		}
	}
	return c.r - sum/length
})

// paidFor is GPG's.
var paidFor = compared(func(c comparison) float64 {
	n, paid := 0.0, 0.0
	for _, x := range c.step.Samples { // those with a reward
		n++
		if x.Reward() != 0 {
			paid++
		}
	}
	return n / paid * (c.r - average(c.group))
})

// withZeros is a step in which some rewards are 0.
func withZeros(at int) *rl.Step {
	step := tokenStep(at)
	for _, x := range step.Samples {
		if x.Index == 3 {
			clear(x.Rewards)
		}
	}
	return step
}

// withTeacher is tokenStep with a teacher's log π.
func withTeacher(at int) *rl.Step {
	step := tokenStep(at)
	for i, x := range step.Samples {
		for k := range x.Actions {
			x.Teacher = append(x.Teacher, -float32(1+(i*7+k*3+at)%5)/2)
		}
	}
	return step
}

// nearer is the advantage of distillation by sampled tokens: log π of the teacher − log π_old.
func nearer(_ *oracle, step *rl.Step, acts map[*rl.Sample][]action) {
	for _, x := range step.Samples {
		for i := range acts[x] {
			acts[x][i].adv = float64(x.Teacher[i]) - acts[x][i].old
		}
	}
}

// whiten gives the samples of a step advantages with mean 0 and standard deviation 1.
func whiten(step *rl.Step, acts map[*rl.Sample][]action) {
	var values []float64
	for _, x := range step.Samples {
		for _, a := range acts[x] {
			values = append(values, a.adv)
		}
	}
	mean, n := average(values), float64(len(values))
	std := math.Sqrt(deviation(values)*deviation(values)*(n-1)/n + 1e-8)
	for _, x := range step.Samples {
		for i := range acts[x] {
			acts[x][i].adv = (acts[x][i].adv - mean) / std
		}
	}
}

// whitenedReturns is REINFORCE++'s: discounted returns of each sample.
func whitenedReturns(gamma float64) func(o *oracle, step *rl.Step, acts map[*rl.Sample][]action) {
	return func(o *oracle, step *rl.Step, acts map[*rl.Sample][]action) {
		for _, x := range step.Samples {
			list := acts[x]
			for t := range list {
				list[t].adv = 0
				for k := t; k < len(list); k++ {
					list[t].adv += math.Pow(gamma, float64(k-t)) * o.income(list[k])
				}
			}
		}
		whiten(step, acts)
	}
}

// whitenedComparison is that of its baseline form.
func whitenedComparison(o *oracle, step *rl.Step, acts map[*rl.Sample][]action) {
	centred(o, step, acts)
	whiten(step, acts)
}

// logRatios are Σ_t log π/π_old of each sample.
func logRatios(acts []action) map[*rl.Sample]float64 {
	sums := map[*rl.Sample]float64{}
	for _, a := range acts {
		sums[a.x] += a.lp - a.old
	}
	return sums
}

// ratioOfMeans is GSPO's, by whole samples.
func ratioOfMeans(o *oracle, acts []action, n float64) (sum float64) {
	sums := logRatios(acts)
	for _, a := range acts {
		sum -= o.weight(a, n, float64(len(acts))) * o.clippedMin(math.Exp(sums[a.x]/a.length), a.adv)
	}
	return sum
}

// ratioOfTokens is GSPO's by tokens, whose advantages may differ within a sample.
func ratioOfTokens(o *oracle, acts []action, n float64) (sum float64) {
	before := o.look(o.x, acts)
	sums := logRatios(before)
	for i, a := range acts {
		ratio := math.Exp(sums[a.x]/a.length + a.lp - before[i].lp)
		sum -= o.weight(a, n, float64(len(acts))) * o.clippedMin(ratio, a.adv)
	}
	return sum
}

// dynamicImitation is the loss of dynamic fine-tuning.
func dynamicImitation(o *oracle, acts []action, n float64) (sum float64) {
	before := o.look(o.x, acts)
	for i, a := range acts {
		sum -= math.Exp(before[i].lp) * a.lp / float64(len(acts))
	}
	return sum
}

// smoothedImitation is the loss with a fifth of each target's probability spread over all symbols.
func smoothedImitation(o *oracle, acts []action, n float64) (sum float64) {
	for _, a := range acts {
		sum -= 0.8 * a.lp / float64(len(acts))
		for _, p := range a.pi {
			sum -= 0.2 * math.Log(p) / symbols / float64(len(acts))
		}
	}
	return sum
}

// covariance is that of log π and the advantage of each action, from the whole minibatch.
func covariance(acts []action) []float64 {
	var advantages, logs, all []float64
	for _, a := range acts {
		advantages, logs = append(advantages, a.adv), append(logs, a.lp)
	}
	for _, a := range acts {
		all = append(all, (a.adv-average(advantages))*(a.lp-average(logs)))
	}
	return all
}

// leftOut is the clipped surrogate without all actions of a covariance between 0.1 and 0.8 that the clip lets through.
func leftOut(o *oracle, acts []action, n float64) (sum float64) {
	before := o.look(o.x, acts)
	for i, c := range covariance(before) {
		a, ratio := acts[i], math.Exp(before[i].lp-before[i].old)
		held := a.adv > 0 && ratio > 1+o.c.clip.High || a.adv < 0 && ratio < 1-o.c.clip.Low
		if !held && c > 0.1 && c < 0.8 {
			continue
		}
		sum -= o.weight(a, n, float64(len(acts))) * o.clippedMin(math.Exp(a.lp-a.old), a.adv)
	}
	return sum
}

// covPenalty is the surrogate without a clip, with 0.7·|log ρ| for the 30 % of the actions with the highest covariance.
func covPenalty(o *oracle, acts []action, n float64) (sum float64) {
	all := covariance(o.look(o.x, acts))
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(all[j], all[i]) })
	for at, i := range order {
		a := acts[i]
		gain := math.Exp(a.lp-a.old) * a.adv
		if at < max(1, int(0.3*float64(len(acts)))) {
			gain -= 0.7 * math.Abs(a.lp-a.old)
		}
		sum -= o.weight(a, n, float64(len(acts))) * gain
	}
	return sum
}

// cappedWeights is CISPO's, between 0.8 and 1.3.
func cappedWeights(o *oracle, acts []action, n float64) (sum float64) {
	before := o.look(o.x, acts)
	for i, a := range acts {
		weight := math.Min(math.Max(math.Exp(before[i].lp-a.old), 0.8), 1.3)
		sum -= o.weight(a, n, float64(len(acts))) * weight * a.adv * a.lp
	}
	return sum
}

// geometric is GMPO's, with log ratios of at least -0.1 or at most 0.2.
func geometric(_ *oracle, acts []action, n float64) (sum float64) {
	logs, advantage := map[*rl.Sample]float64{}, map[*rl.Sample]float64{}
	for _, a := range acts {
		l := math.Max(a.lp-a.old, -0.1)
		if a.adv > 0 {
			l = math.Min(a.lp-a.old, 0.2)
		}
		logs[a.x] += l / a.length
		advantage[a.x] = a.adv
	}
	for x, l := range logs {
		sum -= advantage[x] * math.Exp(l) / n
	}
	return sum
}

func apart(p, q float64) float64 { return math.Abs(p - q) }

func binaryKL(p, q float64) float64 {
	return p*math.Log(p/q) + (1-p)*math.Log((1-p)/(1-q))
}

// unmoved is DPPO's.
func unmoved(delta, most float64, distance func(p, q float64) float64) func(o *oracle, acts []action, n float64) float64 {
	return func(o *oracle, acts []action, n float64) (sum float64) {
		before := o.look(o.x, acts)
		for i, a := range acts {
			p, q := math.Exp(a.old), math.Exp(before[i].lp)
			if (a.adv > 0 && q > p || a.adv <= 0 && q < p) && distance(p, q) > delta {
				continue
			}
			sum -= o.weight(a, n, float64(len(acts))) * math.Min(q/p, most) * a.adv * a.lp
		}
		return sum
	}
}

// whole says whether an algorithm has one ratio per sample.
func whole(a algo.Algorithm) bool {
	return slices.Contains([]algo.Ratio{algo.SequenceRatio, algo.MeanRatio}, a.Needs().Ratio)
}
