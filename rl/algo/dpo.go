package algo

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
)

// DPO learns from pairs of a chosen and a rejected response (Rafailov et al. 2023), with one loss of its family or a
// weighted sum of several. With L = Σ_t log π of a response, h = L − L_ref and l = L/tokens, each is the mean over the
// pairs of
//
//	sigmoid   −(1−ε)·log σ(β(h_c − h_r)) − ε·log σ(β(h_r − h_c))          Rafailov et al. 2023, equation 7; ε: Mitchell 2023
//	robust    the same with −ε for +ε, divided by 1 − 2ε                  Chowdhury et al. 2024, equation 12
//	hinge     max(0, 1 − β(h_c − h_r))                                    Zhao et al. 2023
//	ipo       (h_c/tokens_c − h_r/tokens_r − 1/2β)²                       Azar et al. 2023, equation 17, per token
//	apo_zero  1 − σ(βh_c) + σ(βh_r)                                       D'Oosterlinck et al. 2024, equation 7
//	apo_down  σ(βh_c) + 1 − σ(β(h_c − h_r))                               equation 8
//	cpo       −log σ(β(L_c − L_r)) smoothed by ε, + α·sft                 Xu et al. 2024, equation 6
//	simpo     −log σ(β(l_c − l_r) − γ) smoothed by ε                      Meng et al. 2024, equation 6
//	orpo      sft − β·log σ(log odds(e^l_c) − log odds(e^l_r))            Hong et al. 2024, equations 4 to 7
//	sft       −Σ L_c / Σ tokens_c
//
// kto learns from single responses, good or bad (Ethayarajh et al. 2024, equation 8): the mean of 1 − σ(β(h − K)) for good
// ones and 1 − σ(β(K − h)) for bad ones, with K ≥ 0 the mean of h over the prompts of the step with each other's responses.
type DPO struct {
	Losses            []string `option:"dpo_loss" default:"sigmoid" allowed:"sigmoid,ipo,hinge,robust,apo_zero,apo_down,cpo,simpo,orpo,kto,sft" help:"loss of algorithm dpo, or several joined by commas; cpo, simpo, orpo and sft need no reference; kto takes single responses"`
	Weights           []string `option:"loss_weights" help:"weights of the losses in dpo_loss; empty = 1 each"`
	Beta              float64  `option:"dpo_beta" default:"0.1" range:"(0,)" help:"beta of DPO: lower lets the policy move further from the reference"`
	Smoothing         float64  `option:"label_smoothing" default:"0" range:"[0,0.5)" needs:"dpo_loss=sigmoid|robust|cpo|simpo" help:"fraction of pairs assumed to be labelled the wrong way round"`
	CPOAlpha          float64  `option:"cpo_alpha" default:"1" range:"[0,)" needs:"dpo_loss=cpo" help:"weight of the likelihood of chosen responses in loss cpo"`
	SimPOGamma        float64  `option:"simpo_gamma" default:"0.5" range:"[0,)" needs:"dpo_loss=simpo" help:"target margin gamma of loss simpo"`
	DesirableWeight   float64  `option:"desirable_weight" default:"1" range:"(0,)" needs:"dpo_loss=kto" help:"weight of good responses in loss kto"`
	UndesirableWeight float64  `option:"undesirable_weight" default:"1" range:"(0,)" needs:"dpo_loss=kto" help:"weight of bad responses in loss kto"`

	kl float64 // K of this step
}

func init() {
	Register(Definition{Name: "dpo", Help: "DPO and its family, on pairs of a data set, or in other tasks on the policy's completions ranked by reward", Tokens: true,
		New: func() Algorithm { return &OnlineDPO{} }, Pairs: func() Algorithm { return &DPO{} }})
}

// pairLosses are the losses of pairs, each [P], or [1] for sft.
var pairLosses = map[string]func(a *DPO, s *torch.Scope, p pairs) torch.Tensor{
	"sigmoid": func(a *DPO, s *torch.Scope, p pairs) torch.Tensor { return a.logistic(s, p.ratios(s), 1) },
	"robust": func(a *DPO, s *torch.Scope, p pairs) torch.Tensor {
		return s.Scale(a.logistic(s, p.ratios(s), -1), 1/(1-2*a.Smoothing))
	},
	"hinge": func(a *DPO, s *torch.Scope, p pairs) torch.Tensor {
		return s.ReLU(s.Shift(s.Scale(p.ratios(s), -a.Beta), 1))
	},
	"ipo": func(a *DPO, s *torch.Scope, p pairs) torch.Tensor {
		d := s.Shift(s.Sub(s.Mul(p.chosen.ratio(s), p.chosen.perToken), s.Mul(p.rejected.ratio(s), p.rejected.perToken)), -1/(2*a.Beta))
		return s.Mul(d, d)
	},
	"apo_zero": func(a *DPO, s *torch.Scope, p pairs) torch.Tensor {
		return s.Shift(s.Sub(s.Sigmoid(s.Scale(p.rejected.ratio(s), a.Beta)), s.Sigmoid(s.Scale(p.chosen.ratio(s), a.Beta))), 1)
	},
	"apo_down": func(a *DPO, s *torch.Scope, p pairs) torch.Tensor {
		return s.Shift(s.Sub(s.Sigmoid(s.Scale(p.chosen.ratio(s), a.Beta)), s.Sigmoid(s.Scale(p.ratios(s), a.Beta))), 1)
	},
	"cpo": func(a *DPO, s *torch.Scope, p pairs) torch.Tensor {
		return s.Add(a.logistic(s, s.Sub(p.chosen.sum, p.rejected.sum), 1), s.Scale(p.nll(s), a.CPOAlpha))
	},
	"simpo": func(a *DPO, s *torch.Scope, p pairs) torch.Tensor {
		return a.logistic(s, s.Shift(s.Sub(p.chosen.mean(s), p.rejected.mean(s)), -a.SimPOGamma/a.Beta), 1)
	},
	"orpo": func(a *DPO, s *torch.Scope, p pairs) torch.Tensor {
		odds := s.Sub(logOdds(s, p.chosen.mean(s)), logOdds(s, p.rejected.mean(s)))
		return s.Sub(p.nll(s), s.Scale(s.LogSigmoid(odds), a.Beta))
	},
	"sft": func(_ *DPO, s *torch.Scope, p pairs) torch.Tensor { return p.nll(s) },
}

// referred are the losses that need a reference.
var referred = []string{"sigmoid", "robust", "hinge", "ipo", "apo_zero", "apo_down", "kto"}

// averaged are the losses, and then the figures too, that use the mean log π of a response.
var averaged = []string{"simpo", "orpo"}

// logistic is −(1−ε)·log σ(βx) − sign·ε·log σ(−βx).
func (a *DPO) logistic(s *torch.Scope, x torch.Tensor, sign float64) torch.Tensor {
	scaled := s.Scale(x, a.Beta)
	loss := s.Scale(s.LogSigmoid(scaled), a.Smoothing-1)
	if a.Smoothing == 0 {
		return loss
	}
	return s.Sub(loss, s.Scale(s.LogSigmoid(s.Neg(scaled)), sign*a.Smoothing))
}

// logOdds is log(p/(1−p)) of log p < 0.
func logOdds(s *torch.Scope, logP torch.Tensor) torch.Tensor {
	const certain = -1e-6 // odds stay finite
	logP = s.Minimum(logP, s.Floats([]float32{certain}, 1))
	return s.Sub(logP, s.Log(s.Neg(s.Expm1(logP))))
}

// Known lists the losses.
func (a *DPO) Known() []string { return append(slices.Sorted(maps.Keys(pairLosses)), "kto") }

// Unpaired says whether the loss takes single responses instead of pairs.
func (a *DPO) Unpaired() bool { return slices.Contains(a.Losses, "kto") }

// Check implements Algorithm.
func (a *DPO) Check(int) error {
	for i, name := range a.Losses {
		switch {
		case slices.Contains(a.Losses[:i], name):
			return envs.OptionErrorf("dpo_loss", "%s is given twice; give it once, with the sum of the weights", name)
		case name == "kto" && len(a.Losses) > 1:
			return envs.OptionErrorf("dpo_loss", "kto takes single responses and cannot be combined with %s", strings.Join(slices.DeleteFunc(slices.Clone(a.Losses), func(n string) bool { return n == name }), ", "))
		case a.Smoothing > 0 && slices.Contains([]string{"hinge", "ipo", "apo_zero", "apo_down", "orpo", "kto"}, name):
			return envs.OptionErrorf("dpo_loss", "%s has no label_smoothing; leave one of them out", name)
		}
	}
	if len(a.Losses) == 0 {
		return envs.OptionErrorf("dpo_loss", "is empty")
	}
	_, err := a.weights()
	return err
}

// weights are those of the losses.
func (a *DPO) weights() ([]float64, error) {
	weights := make([]float64, len(a.Losses))
	for i := range weights {
		weights[i] = 1
	}
	if len(a.Weights) == 0 {
		return weights, nil
	}
	if len(a.Weights) != len(weights) {
		return nil, envs.OptionErrorf("loss_weights", "has %d weights for %d losses", len(a.Weights), len(weights))
	}
	for i, text := range a.Weights {
		w, err := strconv.ParseFloat(text, 64)
		if err != nil || !(w > 0 && w <= 1e6) {
			return nil, envs.OptionErrorf("loss_weights", "%q is not a number above 0 and at most 1e6", text)
		}
		weights[i] = w
	}
	return weights, nil
}

// Needs implements Algorithm.
func (a *DPO) Needs() Needs {
	refers := slices.ContainsFunc(a.Losses, func(name string) bool { return slices.Contains(referred, name) })
	return Needs{Reference: refers, Together: !a.Unpaired(), Single: a.Unpaired(), ImplicitReward: a.implicitReward}
}

// implicitReward is β times what the losses compare of a response with Σ log π; minus K with kto.
func (a *DPO) implicitReward(x *rl.Sample, logProb float64) float64 {
	switch {
	case slices.ContainsFunc(a.Losses, func(name string) bool { return slices.Contains(averaged, name) }):
		return a.Beta * logProb / float64(x.Len())
	case x.Reference == nil:
		return a.Beta * logProb
	}
	return a.Beta * (logProb - rl.Total(x.Reference) - a.kl)
}

// Prepare implements Algorithm.
func (a *DPO) Prepare(step *rl.Step) error {
	if a.Unpaired() {
		a.kl = meanRatio(step.KLSamples)
		step.Figures.Mean("kl", a.kl, 1)
	}
	return nil
}

// Loss implements Algorithm.
func (a *DPO) Loss(s *torch.Scope, b *Batch) torch.Tensor {
	loss := a.loss(s, b)
	b.Note(s, "loss", loss)
	return loss
}

func (a *DPO) loss(s *torch.Scope, b *Batch) torch.Tensor {
	if a.Unpaired() {
		return a.kto(s, b)
	}
	p := pairsOf(s, b)
	weights, _ := a.weights() // Check has seen them
	loss := s.Floats(make([]float32, p.n), int64(p.n))
	for i, name := range a.Losses {
		loss = s.Add(loss, s.Scale(pairLosses[name](a, s, p), weights[i]))
	}
	if slices.ContainsFunc(a.Losses, func(name string) bool { return slices.Contains([]string{"cpo", "orpo", "sft"}, name) }) {
		b.Add("nll_loss", float64(s.Read(p.nll(s))[0])*p.share*float64(p.n))
	}
	a.measure(s, b, p)
	return s.Scale(s.Sum(loss), p.share)
}

// kto is the loss of single responses; Truth is 1 for good ones.
func (a *DPO) kto(s *torch.Scope, b *Batch) torch.Tensor {
	n := int64(len(b.Part))
	signs, weights, reference := make([]float32, n), make([]float32, n), make([]float32, n)
	good := 0
	for _, x := range b.Whole {
		good += int(x.Truth)
	}
	for i, x := range b.Part {
		signs[i], weights[i] = -1, float32(a.UndesirableWeight)
		if x.Truth == 1 {
			signs[i], weights[i] = 1, float32(a.DesirableWeight)
		}
		reference[i] = float32(rl.Total(x.Reference))
	}
	sums := s.SumLast(s.Mul(b.Members(s), b.LogProbs))
	ratios := s.Sub(sums, s.Floats(reference, n))
	gain := s.Sigmoid(s.Scale(s.Mul(s.Shift(ratios, -a.kl), s.Floats(signs, n)), a.Beta))
	perAnswer, logProbs := s.Read(ratios), s.Read(sums)
	for i, x := range b.Part {
		name, of := "rejected", len(b.Whole)-good
		if x.Truth == 1 {
			name, of = "chosen", good
		}
		r := a.Beta * float64(perAnswer[i]) / float64(of)
		b.Add("rewards/"+name, r)
		b.Add("logps/"+name, float64(logProbs[i])/float64(of))
		if good > 0 && good < len(b.Whole) {
			b.Add("rewards/margins", float64(signs[i])*r)
		}
	}
	return s.Scale(s.Sum(s.Mul(s.Floats(weights, n), s.Shift(s.Neg(gain), 1))), 1/b.Samples)
}

// measure reports TRL's figures of pairs.
func (a *DPO) measure(s *torch.Scope, b *Batch, p pairs) {
	average := slices.ContainsFunc(a.Losses, func(name string) bool { return slices.Contains(averaged, name) })
	reward := func(side side) torch.Tensor {
		if average {
			return side.mean(s)
		}
		return side.ratio(s) // the sum if there is no reference
	}
	chosen, rejected := s.Read(reward(p.chosen)), s.Read(reward(p.rejected))
	sums := [2][]float32{s.Read(p.chosen.sum), s.Read(p.rejected.sum)}
	for i := range chosen {
		c, r := a.Beta*float64(chosen[i]), a.Beta*float64(rejected[i])
		b.Add("rewards/chosen", c*p.share)
		b.Add("rewards/rejected", r*p.share)
		b.Add("rewards/margins", (c-r)*p.share)
		right := 0.0
		if c > r {
			right = p.share
		}
		b.Add("rewards/accuracies", right)
		b.Add("logps/chosen", float64(sums[0][i])*p.share)
		b.Add("logps/rejected", float64(sums[1][i])*p.share)
	}
}

// OnlineDPO is DPO on the policy's own completions (Guo et al. 2024, section 2): the completion of a prompt with the highest
// reward is chosen, the one with the lowest rejected. Prompts whose rewards are all equal are skipped.
type OnlineDPO struct{ DPO }

// Check implements Algorithm.
func (a *OnlineDPO) Check(samples int) error {
	switch {
	case a.Unpaired():
		return envs.OptionErrorf("dpo_loss", "kto takes single responses, and the policy's completions are compared in pairs; choose another loss")
	case samples < 2:
		return envs.OptionErrorf("samples_per_prompt", "%d is too few: a pair needs at least 2", samples)
	}
	return a.DPO.Check(samples)
}

// Needs implements Algorithm.
func (a *OnlineDPO) Needs() Needs {
	n := a.DPO.Needs()
	n.Rewards, n.Choose = true, choosePairs
	return n
}

// choosePairs keeps the best and the worst sample of each group, in this order; of equal ones the first.
func choosePairs(step *rl.Step) {
	learnt := map[*rl.Sample]bool{}
	for _, x := range step.Samples {
		learnt[x] = true
	}
	step.Samples = nil
	compared, ties := 0.0, 0.0
	for _, group := range step.Groups {
		var best, worst *rl.Sample
		for _, x := range group {
			if !learnt[x] {
				continue
			}
			if best == nil || x.Penalised() > best.Penalised() {
				best = x
			}
			if worst == nil || x.Penalised() < worst.Penalised() {
				worst = x
			}
		}
		if best == nil {
			continue
		}
		compared++
		if best.Penalised() == worst.Penalised() {
			ties++
			continue
		}
		best.Fill(1)
		worst.Fill(-1)
		step.Samples = append(step.Samples, best, worst)
	}
	step.Figures.Mean("ties", ties, compared)
}

// Loss implements Algorithm. The trainer notes it.
func (a *OnlineDPO) Loss(s *torch.Scope, b *Batch) torch.Tensor { return a.loss(s, b) }

// pairs are the P pairs of a batch. Its samples are chosen and rejected in turn.
type pairs struct {
	chosen, rejected side
	n                int
	share            float64 // weight of each pair in the mean over the minibatch
	whole            []*rl.Sample
	tokens           torch.Tensor // [M] 1 for actions of a chosen response
	logProbs         torch.Tensor // [M]
}

// side is the chosen or the rejected responses.
type side struct {
	sum       torch.Tensor  // [P] Σ log π
	reference *torch.Tensor // [P] Σ log π_ref; nil if none is needed
	perToken  torch.Tensor  // [P] 1/tokens
}

func pairsOf(s *torch.Scope, b *Batch) pairs {
	p := pairs{n: len(b.Part) / 2, share: 2 / b.Samples, whole: b.Whole, logProbs: b.LogProbs}
	var isChosen []float32
	var perToken [2][]float32
	var rows [2][]int64
	refers := b.Part[0].Reference != nil
	var reference [2][]float32
	for i, x := range b.Part {
		at := i % 2
		rows[at], perToken[at] = append(rows[at], int64(i)), append(perToken[at], 1/float32(x.Len()))
		isChosen = append(isChosen, slices.Repeat([]float32{1 - float32(at)}, x.Len())...)
		if refers {
			reference[at] = append(reference[at], float32(rl.Total(x.Reference)))
		}
	}
	p.tokens = s.Floats(isChosen, int64(len(isChosen)))
	sums := s.SumLast(s.Mul(b.Members(s), b.LogProbs))
	n := int64(p.n)
	for at, into := range []*side{&p.chosen, &p.rejected} {
		into.sum, into.perToken = s.Rows(sums, s.Ints(rows[at], n)), s.Floats(perToken[at], n)
		if refers {
			r := s.Floats(reference[at], n)
			into.reference = &r
		}
	}
	return p
}

// ratio is h = L − L_ref, [P]; L without a reference.
func (x side) ratio(s *torch.Scope) torch.Tensor {
	if x.reference == nil {
		return x.sum
	}
	return s.Sub(x.sum, *x.reference)
}

// mean is L/tokens, [P].
func (x side) mean(s *torch.Scope) torch.Tensor { return s.Mul(x.sum, x.perToken) }

// ratios is h_c − h_r, [P].
func (p pairs) ratios(s *torch.Scope) torch.Tensor {
	return s.Sub(p.chosen.ratio(s), p.rejected.ratio(s))
}

// nll is −Σ L_c / Σ tokens_c over the whole minibatch, divided evenly among the pairs of the batch, [1].
func (p pairs) nll(s *torch.Scope) torch.Tensor {
	tokens := 0
	for i := 0; i < len(p.whole); i += 2 {
		tokens += p.whole[i].Len()
	}
	sum := s.Sum(s.Mul(p.tokens, p.logProbs))
	return s.Scale(s.Add(s.Floats([]float32{0}, 1), sum), -1/(float64(tokens)*p.share*float64(p.n)))
}

// meanRatio is the mean of h over samples, at least 0.
func meanRatio(samples []*rl.Sample) float64 {
	sum := 0.0
	for _, x := range samples {
		sum += rl.Total(x.Old) - rl.Total(x.Reference)
	}
	return max(0, sum/math.Max(1, float64(len(samples))))
}
