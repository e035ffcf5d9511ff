package policy

import (
	"context"
	"fmt"
	"math"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
)

// Judge is a language model whose opinion is read off the probabilities of its answers.
type Judge struct {
	policy *CausalLM
}

// NewJudge loads the model in dir, which needs a chat template. dtype is TokenConfig's.
func NewJudge(dir, dtype string) (*Judge, error) {
	p, err := NewToken(TokenConfig{Dir: dir, DType: dtype})
	if err != nil {
		return nil, fmt.Errorf("judge: %w", err)
	}
	if p.Templates == nil {
		p.Close()
		return nil, fmt.Errorf("judge: %s has no chat template, and questions are messages; choose a model that is made for conversations", dir)
	}
	return &Judge{p}, nil
}

// Close frees the judge.
func (j *Judge) Close() { j.policy.Close() }

// Choose implements envs.Scorer: the probability of each choice behind the prompt and a space, scaled to sum to
// 1. A choice of several tokens has the product of their probabilities; one that another goes on from, as "10"
// goes on from "1" where digits are tokens, is counted without that other.
func (j *Judge) Choose(ctx context.Context, prompt envs.Observation, choices []string) ([]float64, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ids, err := j.policy.Observe(prompt)
	if err != nil {
		return nil, err
	}
	// Each different beginning of the choices is a sequence, the last position of which predicts what follows.
	written := make([][]int32, len(choices))
	var contexts [][]int32
	index := map[string]int{}
	var rows, targets []int64
	begin := 0
	for i, choice := range choices {
		if written[i], err = j.policy.Tokenizer.EncodeRaw(" "+choice, false); err != nil {
			return nil, err
		}
		if n := len(ids) + len(written[i]); n > j.policy.MaxLength() {
			return nil, fmt.Errorf("a question of %d tokens is longer than the judge's %d positions", n, j.policy.MaxLength())
		}
		for at, token := range written[i] {
			key := fmt.Sprint(written[i][:at])
			if _, known := index[key]; !known {
				context := append(ids[:len(ids):len(ids)], written[i][:at]...)
				begin += len(context)
				index[key] = begin - 1
				contexts = append(contexts, context)
			}
			rows, targets = append(rows, int64(index[key])), append(targets, int64(token))
		}
	}
	var logProbs []float32
	if err := torch.Do(torch.NoGrad, func(s *torch.Scope) error {
		b := &rl.Batch{Sequences: contexts, Rows: rows, Actions: targets}
		logProbs = s.Read(j.policy.Forward(s, b, Pass{Temperature: 1}).LogProbs)
		return nil
	}); err != nil {
		return nil, fmt.Errorf("judge: %w", err)
	}
	sums := make([]float64, len(choices))
	for i := range choices {
		for range written[i] {
			sums[i] += float64(logProbs[0])
			logProbs = logProbs[1:]
		}
	}
	return sharesOf(written, sums), nil
}

// sharesOf turns the log-probabilities of sequences of tokens into shares.
func sharesOf(written [][]int32, logProbs []float64) []float64 {
	highest := math.Inf(-1)
	for _, l := range logProbs {
		highest = max(highest, l)
	}
	mass := make([]float64, len(written))
	for i, l := range logProbs {
		mass[i] = math.Exp(l - highest)
	}
	shares := append([]float64(nil), mass...)
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
	for i, id := range prefix {
		if ids[i] != id {
			return false
		}
	}
	return true
}
