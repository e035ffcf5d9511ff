package remote

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// trial is the size of the check of a server.
type trial struct {
	prompts, samples, tokens int
	tokenizer                bool
}

var (
	thorough = trial{prompts: 4, samples: 4, tokens: 16, tokenizer: true}
	brief    = trial{prompts: 1, samples: 2, tokens: 8}
)

// trialSeed is the seed of the check.
const trialSeed = 9

// try samples from a server with the version of the current weights and compares its log-probs with the policy's.
func (s *Servers) try(ctx context.Context, one *server, v *version, how trial) error {
	temperature := s.config.Temperature
	o := policy.GenerateOptions{Samples: how.samples, MaxNew: how.tokens, Sampling: torch.Sampling{Temperature: temperature, TopP: 1, RepetitionPenalty: 1}}
	var prompts, written [][]int32
	var said []float32
	for i := range how.prompts {
		prompt := trialPrompt(s.policy, i)
		completions, err := s.ask(ctx, one, v, prompt, o, trialSeed+int64(i))
		if err != nil {
			return err
		}
		for _, c := range completions {
			prompts, written, said = append(prompts, prompt), append(written, c.IDs), append(said, c.BehaviorLogProbs...)
		}
	}
	gap, err := s.gap(ctx, prompts, written, said, temperature)
	if err != nil {
		return err
	}
	if gap > s.config.Tolerance {
		raw, err := s.gap(ctx, prompts, written, said, 1)
		if err == nil && temperature != 1 && raw <= s.config.Tolerance {
			return fmt.Errorf("%w: it returns log-probs at temperature 1, not %v; start it with --logprobs-mode processed_logprobs", ErrMismatch, temperature)
		}
		return fmt.Errorf("%w: log-probs of %d tokens differ by %.3g nats on average, above rollout_tolerance %v; it has another model, does not apply the adapter, or computes less precisely",
			ErrMismatch, len(said), gap, s.config.Tolerance)
	}
	if how.tokenizer {
		return one.sameTokenizer(ctx, s.policy, 0)
	}
	return nil
}

// gap returns the mean absolute difference between a server's log-probs and the policy's.
func (s *Servers) gap(ctx context.Context, prompts, written [][]int32, said []float32, temperature float64) (float64, error) {
	scored, err := s.policy.Score(ctx, prompts, written, temperature)
	if err != nil {
		return 0, err
	}
	sum, n := 0.0, 0
	for _, one := range scored {
		for _, own := range one.LogProbs {
			sum += math.Abs(float64(own) - float64(said[n]))
			n++
		}
	}
	return sum / float64(max(1, n)), nil
}

// trialPrompt is a few arbitrary tokens after the start tokens.
func trialPrompt(p *policy.CausalLM, i int) []int32 {
	rng := rl.Stream(trialSeed, uint64(i))
	prompt := p.Tokenizer.Opening()
	for range 8 {
		prompt = append(prompt, int32(rng.IntN(p.VocabSize())))
	}
	return prompt
}

// sameTokenizer compares the server's tokens of the text of a trial prompt with the policy's.
func (s *server) sameTokenizer(ctx context.Context, p *policy.CausalLM, i int) error {
	text, err := p.Tokenizer.Decode(trialPrompt(p, i), true)
	if err != nil {
		return err
	}
	own, err := p.Tokenizer.EncodeRaw(text, false)
	if err != nil || len(own) == 0 {
		return nil // these tokens do not round-trip through text
	}
	var a answered
	q := order{Model: s.base, Prompt: text, N: 1, MaxTokens: 1, Temperature: 1, TopP: 1, RepetitionPenalty: 1, TokenIDs: true}
	if err := s.call(ctx, s.limit, http.MethodPost, "/v1/completions", q, &a); err != nil {
		return err
	}
	if len(a.Choices) != 1 || a.Choices[0].PromptIDs == nil {
		return errors.New("it returns no prompt tokens; use a server that supports return_token_ids")
	}
	if !slices.Equal(a.Choices[0].PromptIDs, own) {
		return fmt.Errorf("%w: it has another tokenizer: the tokens of %q differ (%d there, %d here)", ErrMismatch, text, len(a.Choices[0].PromptIDs), len(own))
	}
	return nil
}
