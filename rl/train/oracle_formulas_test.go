package train

import (
	"math"
	"slices"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
)

// The oracle's advantages and losses, each by its definition.

// paid returns a sample's reward, and its reward minus penalties.
func (o *oracle) paid(acts []action) (raw, penalised float64) {
	for _, a := range acts {
		raw += a.x.Rewards[a.at]
		penalised += o.income(a)
	}
	return raw, penalised
}

// income of an action: its reward minus the KL penalty, and for the last action minus the length penalty.
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

// comparison is a sample's penalised reward among those of its group and of the step, without missing ones.
type comparison struct {
	o               *oracle
	step            *rl.Step
	at              int // of the group
	r               float64
	group, everyone []float64
	differ          bool // the group's rewards differ before penalties
}

// compared gives each sample's actions the advantage of its reward.
func compared(advantage func(c comparison) float64) func(*oracle, *rl.Step, map[*rl.Sample][]action) {
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
		for g, group := range step.Groups {
			for _, x := range group {
				_, r := o.paid(acts[x])
				a := 0.0
				if !math.IsNaN(r) {
					a = advantage(comparison{o, step, g, r, groups[g], slices.Concat(groups...), slices.Max(raws[g]) != slices.Min(raws[g])})
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

// returned uses each sample's clamped reward as its advantage.
func returned(o *oracle, step *rl.Step, acts map[*rl.Sample][]action) {
	for _, list := range acts {
		for i := range list {
			raw, _ := o.paid(list)
			list[i].adv = min(max(raw, 0.2), 0.9)
		}
	}
}

// estimated is GAE by its sum Σ (γλ)^l δ, with whitening.
func estimated(gamma, lambda float64, whitened bool) func(o *oracle, step *rl.Step, acts map[*rl.Sample][]action) {
	return func(o *oracle, step *rl.Step, acts map[*rl.Sample][]action) {
		episodes := map[int][]*action{}
		for _, x := range step.Samples {
			for i := range acts[x] {
				episodes[x.Episode] = append(episodes[x.Episode], &acts[x][i])
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
		if whitened {
			whiten(step, acts)
		}
	}
}

// Losses.

func policyGradient(o *oracle, acts []action, n float64) (sum float64) {
	for _, a := range acts {
		sum -= o.weight(a, n, float64(len(acts))) * a.adv * a.lp
	}
	return sum
}

// clippedMin is min(min(ρ, δ)·A, clip(ρ)·A).
func (o *oracle) clippedMin(ratio, advantage float64) float64 {
	inside := math.Min(math.Max(ratio, 1-o.c.clip.Low), 1+o.c.clip.High)
	if o.c.delta > 0 {
		ratio = math.Min(ratio, o.c.delta)
	}
	return math.Min(ratio*advantage, inside*advantage)
}

func surrogate(o *oracle, acts []action, n float64) (sum float64) {
	for _, a := range acts {
		sum -= o.weight(a, n, float64(len(acts))) * o.clippedMin(math.Exp(a.lp-a.old), a.adv)
	}
	return sum
}

func sequenceSurrogate(o *oracle, acts []action, n float64) (sum float64) {
	together := logRatios(acts)
	for _, a := range acts {
		if a.at == 0 {
			sum -= o.clippedMin(math.Exp(together[a.x]), a.adv) / n
		}
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

// actorCriticOnce is the loss of A2C.
func actorCriticOnce(o *oracle, acts []action, n float64) float64 {
	sum := policyGradient(o, acts, n)
	for _, a := range acts {
		sum += valueCoef * 0.5 * (a.v - a.ret) * (a.v - a.ret) / float64(len(acts))
	}
	return sum
}

// qTemperature is DQN's.
const qTemperature = 0.3

// rewarded uses the rewards as DQN's targets.
func rewarded(_ *oracle, _ *rl.Step, acts map[*rl.Sample][]action) {
	for x, list := range acts {
		list[0].ret = x.Rewards[0]
	}
}

// regression is DQN's loss for known targets.
func regression(o *oracle, acts []action, n float64) (sum float64) {
	for _, a := range acts {
		d := math.Abs(a.v + qTemperature*a.lp - a.ret)
		if d < 1 {
			d = d * d / 2
		} else {
			d -= 0.5
		}
		sum += d / n
	}
	return sum
}

func imitation(o *oracle, acts []action, n float64) (sum float64) {
	for _, a := range acts {
		sum -= a.lp / float64(len(acts))
	}
	return sum
}

// expectation is −mean Σ_a π_a R_a, where R is the Brier score as a reward, twice the accuracy, and an expression.
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

// referenceNLL is the metric of ReplayNLL.
func referenceNLL(acts []action, n float64) (sum float64) {
	for _, a := range acts {
		sum -= a.ref / a.length / n
	}
	return sum
}

// leave marks the actions of a minibatch whose entropy is below the quantile, and returns it and the mean of the others.
func (o *oracle) leave(batch, now []action) (threshold, kept float64) {
	var entropies []float64
	for _, a := range now {
		entropies = append(entropies, a.entropy)
	}
	if o.c.config.TopEntropy > 0 {
		slices.Sort(entropies)
		at := (1 - o.c.config.TopEntropy) * float64(len(entropies)-1)
		below := entropies[int(at)]
		threshold = below + (at-math.Floor(at))*(entropies[int(math.Ceil(at))]-below)
	}
	n := 0.0
	for i, a := range now {
		batch[i].left = a.entropy < threshold
		now[i].left = batch[i].left
		if !batch[i].left {
			kept, n = kept+a.entropy, n+1
		}
	}
	return threshold, kept / n
}

// handSums are sums over the actions of minibatches.
type handSums struct {
	entropy, kl, actions, low, high, ratios float64
	early, late                             [2]float64 // entropy and number of actions in the first and last quarter
}

func (o *oracle) add(s *handSums, acts []action) {
	for _, a := range acts {
		d := a.lp - a.old
		s.entropy, s.kl, s.actions = s.entropy+a.entropy, s.kl+math.Exp(d)-1-d, s.actions+1
		if at := float64(a.at) / a.length; a.length >= 4 && at < 0.25 {
			s.early[0], s.early[1] = s.early[0]+a.entropy, s.early[1]+1
		} else if a.length >= 4 && at >= 0.75 {
			s.late[0], s.late[1] = s.late[0]+a.entropy, s.late[1]+1
		}
	}
	low, high, ratios := o.heldBack(acts)
	s.low, s.high, s.ratios = s.low+low, s.high+high, s.ratios+ratios
}

// heldBack counts the ratios of a minibatch, and those clipped from below and from above.
func (o *oracle) heldBack(acts []action) (low, high, ratios float64) {
	together := logRatios(acts)
	for _, a := range acts {
		d := a.lp - a.old
		if whole(o.c.algorithm()) {
			if d = together[a.x]; a.at > 0 {
				continue
			}
			if o.c.algorithm().Needs().Ratio == algo.MeanRatio {
				d /= a.length
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
