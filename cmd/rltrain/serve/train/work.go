package train

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/rltrain/rltrain/internal/tinker"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

// example is an example with what its loss reads, or a part of one with many targets.
type example struct {
	sample  *rl.Sample // with the actions that the loss reads
	datum   int        // of the request
	targets []int      // which targets of it they are
	loss    *tinker.Loss
}

// size is what an example costs of the room in a pass.
func (x example) size() int { return max(len(x.sample.Tokens), len(x.targets)) }

// examples checks the examples of a request and makes room for their log-probabilities in its result.
func (t *Trainer) examples(e *tinker.Examples) (all []example, result *tinker.ForwardResult, err error) {
	if len(e.Data) == 0 {
		return nil, nil, errors.New("data is empty")
	}
	result = &tinker.ForwardResult{Metrics: map[string]float64{}}
	for i := range e.Data {
		parts, err := t.example(e, i, result)
		if err != nil {
			return nil, nil, fmt.Errorf("data %d: %w", i, err)
		}
		all = append(all, parts...)
	}
	return all, result, nil
}

func (t *Trainer) example(e *tinker.Examples, at int, result *tinker.ForwardResult) (parts []example, err error) {
	d := e.Data[at]
	targets, width, err := d.Targets()
	if err == nil {
		err = t.known("model_input", d.Tokens)
	}
	if err == nil {
		err = t.known("target_tokens", targets)
	}
	if err == nil && len(d.Tokens) > t.base.MaxLength() {
		err = fmt.Errorf("model_input has %d tokens, more than the model's %d positions", len(d.Tokens), t.base.MaxLength())
	}
	if err != nil {
		return nil, err
	}
	loss, err := tinker.NewLoss(e.Loss, e.Config, d)
	if err != nil {
		return nil, err
	}
	for i, target := range targets {
		if !loss.Reads(i) {
			continue
		}
		if n := len(parts); n == 0 || len(parts[n-1].targets) == t.part() {
			parts = append(parts, example{sample: &rl.Sample{Tokens: d.Tokens}, datum: at, loss: loss})
		}
		x := &parts[len(parts)-1]
		x.sample.Rows, x.sample.Actions = append(x.sample.Rows, i/width), append(x.sample.Actions, target)
		x.targets = append(x.targets, i)
	}
	result.LogProbs, result.Widths = append(result.LogProbs, make([]float32, len(targets))), append(result.Widths, width)
	return parts, nil
}

// forward computes log-probabilities and the loss of examples and, unless the request asks for a forward pass alone, adds its
// gradient to that of the run.
func (r *run) forward(ctx context.Context, e *tinker.Examples) (tinker.Outcome, error) {
	all, result, err := r.trainer.examples(e)
	if err != nil {
		return nil, mistake{err}
	}
	sum := 0.0
	for _, part := range rl.MicroBatches(len(all), r.trainer.part(), func(i int) int { return all[i].size() }) {
		err := r.ask(ctx, func() error {
			r.partial = !e.ForwardOnly
			loss, err := r.pass(all[part[0]:part[1]], e.ForwardOnly, part[0] == 0, result)
			sum += loss
			return err
		})
		if err != nil {
			return nil, r.discard(ctx, e.ForwardOnly, err)
		}
		for _, x := range all[part[0]:part[1]] {
			r.trainer.figures.tokens.Add(int64(len(x.sample.Tokens)))
		}
	}
	result.Metrics["loss:sum"] = sum
	if e.ForwardOnly {
		return result, nil
	}
	return result, r.trainer.server.Ask(ctx, func() error {
		r.partial, r.gradient = false, true
		return nil
	})
}

// pass is a forward pass over some examples, the first ones of a request or others, and unless only forward, back.
func (r *run) pass(part []example, only, first bool, result *tinker.ForwardResult) (sum float64, err error) {
	visit := func(s *torch.Scope, logProbs torch.Tensor) error {
		var weights []float32
		sum, weights = read(part, s.Read(logProbs), result)
		if math.IsNaN(sum) || math.IsInf(sum, 0) {
			return &torch.NonFiniteError{What: "loss", Value: sum}
		}
		if !only {
			s.Backward(s.Neg(s.Sum(s.Mul(logProbs, s.Floats(weights, int64(len(weights)))))))
		}
		return nil
	}
	if first && !only && r.trainer.kept.fits(r, part) {
		defer r.trainer.release()
		err = r.trainer.kept.back(visit)
		return sum, err
	}
	if first {
		r.trainer.release()
	}
	how, mode := policy.Pass{Temperature: 1}, torch.Train
	if only {
		mode = torch.NoGrad
		if how.Base, err = r.policy.Fresh(); err != nil { // then the adapter changes nothing
			return 0, err
		}
		if first && !how.Base {
			err = r.keep(part, how, visit)
			return sum, err
		}
	}
	err = torch.Do(mode, func(s *torch.Scope) error {
		return visit(s, r.policy.Forward(s, batch(part), how).LogProbs)
	})
	return sum, err
}

func batch(part []example) *rl.Batch {
	samples := make([]*rl.Sample, len(part))
	for i, x := range part {
		samples[i] = x.sample
	}
	return rl.NewBatch(samples)
}

// read puts log π of the actions of examples into a result and returns their loss with its weights. Targets that the loss does
// not read have log π 0.
func read(part []example, logProbs []float32, result *tinker.ForwardResult) (sum float64, weights []float32) {
	for _, x := range part {
		n := len(x.targets)
		for i, at := range x.targets {
			result.LogProbs[x.datum][at] = logProbs[i]
		}
		loss, w := x.loss.At(x.targets, logProbs[:n])
		sum, weights, logProbs = sum+loss, append(weights, w...), logProbs[n:]
	}
	return sum, weights
}

// discard drops the gradient of a run after an error, since a part of it may be missing.
func (r *run) discard(ctx context.Context, only bool, cause error) error {
	if only {
		return cause
	}
	if err := r.ask(ctx, func() error {
		r.partial, r.gradient = false, false
		return torch.ZeroGrad(r.policy.Params())
	}); err != nil {
		return cause
	}
	return fmt.Errorf("%w; the accumulated gradient of the model was discarded", cause)
}

// adam are the settings of an optimizer step.
type adam struct {
	Rate  float64 `json:"learning_rate"`
	Beta1 float64 `json:"beta1"`
	Beta2 float64 `json:"beta2"`
	Eps   float64 `json:"eps"`
	Decay float64 `json:"weight_decay"`
	Clip  float64 `json:"grad_clip_norm"`
}

func defaultAdam() *adam { return &adam{Rate: 1e-4, Beta1: 0.9, Beta2: 0.95, Eps: 1e-12} }

func (a *adam) check() error {
	below1 := math.Nextafter(1, 0)
	return errors.Join(within("learning_rate", a.Rate, 0, 1e6), within("beta1", a.Beta1, 0, below1), within("beta2", a.Beta2, 0, below1),
		within("eps", a.Eps, 0, 1), within("weight_decay", a.Decay, 0, 1e6), within("grad_clip_norm", a.Clip, -math.MaxFloat64, math.MaxFloat64))
}

// step moves the weights along the accumulated gradient and drops it.
func (r *run) step(ctx context.Context, a *adam) (tinker.Outcome, error) {
	if err := a.check(); err != nil {
		return nil, mistake{err}
	}
	norm := 0.0
	err := r.ask(ctx, func() (err error) {
		if !r.gradient {
			return mistake{errors.New("there is no gradient: call forward_backward before optim_step")}
		}
		r.trainer.release() // what it kept read these weights
		o := r.optimizer
		o.Beta1, o.Beta2, o.Eps = a.Beta1, a.Beta2, a.Eps
		o.SetDecay(a.Decay)
		norm, err = o.Step([]float64{a.Rate}, max(0, a.Clip))
		if err == nil {
			r.gradient = false
			r.policy.Changed()
		}
		return err
	})
	if errors.As(err, new(*torch.NonFiniteError)) {
		return nil, r.discard(ctx, false, err)
	}
	if err != nil {
		return nil, err
	}
	r.trainer.figures.steps.Add(1)
	return tinker.Reply{"type": "optim_step", "metrics": map[string]float64{"grad_norm": norm, "learning_rate": a.Rate}}, nil
}
