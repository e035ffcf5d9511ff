package bench

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/rltrain/rltrain/torch"
)

// logprobBench is the case logprob.
type logprobBench struct {
	Vocab  int    `json:"vocab" option:"vocab" default:"49152" range:"[1,16777216]" help:"vocabulary size"`
	Hidden int    `json:"hidden" option:"hidden" default:"576" range:"[1,65536]" help:"hidden size"`
	Tokens int    `json:"tokens" option:"tokens" default:"2048" range:"[1,16777216]" help:"number of tokens"`
	DType  string `json:"-" option:"dtype" default:"fp32" allowed:"fp32,bf16" help:"dtype of the weight: fp32 or bf16"`
	Grad   bool   `json:"grad" option:"grad" help:"also compute the gradient of the hidden states"`
}

func (b *logprobBench) run(ctx context.Context, reps int) (*result, error) {
	rng := rand.New(rand.NewPCG(5, 0))
	hidden, err := torch.Parameter(normals(rng, b.Tokens*b.Hidden, 1), int64(b.Tokens), int64(b.Hidden))
	if err != nil {
		return nil, err
	}
	defer hidden.Close()
	draft, err := torch.Constant(normals(rng, b.Vocab*b.Hidden, 0.02), int64(b.Vocab), int64(b.Hidden))
	if err != nil {
		return nil, err
	}
	weight, err := draft.To(dtypes[b.DType])
	draft.Close()
	if err != nil {
		return nil, err
	}
	defer weight.Close()
	targets := make([]int64, b.Tokens)
	for i := range targets {
		targets[i] = rng.Int64N(int64(b.Vocab))
	}

	mode := torch.NoGrad
	if b.Grad {
		mode = torch.Train
	}
	f, err := measureStep(ctx, func() error {
		err := torch.Do(mode, func(s *torch.Scope) error {
			logprobs, _, _ := s.TokenLogProbs(hidden.T(), weight.T(), nil, targets, torch.HeadOptions{})
			if b.Grad {
				s.Backward(s.Sum(logprobs))
			}
			return nil
		})
		if err != nil {
			return err
		}
		return torch.ZeroGrad([]*torch.Var{hidden})
	}, reps, b.DType)
	if err != nil {
		return nil, err
	}
	rate := float64(b.Tokens) / f.Best
	return &result{
		figures: f, more: map[string]any{"impl": "fused", "tokens_per_s": rate}, about: "fused",
		before: []string{fmt.Sprintf("shape\t%d tokens\tvocabulary %d\thidden size %d", b.Tokens, b.Vocab, b.Hidden)},
		speed:  fmt.Sprintf("%.0f tokens/s", rate),
	}, nil
}

func normals(rng *rand.Rand, n int, spread float32) []float32 {
	values := make([]float32, n)
	for i := range values {
		values[i] = spread * float32(rng.NormFloat64())
	}
	return values
}
