package decisions

import (
	"fmt"
	"math"
	"slices"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/reward"
	"github.com/rltrain/rltrain/rl"
)

// Abstain is the answer of a cost matrix that gives none of the options.
const Abstain = "abstain"

// CostScores are the costs of answers, with 95 % intervals over questions, by how an answer is chosen.
type CostScores struct {
	Likely   rl.Estimate `json:"most_likely"` // the most likely option
	Cheapest rl.Estimate `json:"cheapest"`    // the answer with the least expected cost, abstaining included
	// Saved is Cheapest against Likely, paired over questions.
	Saved rl.Difference `json:"saved"`
	// Rejecting is the most likely option, or abstaining if its probability is below Threshold.
	Rejecting rl.Estimate `json:"rejecting"`
	Threshold float64     `json:"threshold"`
	ChosenOn  string      `json:"chosen_on"` // split of the rows that chose the threshold
	Abstained [2]float64  `json:"abstained"` // fraction of questions, of Cheapest and Rejecting
}

func (s CostScores) String() string {
	return fmt.Sprintf(`Cost of the most likely answer:        %s
Cost of the cheapest expected answer:  %s, difference %+.4f [%+.4f, %+.4f], abstains %.1f %%
Cost with rejection below %.3f (chosen on %s): %s, abstains %.1f %%`, estimate(s.Likely), estimate(s.Cheapest),
		s.Saved.Difference, s.Saved.Interval[0], s.Saved.Interval[1], 100*s.Abstained[0], s.Threshold, s.ChosenOn, estimate(s.Rejecting), 100*s.Abstained[1])
}

// answered is a question, its probabilities, and what the most likely option and abstaining cost.
type answered struct {
	top             float64
	likely, nothing float64
}

// Cost measures the costs of answers. held are the rows that choose the threshold.
func Cost(m reward.CostMatrix, cases []envs.Decision, probs [][]float64, held []envs.Decision, heldProbs [][]float64, chosenOn string) CostScores {
	s := CostScores{Threshold: threshold(costs(m, held, heldProbs)), ChosenOn: chosenOn}
	var likely, cheapest, rejecting []float64
	of := Labelled(cases)
	rows := costs(m, cases, probs)
	for n, i := range of {
		d := &cases[i]
		answer, abstains := cheap(m, d, probs[i])
		cheapest = append(cheapest, expected(m, d, answer))
		s.Abstained[0] += abstains / float64(len(of))
		likely = append(likely, rows[n].likely)
		if rows[n].top < s.Threshold {
			s.Abstained[1] += 1 / float64(len(of))
			rejecting = append(rejecting, rows[n].nothing)
		} else {
			rejecting = append(rejecting, rows[n].likely)
		}
	}
	s.Likely, s.Cheapest, s.Rejecting = rl.MeanEstimate(likely), rl.MeanEstimate(cheapest), rl.MeanEstimate(rejecting)
	s.Saved = rl.CompareMeans(likely, cheapest)
	return s
}

// cheap is the answer with the least cost expected by the model, the first of equal ones; abstains is 1 if it is none.
func cheap(m reward.CostMatrix, d *envs.Decision, probs []float64) (answer string, abstains float64) {
	least := math.Inf(1)
	for _, option := range answers(m, d.Question.Options) {
		cost := 0.0
		for t, p := range probs {
			cost += p * m.Of(d.Question.Options[t], option)
		}
		if cost < least-1e-12 {
			least, answer = cost, option
		}
	}
	if answer == Abstain {
		abstains = 1
	}
	return answer, abstains
}

// answers are the options, and abstaining where the matrix knows its cost.
func answers(m reward.CostMatrix, options []string) []string {
	if slices.Contains(m.Names(), Abstain) && !slices.Contains(options, Abstain) {
		return append(slices.Clone(options), Abstain)
	}
	return options
}

// expected is the cost of an answer over the target.
func expected(m reward.CostMatrix, d *envs.Decision, answer string) float64 {
	sum := 0.0
	for t, p := range d.Target {
		sum += p * m.Of(d.Question.Options[t], answer)
	}
	return sum
}

func costs(m reward.CostMatrix, cases []envs.Decision, probs [][]float64) (rows []answered) {
	for _, i := range Labelled(cases) {
		d := &cases[i]
		best := slices.Index(probs[i], slices.Max(probs[i]))
		rows = append(rows, answered{probs[i][best], expected(m, d, d.Question.Options[best]), expected(m, d, Abstain)})
	}
	return rows
}

// threshold is the lowest one with the least cost, midway between the probabilities of two rows; 0 rejects nothing.
func threshold(rows []answered) float64 {
	slices.SortStableFunc(rows, func(a, b answered) int {
		switch {
		case a.top < b.top:
			return -1
		case a.top > b.top:
			return 1
		}
		return 0
	})
	best, least, sum := 0.0, 0.0, 0.0
	for i, r := range rows {
		sum += r.nothing - r.likely
		next := 1.0
		if i+1 < len(rows) {
			next = rows[i+1].top
		}
		if next > r.top && sum < least-1e-12 {
			best, least = (r.top+next)/2, sum
		}
	}
	return best
}
