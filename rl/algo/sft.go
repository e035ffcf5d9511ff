package algo

import (
	"context"
	"errors"
	"fmt"

	"rltrain/rl"
	"rltrain/rl/report"
	"rltrain/torch"
)

// SFTConfig is what supervised training of a label policy needs to know.
type SFTConfig struct {
	Epochs           int
	MaxUpdates       int     // 0 = as many as Epochs take; else this many, whatever Epochs says
	BatchSize        int     // examples an update
	LearningRate     float64 // peak, of the adapter
	HeadLearningRate float64 // peak, of the classification head
	WeightDecay      float64
	Schedule         string  // "cosine", "linear" or "constant"
	Warmup           float64 // share of the updates, or from 1 on a number of them
	MaxGradNorm      float64 // 0 = no clipping
	FeatureAlignment float64 // weight of the penalty Σ‖A‖ + ‖B‖ on the adapter; 0 = none
	Metric           string  // validation figure that picks the best epoch
	MicroTokens      int     // tokens a forward pass may hold; 0 = the whole batch
	Seed             uint64
}

// SFTResult is how supervised training ended. The policy holds the weights of the best epoch.
type SFTResult struct {
	Updates   int
	BestEpoch int // from 1
	Best      Validation
}

// sftState is all that changes from update to update, the weights and the optimiser's moments aside.
type sftState struct {
	Step      int        `json:"step"`
	BestEpoch int        `json:"best_epoch"`
	Best      Validation `json:"best"`
	Tokens    int64      `json:"tokens"`
	Window    sftWindow  `json:"window"`
}

// sftWindow averages over the updates since the last log line.
type sftWindow struct {
	Updates int     `json:"updates"`
	Loss    float64 `json:"loss"`
	Correct int     `json:"correct"`
	Rows    int     `json:"rows"`
	Norm    float64 `json:"norm"`
}

// sft is supervised training under way.
type sft struct {
	policy    *LabelPolicy
	train     Examples
	config    SFTConfig
	schedule  rl.Schedule
	optimizer *torch.AdamW
	state     sftState
	best      snapshot
}

// SFT trains the policy's adapter and head by cross-entropy,
//
//	L = −(1/B) Σ log π(y_i|x_i)
//
// with AdamW, and gives it the weights of its best epoch by validation. Dropout acts on the adapters' input
// and on nothing else. Every random choice is a function of (seed, update, example), so a run resumed from a
// checkpoint ends with the same bytes as one that was never stopped.
func SFT(ctx context.Context, p *LabelPolicy, train, validation Examples, c SFTConfig, h Hooks) (SFTResult, error) {
	perEpoch := (train.Len() + c.BatchSize - 1) / c.BatchSize
	total := c.Epochs * perEpoch
	if c.MaxUpdates > 0 {
		total = c.MaxUpdates
	}
	if total == 0 || validation.Len() == 0 {
		return SFTResult{}, fmt.Errorf("supervised training: %d training and %d validation rows; both are needed", train.Len(), validation.Len())
	}
	schedule, err := rl.NewSchedule(c.Schedule, total, c.Warmup)
	if err != nil {
		return SFTResult{}, fmt.Errorf("supervised training: %w", err)
	}
	t := &sft{policy: p, train: train, config: c, schedule: schedule, optimizer: torch.NewAdamW(torch.AdamEps,
		torch.ParamGroup{Params: p.adapterParams(), WeightDecay: c.WeightDecay},
		torch.ParamGroup{Params: p.headParams(), WeightDecay: c.WeightDecay})}
	defer t.optimizer.Close()
	if h.Resume != "" {
		if t.best, err = restoreCheckpoint(p, h.Resume, t.optimizer, &t.state); err != nil {
			return SFTResult{}, err
		}
	}
	save := func() error {
		return h.Save(t.state.Step, func(dir string) error { return saveCheckpoint(p, dir, t.optimizer, t.state, t.best) })
	}

	var order []int
	for t.state.Step < total {
		if ctx.Err() != nil {
			if h.Save == nil {
				return SFTResult{}, ErrStopped
			}
			return SFTResult{}, errors.Join(ErrStopped, save())
		}
		epoch, batch := t.state.Step/perEpoch, t.state.Step%perEpoch
		if order == nil || batch == 0 {
			order = rl.Stream(c.Seed, streamShuffle, uint64(epoch)).Perm(train.Len())
		}
		indices := order[batch*c.BatchSize : min((batch+1)*c.BatchSize, len(order))]
		began := h.now()
		if err := t.update(indices); err != nil {
			var nonFinite *torch.NonFiniteError
			if errors.As(err, &nonFinite) {
				return SFTResult{}, h.broken(t.state.Step+1, indices, map[string]any{}, err)
			}
			return SFTResult{}, fmt.Errorf("update %d: %w", t.state.Step+1, err)
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
				return SFTResult{}, err
			}
			*w = sftWindow{}
		}
		if batch == perEpoch-1 || t.state.Step == total {
			if err := t.endEpoch(ctx, epoch+1, validation, h); err != nil {
				return SFTResult{}, err
			}
		}
		if h.saveDue(t.state.Step) || h.Save != nil && t.state.Step == total {
			if err := save(); err != nil {
				return SFTResult{}, err
			}
		}
	}
	if err := t.best.putBack(p); err != nil {
		return SFTResult{}, err
	}
	return SFTResult{Updates: total, BestEpoch: t.state.BestEpoch, Best: t.state.Best}, nil
}

// update is one step of the optimiser on the examples of indices. The gradient does not depend on how
// MicroTokens divides them: each part's loss is a sum over its examples, divided by those of the batch.
func (t *sft) update(indices []int) error {
	ids, labels := t.train.at(indices)
	p, c, w := t.policy, t.config, &t.state.Window
	correct, loss := 0, 0.0
	for n, part := range microBatches(ids, c.MicroTokens) {
		ids, labels := ids[part[0]:part[1]], labels[part[0]:part[1]]
		dropout := torch.Dropout{P: p.adapter.Dropout}
		for _, i := range indices[part[0]:part[1]] {
			dropout.Keys = append(dropout.Keys, rl.Stream(c.Seed, streamDropout, uint64(t.state.Step), uint64(i)).Uint64())
		}
		if err := torch.Do(torch.Train, func(s *torch.Scope) error {
			logProbs := p.logProbs(s, p.features(s, ids, dropout))
			partLoss := crossEntropyLoss(s, logProbs, s.Ints(labels, int64(len(labels))), len(indices))
			loss += s.Item(partLoss)
			correct += countCorrect(s.Read(logProbs), labels, len(p.Labels))
			if c.FeatureAlignment > 0 && n == 0 {
				for _, v := range p.adapterParams() {
					partLoss = s.Add(partLoss, s.Scale(s.Norm(v.T()), c.FeatureAlignment))
				}
			}
			s.Backward(partLoss)
			return nil
		}); err != nil {
			return err
		}
		for _, sequence := range ids {
			t.state.Tokens += int64(len(sequence))
		}
	}
	rate := t.schedule.At(t.state.Step)
	norm, err := t.optimizer.Step([]float64{rate * c.LearningRate, rate * c.HeadLearningRate}, c.MaxGradNorm)
	if err != nil {
		return err
	}
	w.Updates, w.Loss, w.Norm = w.Updates+1, w.Loss+loss, w.Norm+norm
	w.Correct, w.Rows = w.Correct+correct, w.Rows+len(indices)
	return nil
}

// crossEntropyLoss is −Σ log π(y_i|x_i) / n. logProbs [S, C], labels [S] int64; n is the examples of the
// whole batch, of which these S may be a part.
func crossEntropyLoss(s *torch.Scope, logProbs, labels torch.Tensor, n int) torch.Tensor {
	return s.Scale(s.Sum(s.Pick(logProbs, labels)), -1/float64(n))
}

func (t *sft) row(perEpoch int) report.Row {
	w, n := t.state.Window, float64(t.state.Window.Updates)
	return report.Row{
		"step": t.state.Step, "epoch": float64(t.state.Step) / float64(perEpoch), "loss": w.Loss / n,
		"accuracy": float64(w.Correct) / float64(w.Rows), "grad_norm": w.Norm / n,
		"learning_rate": t.schedule.At(t.state.Step-1) * t.config.LearningRate, "num_tokens": t.state.Tokens,
	}
}

// endEpoch validates, and keeps the weights where they are the best so far.
func (t *sft) endEpoch(ctx context.Context, epoch int, validation Examples, h Hooks) error {
	v, _, err := t.policy.validate(ctx, validation)
	if err != nil {
		return err
	}
	if err := h.row(v.row(report.Row{"step": t.state.Step, "epoch": float64(epoch)})); err != nil {
		return err
	}
	better, err := v.betterThan(t.state.Best, t.config.Metric)
	if err != nil {
		return err
	}
	if t.best == nil || better {
		t.state.Best, t.state.BestEpoch = v, epoch
		if t.best, err = takeSnapshot(t.policy); err != nil {
			return err
		}
	}
	return h.log("Epoch %d: validation loss=%.4f, accuracy=%.4f, f1_weighted=%.4f, f1_macro=%.4f, ece=%.4f, brier=%.4f",
		epoch, v.Loss, v.Accuracy, v.F1Weighted, v.F1Macro, v.ECE, v.Brier)
}

// countCorrect counts the rows of logProbs [S, C] whose largest entry is at their label.
func countCorrect(logProbs []float32, labels []int64, classes int) int {
	correct := 0
	for i, y := range labels {
		if argmax(logProbs[i*classes:(i+1)*classes]) == int(y) {
			correct++
		}
	}
	return correct
}

// argmax is the index of the largest element, the first of equals.
func argmax(x []float32) int {
	best := 0
	for i, v := range x {
		if v > x[best] {
			best = i
		}
	}
	return best
}
