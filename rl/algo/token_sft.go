package algo

import (
	"context"
	"errors"
	"fmt"
	"math"

	"rltrain/rl"
	"rltrain/rl/report"
	"rltrain/torch"
)

// TokenSFTConfig is what supervised training of a token policy needs to know.
type TokenSFTConfig struct {
	Epochs       int
	MaxUpdates   int     // 0 = as many as Epochs take; else this many, whatever Epochs says
	BatchSize    int     // sequences an update; with Packing, bins
	Packing      int     // tokens a bin holds; 0 = no packing
	LearningRate float64 // peak
	WeightDecay  float64 // of matrices; norms and biases have none
	Schedule     string  // "cosine", "linear" or "constant"
	Warmup       float64 // share of the updates, or from 1 on a number of them
	MaxGradNorm  float64 // 0 = no clipping
	MicroTokens  int     // tokens a forward pass may hold; 0 = the whole batch
	Checkpoint   bool    // gradient checkpointing
	Seed         uint64
	// Check, where it is not nil, is asked before the first and after every CheckEvery updates whether the policy is good enough,
	// which ends training.
	Check      func(ctx context.Context, updates int) (done bool, err error)
	CheckEvery int
}

// TokenSFTResult is how supervised training ended. The policy holds the weights of the best epoch.
type TokenSFTResult struct {
	Updates   int
	BestEpoch int // from 1
	Best      TokenValidation
}

// TokenValidation is a token policy measured on sequences that it does not train on, over their labels.
type TokenValidation struct {
	Loss     float64 `json:"loss"` // mean −log π in nats
	Accuracy float64 `json:"accuracy"`
	Entropy  float64 `json:"entropy"` // mean, in nats
	Labels   int     `json:"labels"`
}

// Perplexity is e to the loss.
func (v TokenValidation) Perplexity() float64 { return math.Exp(v.Loss) }

// tokenSFTState is all that changes from update to update, the weights and the optimiser's moments aside.
type tokenSFTState struct {
	Step      int             `json:"step"`
	BestEpoch int             `json:"best_epoch"`
	Best      TokenValidation `json:"best"`
	Tokens    int64           `json:"tokens"`
	Done      bool            `json:"done"` // as Check found
	Window    tokenWindow     `json:"window"`
}

// tokenWindow sums over the updates since the last row.
type tokenWindow struct {
	Updates int     `json:"updates"`
	Loss    float64 `json:"loss"`
	Entropy float64 `json:"entropy"`
	Correct int     `json:"correct"`
	Labels  int     `json:"labels"`
	Norm    float64 `json:"norm"`
}

// tokenSFT is supervised training under way.
type tokenSFT struct {
	policy    *TokenPolicy
	train     []Sequence
	bins      [][]int // indices of the sequences that count as one
	config    TokenSFTConfig
	schedule  rl.Schedule
	optimizer *torch.AdamW
	state     tokenSFTState
	best      snapshot
}

// TokenSFT trains the policy by cross-entropy over the labels of a batch,
//
//	L = −(1/n) Σ log π(x_t|x_<t),  n the labels of the whole batch,
//
// with AdamW, and gives it the weights of its best epoch by validation loss; without validation sequences,
// those of the last. A batch's division into forward passes changes nothing: each part's loss is a sum
// divided by the labels of the batch. Every random choice is a function of (seed, update, sequence), so a
// run resumed from a checkpoint ends with the same bytes as one that was never stopped.
func TokenSFT(ctx context.Context, p *TokenPolicy, train, validation []Sequence, c TokenSFTConfig, h Hooks) (TokenSFTResult, error) {
	bins := packBins(train, c.Packing)
	perEpoch := (len(bins) + c.BatchSize - 1) / c.BatchSize
	total := c.Epochs * perEpoch
	if c.MaxUpdates > 0 {
		total = c.MaxUpdates
	}
	if total == 0 || len(train) == 0 {
		return TokenSFTResult{}, errors.New("supervised training: no training sequences")
	}
	schedule, err := rl.NewSchedule(c.Schedule, total, c.Warmup)
	if err != nil {
		return TokenSFTResult{}, fmt.Errorf("supervised training: %w", err)
	}
	t := &tokenSFT{policy: p, train: train, bins: bins, config: c, schedule: schedule}
	if t.optimizer, err = p.Optimizer(c.WeightDecay); err != nil {
		return TokenSFTResult{}, fmt.Errorf("supervised training: %w", err)
	}
	defer t.optimizer.Close()
	if h.Resume != "" {
		if t.best, err = restoreCheckpoint(p, h.Resume, t.optimizer, &t.state); err != nil {
			return TokenSFTResult{}, err
		}
	}
	save := func() error {
		return h.Save(t.state.Step, func(dir string) error { return saveCheckpoint(p, dir, t.optimizer, t.state, t.best) })
	}

	if c.Check != nil && h.Resume == "" {
		if t.state.Done, err = c.Check(ctx, 0); err != nil {
			if ctx.Err() != nil {
				return TokenSFTResult{}, ErrStopped
			}
			return TokenSFTResult{}, err
		}
	}

	var order []int
	for t.state.Step < total && !t.state.Done {
		if ctx.Err() != nil {
			if h.Save == nil {
				return TokenSFTResult{}, ErrStopped
			}
			return TokenSFTResult{}, errors.Join(ErrStopped, save())
		}
		epoch, batch := t.state.Step/perEpoch, t.state.Step%perEpoch
		if order == nil || batch == 0 {
			order = rl.Stream(c.Seed, streamShuffle, uint64(epoch)).Perm(len(bins))
		}
		var indices []int
		for _, bin := range order[batch*c.BatchSize : min((batch+1)*c.BatchSize, len(order))] {
			indices = append(indices, bins[bin]...)
		}
		began := h.now()
		if err := t.update(indices); err != nil {
			var nonFinite *torch.NonFiniteError
			if errors.As(err, &nonFinite) {
				return TokenSFTResult{}, h.broken(t.state.Step+1, indices, map[string]any{}, err)
			}
			return TokenSFTResult{}, fmt.Errorf("update %d: %w", t.state.Step+1, err)
		}
		t.state.Step++
		w := &t.state.Window
		h.progress(t.state.Step, total, "loss %.4f", w.Loss/float64(w.Updates))
		if h.logDue(t.state.Step) || t.state.Step == total {
			row := t.row(perEpoch)
			if h.Now != nil {
				row["time/step"] = h.now().Sub(began).Seconds()
			}
			if err := h.row(row); err != nil {
				return TokenSFTResult{}, err
			}
			*w = tokenWindow{}
		}
		if (batch == perEpoch-1 || t.state.Step == total) && len(validation) > 0 {
			if err := t.endEpoch(epoch+1, validation, h); err != nil {
				return TokenSFTResult{}, err
			}
		}
		if c.Check != nil && t.state.Step%c.CheckEvery == 0 {
			if t.state.Done, err = c.Check(context.WithoutCancel(ctx), t.state.Step); err != nil {
				return TokenSFTResult{}, err
			}
		}
		if h.saveDue(t.state.Step) || h.Save != nil && (t.state.Step == total || t.state.Done) {
			if err := save(); err != nil {
				return TokenSFTResult{}, err
			}
		}
	}
	if t.best != nil {
		if err := t.best.putBack(p); err != nil {
			return TokenSFTResult{}, err
		}
	}
	return TokenSFTResult{Updates: t.state.Step, BestEpoch: t.state.BestEpoch, Best: t.state.Best}, nil
}

// update is one step of the optimiser on the sequences of indices.
func (t *tokenSFT) update(indices []int) error {
	p, c, w := t.policy, t.config, &t.state.Window
	labels := 0
	sequences := make([]Sequence, len(indices))
	ids := make([][]int32, len(indices))
	for i, n := range indices {
		sequences[i], ids[i] = t.train[n], t.train[n].IDs
		labels += t.train[n].labels()
	}
	loss := 0.0
	for _, part := range microBatches(ids, c.MicroTokens) {
		pass := torch.Pass{Adapter: true, Checkpoint: c.Checkpoint, Dropout: torch.Dropout{P: p.adapter.Dropout}}
		for _, n := range indices[part[0]:part[1]] {
			pass.Dropout.Keys = append(pass.Dropout.Keys, rl.Stream(c.Seed, streamDropout, uint64(t.state.Step), uint64(n)).Uint64())
		}
		if err := torch.Do(torch.Train, func(s *torch.Scope) error {
			out := p.score(s, sequences[part[0]:part[1]], pass, 1)
			partLoss := s.Scale(s.Sum(out.logProbs), -1/float64(labels))
			loss += s.Item(partLoss)
			w.count(s, out)
			s.Backward(partLoss)
			return nil
		}); err != nil {
			return err
		}
	}
	for _, sequence := range ids {
		t.state.Tokens += int64(len(sequence))
	}
	rate := t.schedule.At(t.state.Step) * c.LearningRate
	norm, err := t.optimizer.Step([]float64{rate, rate}, c.MaxGradNorm)
	if err != nil {
		return err
	}
	w.Updates, w.Loss, w.Norm = w.Updates+1, w.Loss+loss, w.Norm+norm
	return nil
}

// count adds the labels of a forward pass.
func (w *tokenWindow) count(s *torch.Scope, out scored) {
	for _, rank := range s.ReadInts(out.rank) {
		if rank == 0 {
			w.Correct++
		}
	}
	for _, entropy := range s.Read(out.entropy) {
		w.Entropy += float64(entropy)
		w.Labels++
	}
}

func (t *tokenSFT) row(perEpoch int) report.Row {
	w, n := t.state.Window, float64(t.state.Window.Updates)
	return report.Row{
		"step": t.state.Step, "epoch": float64(t.state.Step) / float64(perEpoch), "loss": w.Loss / n,
		"mean_token_accuracy": float64(w.Correct) / float64(w.Labels), "entropy": w.Entropy / float64(w.Labels),
		"grad_norm": w.Norm / n, "learning_rate": t.schedule.At(t.state.Step-1) * t.config.LearningRate,
		"num_tokens": t.state.Tokens,
	}
}

// endEpoch validates, and keeps the weights where they are the best so far.
func (t *tokenSFT) endEpoch(epoch int, validation []Sequence, h Hooks) error {
	v, err := t.policy.Validate(validation)
	if err != nil {
		return err
	}
	if err := h.row(report.Row{
		"step": t.state.Step, "epoch": float64(epoch), "eval_loss": v.Loss, "eval_perplexity": v.Perplexity(),
		"eval_mean_token_accuracy": v.Accuracy, "eval_entropy": v.Entropy,
	}); err != nil {
		return err
	}
	if t.best == nil || v.Loss < t.state.Best.Loss {
		t.state.Best, t.state.BestEpoch = v, epoch
		if t.best, err = takeSnapshot(t.policy); err != nil {
			return err
		}
	}
	return h.log("Epoch %d: validation loss=%.4f, perplexity=%.3f, token accuracy=%.4f", epoch, v.Loss, v.Perplexity(), v.Accuracy)
}

// Validate measures the policy on the labels of sequences.
func (p *TokenPolicy) Validate(sequences []Sequence) (TokenValidation, error) {
	var w tokenWindow
	ids := make([][]int32, len(sequences))
	for i, sequence := range sequences {
		ids[i] = sequence.IDs
	}
	for _, part := range microBatches(ids, predictTokens) {
		if err := torch.Do(torch.NoGrad, func(s *torch.Scope) error {
			out := p.score(s, sequences[part[0]:part[1]], torch.Pass{Adapter: true}, 1)
			w.Loss -= s.Item(s.Sum(out.logProbs))
			w.count(s, out)
			return nil
		}); err != nil {
			return TokenValidation{}, fmt.Errorf("validating: %w", err)
		}
	}
	n := float64(max(1, w.Labels))
	return TokenValidation{Loss: w.Loss / n, Accuracy: float64(w.Correct) / n, Entropy: w.Entropy / n, Labels: w.Labels}, nil
}

// packBins gathers sequences into bins of at most size tokens, best fit, longest first (the packing of
// Krell et al. 2021); a longer one has a bin of its own. With size 0 each sequence is a bin.
func packBins(sequences []Sequence, size int) [][]int {
	order := make([]int, len(sequences))
	for i := range order {
		order[i] = i
	}
	if size == 0 {
		bins := make([][]int, len(order))
		for i := range bins {
			bins[i] = order[i : i+1]
		}
		return bins
	}
	return bestFit(order, func(i int) int { return len(sequences[i].IDs) }, size)
}
