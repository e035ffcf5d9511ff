package train

import (
	"math"
	"slices"
	"strconv"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
)

// answer is one answer of a pair.
type pairedAnswer struct{ sum, reference, tokens float64 }

func (x pairedAnswer) h() float64    { return x.sum - x.reference }
func (x pairedAnswer) mean() float64 { return x.sum / x.tokens }

func sigma(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// pairOracle is the loss of a pair by its definition, without the likelihood term of chosen answers.
func pairOracle(name string, a *algo.DPO, c, r pairedAnswer) float64 {
	h, eps := a.Beta*(c.h()-r.h()), a.Smoothing
	smoothed := func(x float64) float64 { return -(1-eps)*math.Log(sigma(x)) - eps*math.Log(sigma(-x)) }
	switch name {
	case "sigmoid":
		return smoothed(h)
	case "robust":
		return (-(1-eps)*math.Log(sigma(h)) + eps*math.Log(sigma(-h))) / (1 - 2*eps)
	case "hinge":
		return math.Max(0, 1-h)
	case "ipo":
		return math.Pow(c.h()/c.tokens-r.h()/r.tokens-1/(2*a.Beta), 2)
	case "apo_zero":
		return 1 - sigma(a.Beta*c.h()) + sigma(a.Beta*r.h())
	case "apo_down":
		return sigma(a.Beta*c.h()) + 1 - sigma(h)
	case "cpo":
		return smoothed(a.Beta * (c.sum - r.sum))
	case "simpo":
		return smoothed(a.Beta*(c.mean()-r.mean()) - a.SimPOGamma)
	case "orpo":
		odds := func(x pairedAnswer) float64 { p := math.Exp(x.mean()); return math.Log(p / (1 - p)) }
		return -a.Beta * math.Log(sigma(odds(c)-odds(r)))
	}
	return 0 // sft
}

// nllWeight is the weight of the likelihood of chosen answers in a loss.
func nllWeight(name string, a *algo.DPO) float64 {
	return map[string]float64{"cpo": a.CPOAlpha, "orpo": 1, "sft": 1}[name]
}

// dpoOracle is the loss of a minibatch of pairs.
func dpoOracle(a *algo.DPO, samples []*rl.Sample, logProbs []float64) float64 {
	weights := slices.Repeat([]float64{1}, len(a.Losses))
	for i, text := range a.Weights {
		weights[i], _ = strconv.ParseFloat(text, 64)
	}
	var answers []pairedAnswer
	likelihood, tokens := 0.0, 0.0
	for i, x := range samples {
		y := pairedAnswer{tokens: float64(x.Len()), reference: rl.Total(x.Reference)}
		for range x.Actions {
			y.sum += logProbs[0]
			logProbs = logProbs[1:]
		}
		if i%2 == 0 {
			likelihood, tokens = likelihood+y.sum, tokens+y.tokens
		}
		answers = append(answers, y)
	}
	loss := 0.0
	for i := 0; i < len(answers); i += 2 {
		for k, name := range a.Losses {
			loss += weights[k] * pairOracle(name, a, answers[i], answers[i+1]) / float64(len(answers)/2)
		}
	}
	for k, name := range a.Losses {
		loss -= weights[k] * nllWeight(name, a) * likelihood / tokens
	}
	return loss
}

// klByHand is K in the loss of kto.
const klByHand = 0.15

// ktoOracle is the loss of single answers.
func ktoOracle(a *algo.DPO, samples []*rl.Sample, logProbs []float64) float64 {
	loss := 0.0
	for _, x := range samples {
		h := -rl.Total(x.Reference)
		for range x.Actions {
			h += logProbs[0]
			logProbs = logProbs[1:]
		}
		if x.Truth == 1 {
			loss += a.DesirableWeight * (1 - sigma(a.Beta*(h-klByHand)))
		} else {
			loss += a.UndesirableWeight * (1 - sigma(a.Beta*(klByHand-h)))
		}
	}
	return loss / float64(len(samples))
}
