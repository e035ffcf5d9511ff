package bench

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/torch"
)

// logprobBench is the case logprob.
type logprobBench struct {
	vocab, hidden, tokens int
	dtype                 string
	grad                  bool
}

type logprobResult struct {
	Case       string  `json:"case"`
	Impl       string  `json:"impl"`
	Vocab      int     `json:"vocab"`
	Hidden     int     `json:"hidden"`
	Tokens     int     `json:"tokens"`
	Grad       bool    `json:"grad"`
	TokensPerS float64 `json:"tokens_per_s"`
	benchFigures
}

func logprobBenchCase() benchCase {
	var b logprobBench
	return benchCase{
		name:  "logprob",
		usage: "log-probs of tokens from hidden states and the output weight",
		flags: []cli.Flag{
			&cli.IntFlag{Name: "vocab", Value: 49152, Usage: "vocabulary size", Destination: &b.vocab},
			&cli.IntFlag{Name: "hidden", Value: 576, Usage: "hidden size", Destination: &b.hidden},
			&cli.IntFlag{Name: "tokens", Value: 2048, Usage: "number of tokens", Destination: &b.tokens},
			&cli.StringFlag{Name: "dtype", Value: "fp32", Usage: "dtype of the weight: fp32 or bf16", Destination: &b.dtype},
			&cli.BoolFlag{Name: "grad", Usage: "also compute the gradient of the hidden states", Destination: &b.grad},
		},
		run: func(ctx context.Context, common benchFlags) (benchTable, error) { return b.run(ctx, common.reps) },
	}
}

func (b logprobBench) run(ctx context.Context, reps int) (result logprobResult, err error) {
	if err := checkBounds(bound{"vocab", b.vocab, 1, 1 << 24}, bound{"hidden", b.hidden, 1, 1 << 16}, bound{"tokens", b.tokens, 1, 1 << 24}); err != nil {
		return result, err
	}
	dtype, err := weightDType(b.dtype)
	if err != nil {
		return result, err
	}
	rng := rand.New(rand.NewPCG(5, 0))
	hidden, err := torch.Parameter(normals(rng, b.tokens*b.hidden, 1), int64(b.tokens), int64(b.hidden))
	if err != nil {
		return result, err
	}
	defer hidden.Close()
	draft, err := torch.Constant(normals(rng, b.vocab*b.hidden, 0.02), int64(b.vocab), int64(b.hidden))
	if err != nil {
		return result, err
	}
	weight, err := draft.To(dtype)
	draft.Close()
	if err != nil {
		return result, err
	}
	defer weight.Close()
	targets := make([]int64, b.tokens)
	for i := range targets {
		targets[i] = rng.Int64N(int64(b.vocab))
	}

	mode := torch.NoGrad
	if b.grad {
		mode = torch.Train
	}
	figures, err := measureStep(ctx, func() error {
		err := torch.Do(mode, func(s *torch.Scope) error {
			logprobs, _, _ := s.TokenLogProbs(hidden.T(), weight.T(), nil, targets, torch.HeadOptions{})
			if b.grad {
				s.Backward(s.Sum(logprobs))
			}
			return nil
		})
		if err != nil {
			return err
		}
		return torch.ZeroGrad([]*torch.Var{hidden})
	}, reps, b.dtype)
	if err != nil {
		return result, err
	}
	return logprobResult{
		Case: "logprob", Impl: "fused", Vocab: b.vocab, Hidden: b.hidden, Tokens: b.tokens, Grad: b.grad,
		TokensPerS: float64(b.tokens) / figures.Best, benchFigures: figures,
	}, nil
}

func normals(rng *rand.Rand, n int, spread float32) []float32 {
	values := make([]float32, n)
	for i := range values {
		values[i] = spread * float32(rng.NormFloat64())
	}
	return values
}

func (r logprobResult) table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "case\t%s, %s, %d threads, %s\n", r.Case, r.DType, r.Threads, r.CPU)
	fmt.Fprintf(t, "shape\t%d tokens\tvocabulary %d\thidden size %d\n", r.Tokens, r.Vocab, r.Hidden)
	r.times(t, fmt.Sprintf("%.0f tokens/s", r.TokensPerS))
	return t.Flush()
}
