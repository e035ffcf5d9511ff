package decision

import (
	"math"

	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

// Answer is the answer to a question, an object for JSON, from the probabilities of its options. With n options of which b
// is the most likely, the confidence of a choice is max(0, (p_b − 1/n)/(1 − 1/n)); that of a score is 1 minus the mean
// distance to b over that of equal probabilities to the middle, at least 0. Both are 1 for one option.
func (q *Question) Answer(probabilities []float64) *jinja.Dict {
	n, best := float64(len(probabilities)), 0
	byOption := jinja.NewDict()
	for i, p := range probabilities {
		byOption.Set(q.Options[i], p)
		if p > probabilities[best] {
			best = i
		}
	}
	answer := jinja.NewDict()
	answer.Set("type", q.Type)
	switch q.Type {
	case Noul:
		yes, _ := byOption.Get("true")
		answer.Set("noul", yes)
		return answer
	case Choice:
		answer.Set("choice", q.Options[best])
		answer.Set("confidence", confidence(n, (probabilities[best]-1/n)/(1-1/n)))
	case Score:
		score, distance, uniform := 0.0, 0.0, 0.0
		legend := jinja.NewDict()
		for i, p := range probabilities {
			score += float64(i) * p
			distance += p * math.Abs(float64(i-best))
			uniform += math.Abs(float64(i)-(n-1)/2) / n
			legend.Set(q.Options[i], q.Descriptions[i])
		}
		answer.Set("score", score)
		answer.Set("legend", legend)
		answer.Set("confidence", confidence(n, 1-distance/uniform))
	}
	answer.Set("probabilities", byOption)
	return answer
}

func confidence(options, value float64) float64 {
	if options == 1 {
		return 1
	}
	return max(0, value)
}
