package decisions

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch/transformers/decision"
)

// Scores measure answers, with 95 % intervals over questions.
type Scores struct {
	N        int         `json:"n"`
	Accuracy rl.Estimate `json:"accuracy"` // the most likely option is that of the answer
	// Brier is Σ_k (π_k − t_k)², in [0,2].
	Brier rl.Estimate `json:"brier"`
	ECE   rl.Estimate `json:"ece"`  // as rl.Evaluation has it
	Loss  float64     `json:"loss"` // cross-entropy in nats
	// Ranked is the ranked probability score of score questions, in [0,1]; nil without them.
	Ranked *rl.Estimate `json:"ranked,omitempty"`
}

func (s Scores) String() string {
	text := fmt.Sprintf("n=%d, accuracy=%s, brier=%s, ece=%s, loss=%.4f", s.N, estimate(s.Accuracy), estimate(s.Brier), estimate(s.ECE), s.Loss)
	if s.Ranked != nil {
		text += ", ranked=" + estimate(*s.Ranked)
	}
	return text
}

func estimate(e rl.Estimate) string {
	return fmt.Sprintf("%.4f [%.4f, %.4f]", e.Value, e.Interval[0], e.Interval[1])
}

// Evaluation measures answers to labelled questions.
type Evaluation struct {
	Scores
	Types     map[string]Scores `json:"types"`
	Questions map[string]Scores `json:"questions,omitempty"` // by name, if there are several and at most mostNames
	Selective []rl.Covered      `json:"risk_coverage"`
}

// mostNames is how many names of questions have scores of their own.
const mostNames = 64

// Evaluate measures answers; cases without a target are left out.
func Evaluate(cases []envs.Decision, probs [][]float64) Evaluation {
	all, byType, byName := []int{}, map[string][]int{}, map[string][]int{}
	for i, d := range cases {
		if d.Target == nil {
			continue
		}
		all = append(all, i)
		byType[d.Question.Type] = append(byType[d.Question.Type], i)
		byName[d.Question.Name] = append(byName[d.Question.Name], i)
	}
	e := Evaluation{Scores: score(cases, probs, all), Types: map[string]Scores{}}
	for kind, of := range byType {
		e.Types[kind] = score(cases, probs, of)
	}
	if n := len(byName); n > 1 && n <= mostNames {
		e.Questions = map[string]Scores{}
		for name, of := range byName {
			e.Questions[name] = score(cases, probs, of)
		}
	}
	e.Selective = rl.Selective(rl.SurenessOf(Padded(cases, probs, all)))
	return e
}

// Padded are the most likely answers of some cases and their probabilities, with as many options for all.
func Padded(cases []envs.Decision, probs [][]float64, of []int) (truth []int, padded [][]float32) {
	width := 0
	for _, i := range of {
		width = max(width, len(probs[i]))
	}
	for _, i := range of {
		row := make([]float32, width)
		for k, p := range probs[i] {
			row[k] = float32(p)
		}
		truth, padded = append(truth, cases[i].Truth()), append(padded, row)
	}
	return truth, padded
}

// Labelled are the indices of the cases with a target.
func Labelled(cases []envs.Decision) (of []int) {
	for i, d := range cases {
		if d.Target != nil {
			of = append(of, i)
		}
	}
	return of
}

func score(cases []envs.Decision, probs [][]float64, of []int) Scores {
	s := Scores{N: len(of)}
	if len(of) == 0 {
		return s
	}
	truth, padded := Padded(cases, probs, of)
	hits, briers, ranks := []float64{}, []float64{}, []float64{}
	for n, i := range of {
		target, p := cases[i].Target, probs[i]
		hit := 0.0
		if slices.Index(padded[n], slices.Max(padded[n])) == truth[n] {
			hit = 1
		}
		hits, briers = append(hits, hit), append(briers, Brier(target, p))
		s.Loss -= likelihood(target, p) / float64(len(of))
		if cases[i].Question.Type == decision.Score {
			ranks = append(ranks, Ranked(target, p))
		}
	}
	s.Accuracy, s.Brier = rl.RateEstimate(hits), rl.MeanEstimate(briers)
	if len(ranks) > 0 {
		e := rl.MeanEstimate(ranks)
		s.Ranked = &e
	}
	labels := make([]string, len(padded[0]))
	whole := rl.Evaluate(labels, truth, padded)
	s.ECE = rl.Estimate{Value: whole.ECE, Interval: whole.Intervals.ECE}
	return s
}

// Brier is Σ_k (p_k − t_k)².
func Brier(target, probs []float64) float64 {
	score, _ := brier(target, probs)
	return score
}

// Ranked is the ranked probability score, Σ_j (Σ_{k≤j} p_k − t_k)²/(C − 1).
func Ranked(target, probs []float64) float64 {
	score, _ := ranked(target, probs)
	return score
}

// likelihood is Σ_k t_k log p_k.
func likelihood(target, probs []float64) float64 {
	sum := 0.0
	for k, t := range target {
		if t > 0 {
			sum += t * math.Log(max(probs[k], math.SmallestNonzeroFloat64))
		}
	}
	return sum
}

// Calibrate fits the temperature of each type of question to the labelled cases by cross-entropy, sets it, and says what it
// changes, a line each.
func Calibrate(p *policy.Decider, cases []envs.Decision, logProbs [][]float32) (lines []string) {
	before := map[string]Scores{}
	byType := map[string][]int{}
	for i, d := range cases {
		if len(d.Target) > 1 {
			byType[d.Question.Type] = append(byType[d.Question.Type], i)
		}
	}
	p.Asker.Temperature = map[string]float64{}
	raw := p.Probs(cases, logProbs)
	for _, kind := range slices.Sorted(maps.Keys(byType)) {
		before[kind] = score(cases, raw, byType[kind])
		p.Asker.Temperature[kind] = fit(cases, logProbs, byType[kind])
	}
	probs := p.Probs(cases, logProbs)
	for _, kind := range slices.Sorted(maps.Keys(byType)) {
		was, is := before[kind], score(cases, probs, byType[kind])
		lines = append(lines, fmt.Sprintf("Temperature of %s questions: %.3f (%d validation rows: loss %.4f → %.4f, ECE %.4f → %.4f)",
			kind, p.Asker.Temperature[kind], was.N, was.Loss, is.Loss, was.ECE.Value, is.ECE.Value))
	}
	return lines
}

// hottest bounds temperatures: 1/hottest to hottest.
const hottest = 20

// fit is the temperature with the least cross-entropy, by golden-section search over its logarithm.
func fit(cases []envs.Decision, logProbs [][]float32, of []int) float64 {
	loss := func(log float64) float64 {
		sum := 0.0
		for _, i := range of {
			sum -= likelihood(cases[i].Target, policy.Softmax(logProbs[i], math.Exp(log)))
		}
		return sum
	}
	low, high := -math.Log(hottest), math.Log(hottest)
	ratio := (math.Sqrt(5) - 1) / 2
	a, b := high-ratio*(high-low), low+ratio*(high-low)
	atA, atB := loss(a), loss(b)
	for high-low > 1e-4 {
		if atA < atB {
			high, b, atB = b, a, atA
			a = high - ratio*(high-low)
			atA = loss(a)
		} else {
			low, a, atA = a, b, atB
			b = low + ratio*(high-low)
			atB = loss(b)
		}
	}
	// Rows that are all right, or all wrong, have no best temperature; the model's own is then as good as any.
	middle := (low + high) / 2
	if at := loss(middle); at < loss(0) && at < min(loss(-math.Log(hottest)), loss(math.Log(hottest)))-1e-9*float64(len(of)) {
		return math.Exp(middle)
	}
	return 1
}

// Table are the scores by type and question as rows of text.
func (e Evaluation) Table() (headers []string, rows [][]string) {
	headers = []string{"", "n", "accuracy % [95 %]", "Brier [95 %]", "ECE [95 %]", "ranked [95 %]"}
	add := func(name string, s Scores) {
		ranked := ""
		if s.Ranked != nil {
			ranked = estimate(*s.Ranked)
		}
		rows = append(rows, []string{name, fmt.Sprint(s.N), fmt.Sprintf("%.1f [%.1f, %.1f]", 100*s.Accuracy.Value, 100*s.Accuracy.Interval[0], 100*s.Accuracy.Interval[1]), estimate(s.Brier), estimate(s.ECE), ranked})
	}
	add("all", e.Scores)
	for _, kind := range slices.Sorted(maps.Keys(e.Types)) {
		add(kind, e.Types[kind])
	}
	for _, name := range slices.Sorted(maps.Keys(e.Questions)) {
		add("question "+strings.ReplaceAll(name, "\n", " "), e.Questions[name])
	}
	return headers, rows
}
