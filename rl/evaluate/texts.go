package evaluate

import (
	"context"
	"fmt"
	"math"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// TextScores is a language model evaluated on texts, with 95 % bootstrap intervals over texts.
type TextScores struct {
	N          int         `json:"n"`
	Tokens     int         `json:"tokens"`     // that are predicted
	Loss       rl.Estimate `json:"loss"`       // mean −log π of a token, in nats
	Perplexity rl.Estimate `json:"perplexity"` // exp(loss)
	Accuracy   rl.Estimate `json:"mean_token_accuracy"`

	Texts []TextScore `json:"-"` // in the order of the samples
}

// TextScore is a text as the model scores it.
type TextScore struct {
	Loss   float64 // Σ −log π, in nats
	Tokens int
	Right  int // tokens that are the most likely one
}

// ScoreTexts evaluates a language model on the actions of SFT samples.
func ScoreTexts(ctx context.Context, p *policy.CausalLM, samples []*rl.Sample) (TextScores, error) {
	v := TextScores{N: len(samples)}
	var losses, right, counts []float64
	for _, part := range rl.Parts(samples, false, preferenceTokens) {
		if err := ctx.Err(); err != nil {
			return v, err
		}
		if err := torch.Do(torch.NoGrad, func(s *torch.Scope) error {
			out := p.Forward(s, rl.NewBatch(part), policy.Pass{Temperature: 1})
			logProbs, ranks, at := s.Read(out.LogProbs), out.Rank(s), 0
			for _, x := range part {
				one := TextScore{Tokens: x.Len()}
				for range x.Actions {
					one.Loss -= float64(logProbs[at])
					if ranks[at] == 0 {
						one.Right++
					}
					at++
				}
				v.Texts, v.Tokens = append(v.Texts, one), v.Tokens+one.Tokens
				losses, right, counts = append(losses, one.Loss), append(right, float64(one.Right)), append(counts, float64(one.Tokens))
			}
			return nil
		}); err != nil {
			return v, fmt.Errorf("evaluating texts: %w", err)
		}
	}
	v.Loss, v.Accuracy = rl.RatioEstimate(losses, counts), rl.RatioEstimate(right, counts)
	v.Perplexity = rl.Estimate{Value: math.Exp(v.Loss.Value), Interval: rl.Interval{math.Exp(v.Loss.Interval[0]), math.Exp(v.Loss.Interval[1])}}
	return v, nil
}
