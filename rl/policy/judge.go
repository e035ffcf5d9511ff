package policy

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
)

// Judge is a language model whose verdict is the probabilities of its answers.
type Judge struct {
	policy *CausalLM
}

// NewJudge loads the model in dir, which needs a chat template. dtype is that of Config, and now the clock of the template;
// zero means now.
func NewJudge(dir, dtype string, now time.Time) (*Judge, error) {
	p, err := NewCausalLM(Config{Dir: dir, DType: dtype, Template: TemplateSettings{Now: now}})
	if err != nil {
		return nil, fmt.Errorf("judge: %w", err)
	}
	if p.Templates == nil {
		p.Close()
		return nil, fmt.Errorf("judge: %s has no chat template, which questions need; choose a chat model", dir)
	}
	return &Judge{p}, nil
}

// Close frees the judge.
func (j *Judge) Close() { j.policy.Close() }

// Choose implements envs.Scorer: the probability of each choice after the prompt and a space, scaled so that they sum to
// 1. The probability of several tokens is their product. A choice that begins another one, as "1" begins "10" where
// digits are tokens, does not count the other's probability.
func (j *Judge) Choose(ctx context.Context, prompt envs.Observation, choices []string) ([]float64, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ids, err := j.policy.EncodeObservation(prompt)
	if err != nil {
		return nil, err
	}
	tokens := make([][]int32, len(choices))
	// Each distinct beginning of the choices is a sample, whose last token predicts those that follow it.
	var samples []*rl.Sample
	begins := map[string]int{} // the sample of a beginning
	type place struct{ sample, action int }
	places := make([][]place, len(choices))
	for i, choice := range choices {
		if tokens[i], err = j.policy.Tokenizer.EncodeRaw(" "+choice, false); err != nil {
			return nil, err
		}
		if n := len(ids) + len(tokens[i]); n > j.policy.MaxLength() {
			return nil, fmt.Errorf("a question has %d tokens, the judge reads %d; shorten the question", n, j.policy.MaxLength())
		}
		for at, token := range tokens[i] {
			key := fmt.Sprint(tokens[i][:at])
			n, known := begins[key]
			if !known {
				n = len(samples)
				begins[key] = n
				samples = append(samples, &rl.Sample{Tokens: slices.Concat(ids, tokens[i][:at])})
			}
			x := samples[n]
			places[i] = append(places[i], place{n, len(x.Actions)})
			x.Rows, x.Actions = append(x.Rows, len(x.Tokens)-1), append(x.Actions, token)
		}
	}
	logProbs := make([][]float32, 0, len(samples))
	if err := j.policy.predict(ctx, samples, 1, func(s *torch.Scope, part []*rl.Sample, out Output) {
		all := s.Read(out.LogProbs)
		for _, x := range part {
			logProbs = append(logProbs, all[:x.Len()])
			all = all[x.Len():]
		}
	}); err != nil {
		return nil, fmt.Errorf("judge: %w", err)
	}
	sums := make([]float64, len(choices))
	for i := range choices {
		for _, at := range places[i] {
			sums[i] += float64(logProbs[at.sample][at.action])
		}
	}
	return sharesOf(tokens, sums), nil
}

// sharesOf turns the log-probabilities of sequences of tokens into shares.
func sharesOf(written [][]int32, logProbs []float64) []float64 {
	highest := slices.Max(logProbs)
	mass := make([]float64, len(written))
	for i, l := range logProbs {
		mass[i] = math.Exp(l - highest)
	}
	shares := slices.Clone(mass)
	for i := range written {
		longest := -1 // the longest choice that this one goes on from
		for k := range written {
			if len(written[k]) < len(written[i]) && startsWith(written[i], written[k]) && (longest < 0 || len(written[k]) > len(written[longest])) {
				longest = k
			}
		}
		if longest >= 0 {
			shares[longest] = max(0, shares[longest]-mass[i])
		}
	}
	sum := 0.0
	for _, share := range shares {
		sum += share
	}
	for i := range shares {
		shares[i] /= sum
	}
	return shares
}

func startsWith(ids, prefix []int32) bool {
	return len(ids) >= len(prefix) && slices.Equal(ids[:len(prefix)], prefix)
}
