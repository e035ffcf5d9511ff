package doctor

import (
	"fmt"
	"math"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/transformers"
)

// mismatch is the absolute difference between the log-probs of sampler and training for the same tokens.
type mismatch struct{ mean, most float64 }

// describeMismatch measures the mismatch with fp32 and bf16 weights on the device in use.
func describeMismatch(s *shared.Sheet) {
	device, err := torch.DeviceInUse()
	if err != nil {
		s.Row("sampler", "unavailable: %v", err)
		return
	}
	s.Head("Log-probs of sampling against training, on %s", device)
	for _, weights := range []struct {
		name  string
		dtype torch.DType
	}{{"fp32 weights", torch.F32}, {"bf16 weights", torch.BF16}} {
		found, err := measureMismatch(weights.dtype)
		if err != nil {
			s.Row(weights.name, "unavailable: %v", err)
			continue
		}
		s.Row(weights.name, "difference: mean %.1e, max %.1e", found.mean, found.most)
	}
}

// measureMismatch samples from a small model with fixed random weights.
func measureMismatch(dtype torch.DType) (mismatch, error) {
	const prompts, length, vocabulary = 16, 32, 512
	m, err := transformers.RandomLlama(transformers.LlamaShape{
		Vocab: vocabulary, Hidden: 256, Layers: 4, Heads: 4, KVHeads: 2, Intermediate: 704, RopeTheta: 1e4,
	}, dtype, "", 1)
	if err != nil {
		return mismatch{}, err
	}
	defer m.Close()
	engine, err := torch.NewEngine(m.Model, torch.EngineConfig{Slots: prompts})
	if err != nil {
		return mismatch{}, err
	}
	defer engine.Close()
	sequences, sampled := map[int64][]int32{}, map[int64][]float32{}
	for i := range prompts {
		var prompt []int32
		for j := range length {
			prompt = append(prompt, int32((7*i+13*j)%vocabulary))
		}
		id, err := engine.Submit(torch.Request{Prompt: prompt, Samples: 1, MaxNew: length, Sampling: torch.Sampling{Temperature: 1}, Seed: 1, Stream: uint64(i)})
		if err != nil {
			return mismatch{}, err
		}
		sequences[id] = prompt
	}
	for engine.Unfinished() > 0 {
		events, err := engine.Step(torch.StepTokens())
		if err != nil {
			return mismatch{}, err
		}
		for _, e := range events {
			if e.Token < 0 {
				return mismatch{}, fmt.Errorf("a sample ended: %s", e.Reason)
			}
			sequences[e.Request], sampled[e.Request] = append(sequences[e.Request], e.Token), append(sampled[e.Request], e.LogProb)
		}
	}
	var found mismatch
	for id, ids := range sequences {
		// The hidden state of a token predicts the next one.
		var targets []int64
		for _, t := range ids[length:] {
			targets = append(targets, int64(t))
		}
		rows := make([]int64, length)
		for i := range rows {
			rows[i] = int64(length - 1 + i)
		}
		err := torch.Do(torch.NoGrad, func(s *torch.Scope) error {
			hidden, _ := s.Hidden(m.Model, torch.Pack([][]int32{ids}), torch.Pass{Rows: rows})
			logProbs, _, _ := s.TokenLogProbs(hidden, m.Head.T(), nil, targets, torch.HeadOptions{})
			for i, trained := range s.Read(logProbs) {
				d := math.Abs(float64(trained) - float64(sampled[id][i]))
				found.mean, found.most = found.mean+d/(prompts*length), max(found.most, d)
			}
			return nil
		})
		if err != nil {
			return mismatch{}, err
		}
	}
	return found, nil
}
