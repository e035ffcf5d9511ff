package torch_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// Logits 0, ln 2, ln 5 have probabilities 1/8, 2/8, 5/8; at temperature ½ (squared) 1/30, 4/30, 25/30.
func TestTokenLogProbs(t *testing.T) {
	torchtest.NoLeaks(t)
	ln := func(x float64) float32 { return float32(math.Log(x)) }
	entropy := func(ps ...float64) float32 {
		var h float64
		for _, p := range ps {
			h -= p * math.Log(p)
		}
		return float32(h)
	}
	weight := []float32{0, ln(2), ln(5)}
	for _, tc := range []struct {
		name          string
		weight        []float32
		bias          []float32
		options       torch.HeadOptions
		want, entropy []float32
	}{
		{"plain", weight, nil, torch.HeadOptions{}, []float32{ln(5.0 / 8), ln(1.0 / 8)}, []float32{entropy(1./8, 2./8, 5./8), entropy(1./8, 2./8, 5./8)}},
		{"all bias", []float32{0, 0, 0}, weight, torch.HeadOptions{}, []float32{ln(5.0 / 8), ln(1.0 / 8)}, []float32{entropy(1./8, 2./8, 5./8), entropy(1./8, 2./8, 5./8)}},
		{"temperature", weight, nil, torch.HeadOptions{Temperature: 0.5}, []float32{ln(25.0 / 30), ln(1.0 / 30)}, []float32{entropy(1./30, 4./30, 25./30), entropy(1./30, 4./30, 25./30)}},
		{"tight softcap", weight, nil, torch.HeadOptions{Softcap: 1e-6}, []float32{ln(1.0 / 3), ln(1.0 / 3)}, []float32{ln(3), ln(3)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			hidden := must.Open(torch.Parameter([]float32{1, 1}, 2, 1))(t)
			err := torch.Do(torch.Train, func(s *torch.Scope) error {
				var bias *torch.Tensor
				if tc.bias != nil {
					b := s.Floats(tc.bias, 3)
					bias = &b
				}
				logprobs, entropy, rank := s.TokenLogProbs(hidden.T(), s.Floats(tc.weight, 3, 1), bias, []int64{2, 0}, tc.options)
				expect.True(t, torchtest.MaxDiff(s.Read(logprobs), tc.want) <= 1e-5, "logprobs %v, want %v", s.Read(logprobs), tc.want)
				expect.True(t, torchtest.MaxDiff(s.Read(entropy), tc.entropy) <= 1e-5, "entropy %v, want %v", s.Read(entropy), tc.entropy)
				expect.Equal(t, []float32{0, 2}, s.Read(rank), "rank")
				s.Backward(s.Sum(logprobs))
				if tc.name == "plain" {
					// The target's weight minus its mean: ln 5 - (2 ln 2 + 5 ln 5)/8, and the same for 0.
					grad, _ := s.Grad(hidden)
					mean := (2*ln(2) + 5*ln(5)) / 8
					expect.True(t, torchtest.MaxDiff(s.Read(grad), []float32{ln(5) - mean, -mean}) <= 1e-5, "gradient %v", s.Read(grad))
				}
				return nil
			})
			must.Do(t, err)
		})
	}
}

func TestTokenLogProbsOfStoredWeights(t *testing.T) {
	torchtest.NoLeaks(t)
	exact, err := torch.Constant([]float32{1, -2, 0.5, 3, -0.25, 4}, 3, 2) // in every type, like the hidden state
	must.Do(t, err)
	defer exact.Close()
	judge := func(weight *torch.Var) (values []float32) {
		torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
			logprobs, entropy, _ := s.TokenLogProbs(s.Floats([]float32{0.25, -0.75}, 1, 2), weight.T(), nil, []int64{1}, torch.HeadOptions{})
			values = append(s.Read(logprobs), s.Read(entropy)...)
		})
		return values
	}
	want := judge(exact)
	for _, dtype := range []torch.DType{torch.BF16, torch.F16} {
		stored := must.Get(exact.To(dtype))(t)
		expect.Equal(t, want, judge(stored), fmt.Sprintf("type %d", dtype))
		stored.Close()
	}
}

func TestTokenLogProbsNamesABadTarget(t *testing.T) {
	torchtest.NoLeaks(t)
	err := torch.Do(torch.NoGrad, func(s *torch.Scope) error {
		s.TokenLogProbs(s.Floats([]float32{1, 1}, 2, 1), s.Floats([]float32{1, 1, 1}, 3, 1), nil, []int64{2, 3}, torch.HeadOptions{})
		return nil
	})
	var native *torch.Error
	expect.True(t, errors.As(err, &native) && strings.Contains(native.Text, "target 3 at position 1"), "error %v", err)
}
