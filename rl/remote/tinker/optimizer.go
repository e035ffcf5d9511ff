package tinker

import (
	"context"
	"math"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/internal/tinker"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch"
)

// optimizer is the service's.
type optimizer struct {
	policy *Policy
	adam   map[string]any // settings of all steps
	steps  int
}

// Optimizer returns the optimizer of the policy's weights, AdamW. The service keeps its moments.
func (p *Policy) Optimizer(beta1, beta2, epsilon, decay float64) run.Optimizer {
	return &optimizer{policy: p, adam: map[string]any{"beta1": beta1, "beta2": beta2, "eps": epsilon, "weight_decay": decay}}
}

// Step sends the gradients of all log-probabilities and moves the weights. It returns the norm of the gradient, NaN if the
// service does not say it.
func (o *optimizer) Step(rates []float64, maxNorm float64) (norm float64, err error) {
	p := o.policy
	defer p.drop()
	examples, slopes, now, err := p.gradients()
	if err != nil {
		return 0, err
	}
	for _, e := range examples {
		p.spent.Backward += len(e.tokens)
	}
	o.adam["learning_rate"], o.adam["grad_clip_norm"] = rates[0], maxNorm
	if norm, err = p.model.step(p.ctx, p.model.weigh(examples, slopes, now), examples, o.adam); err != nil {
		return 0, err
	}
	o.steps++
	return norm, nil
}

// step moves the weights along the gradient of a loss of examples and returns the norm of the gradient, NaN if the service does
// not say it.
func (m *model) step(ctx context.Context, loss string, examples []example, adam map[string]any) (norm float64, err error) {
	ids, err := m.submit(ctx, loss, examples, false)
	if err != nil {
		return 0, err
	}
	gradients := func() error {
		for _, id := range ids {
			if err := m.service.result(ctx, id, &tinker.ForwardResult{}); err != nil {
				return err
			}
		}
		return nil
	}
	if !m.repeats { // SkyRL 0.3.0 may take a step that arrives meanwhile before the gradient, without an error
		if err := gradients(); err != nil {
			return 0, err
		}
		ids = nil
	}
	step, err := m.ask(ctx, "optim_step", map[string]any{"adam_params": adam}, false)
	if err != nil {
		return 0, err
	}
	if err := gradients(); err != nil {
		return 0, err
	}
	var moved struct {
		Metrics map[string]float64 `json:"metrics"`
	}
	if err := m.service.result(ctx, step, &moved); err != nil {
		return 0, err
	}
	norm = math.NaN()
	for name, value := range moved.Metrics {
		if strings.HasSuffix(name, "grad_norm") || strings.HasPrefix(name, "unclipped_grad_l2") {
			if norm = value; math.IsNaN(norm) || math.IsInf(norm, 0) {
				return 0, &torch.NonFiniteError{What: "gradient's norm", Value: norm}
			}
		}
	}
	return norm, nil
}

// gradients are the examples of all passes with ∂L/∂log π of their targets. Examples without any are left out, except for
// one.
func (p *Policy) gradients() (examples []example, slopes, now [][]float32, err error) {
	for _, one := range p.open {
		var grad []float32
		if err := torch.Do(torch.NoGrad, func(s *torch.Scope) error {
			if g, ok := s.Grad(one.logProbs); ok {
				grad = s.Read(g)
			}
			return nil
		}); err != nil {
			return nil, nil, nil, err
		}
		if grad == nil {
			continue
		}
		of := make([][]float32, len(one.examples))
		for i, e := range one.examples {
			of[i] = make([]float32, len(e.targets))
		}
		for i, at := range one.places {
			if x := float64(grad[i]); math.IsNaN(x) || math.IsInf(x, 0) {
				return nil, nil, nil, &torch.NonFiniteError{What: "gradient of a log-probability", Value: x}
			}
			of[at.example][at.at] = grad[i]
		}
		for i, e := range one.examples {
			if len(examples) == 0 || slices.ContainsFunc(of[i], func(x float32) bool { return x != 0 }) {
				examples, slopes, now = append(examples, e), append(slopes, of[i]), append(now, one.now[i])
			}
		}
	}
	return examples, slopes, now, nil
}

// States implements run.Optimizer: the service saves the moments with the weights.
func (o *optimizer) States() ([]torch.OptimizerState, error) { return nil, nil }

// Steps implements run.Optimizer.
func (o *optimizer) Steps() int { return o.steps }

// Continue implements run.Optimizer.
func (o *optimizer) Continue(steps int) error {
	o.steps = steps
	return nil
}

// Close implements run.Optimizer: the policy's Close ends the session.
func (o *optimizer) Close() {}
