package torch

// #include "loader.h"
import "C"

import (
	"fmt"
	"math"
	"slices"
)

var (
	opFusedAdamW   = &op{name: "aten::_fused_adamw_"}
	opForeachNorm  = &op{name: "aten::_foreach_norm", overload: "Scalar"}
	opForeachScale = &op{name: "aten::_foreach_mul_", overload: "Scalar"}
	opForeachAdd   = &op{name: "aten::_foreach_add_", overload: "Scalar"}
	opStack        = &op{name: "aten::stack"}
	opVectorNorm   = &op{name: "aten::linalg_vector_norm"}
)

// ParamGroup is a set of parameters with a common learning rate and weight decay.
type ParamGroup struct {
	Params      []*Var
	WeightDecay float64
	Apart       bool // the gradient is clipped by its own norm, separately from the other groups
}

// AdamW is Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2), in fp32.
type AdamW struct {
	Beta1, Beta2 float64 // decay of the moments of the next step: 0.9 and 0.999 unless set
	Eps          float64

	groups []ParamGroup
	steps  int
	first  [][]*Var // moments per group, created at the first step
	second [][]*Var
	counts []*Var // [] each: the number of steps, as the kernel expects it
}

// AdamEps is the default ε of AdamW in libtorch and transformers.
const AdamEps = 1e-8

// NewAdamW optimises groups, some of which may be empty. The caller keeps ownership of the parameters.
func NewAdamW(eps float64, groups ...ParamGroup) *AdamW {
	return &AdamW{Beta1: 0.9, Beta2: 0.999, groups: groups, Eps: eps}
}

func (o *AdamW) params() []*Var {
	var all []*Var
	for _, g := range o.groups {
		all = append(all, g.Params...)
	}
	return all
}

func (o *AdamW) init() error {
	if o.counts != nil {
		return nil
	}
	zeros := func(v *Var) (z *Var, err error) {
		err = Do(NoGrad, func(s *Scope) error {
			shape := s.Shape(v.T())
			z = s.Keep(s.Floats(make([]float32, elements(shape)), shape...))
			return nil
		})
		return z, err
	}
	for _, g := range o.groups {
		var first, second []*Var
		for _, p := range g.Params {
			m, err := zeros(p)
			if err != nil {
				return err
			}
			v, err := zeros(p)
			if err != nil {
				m.Close()
				return err
			}
			count, err := Constant([]float32{float32(o.steps)})
			if err != nil {
				CloseAll(m, v)
				return err
			}
			first, second, o.counts = append(first, m), append(second, v), append(o.counts, count)
		}
		o.first, o.second = append(o.first, first), append(o.second, second)
	}
	return nil
}

// SetDecay changes the weight decay of all groups.
func (o *AdamW) SetDecay(decay float64) {
	for i := range o.groups {
		o.groups[i].WeightDecay = decay
	}
}

// NonFiniteError means that a step was refused because the gradient norm is NaN or infinite. Parameters and optimiser state
// are unchanged.
type NonFiniteError struct {
	What  string // what is not finite, such as the gradient norm
	Value float64
}

func (e *NonFiniteError) Error() string { return fmt.Sprintf("the %s is %v", e.What, e.Value) }

// Step clips the gradients of all groups together to the norm maxNorm (0 = off), each Apart group separately. It then moves
// each group by its learning rate rates[i] and drops the gradients. It returns the norm before clipping, without Apart
// groups. Every parameter must have a gradient.
func (o *AdamW) Step(rates []float64, maxNorm float64) (norm float64, err error) {
	if len(rates) != len(o.groups) {
		return 0, fmt.Errorf("torch: AdamW: %d learning rates for %d groups", len(rates), len(o.groups))
	}
	if err := o.init(); err != nil {
		return 0, fmt.Errorf("torch: AdamW: creating its state: %w", err)
	}
	err = Do(NoGrad, func(s *Scope) error {
		var grads, together []Tensor
		var clipped [][]Tensor // clipped by one common norm
		for _, g := range o.groups {
			begin := len(grads)
			for _, p := range g.Params {
				grad, ok := s.Grad(p)
				if !ok {
					return fmt.Errorf("torch: AdamW: a parameter of shape %v has no gradient", s.Shape(p.T()))
				}
				grads = append(grads, grad)
			}
			if g.Apart && len(g.Params) > 0 {
				clipped = append(clipped, grads[begin:])
			} else {
				together = append(together, grads[begin:]...)
			}
		}
		norms := make([]float64, len(clipped))
		for i, part := range clipped {
			norms[i] = s.globalNorm(part)
		}
		norm = s.globalNorm(together)
		clipped, norms = append(clipped, together), append(norms, norm)
		for _, n := range norms {
			if math.IsNaN(n) || math.IsInf(n, 0) {
				return &NonFiniteError{"gradient norm", n}
			}
		}
		for i, n := range norms {
			if maxNorm > 0 && n > maxNorm {
				s.callInto(nil, opForeachScale, operands(clipped[i]), scalar(maxNorm/n))
			}
		}
		o.steps++
		at := 0
		for i, g := range o.groups {
			n := len(g.Params)
			if n == 0 {
				continue
			}
			counts := tensors(o.counts[at : at+n])
			s.callInto(nil, opForeachAdd, operands(counts), scalar(1))
			const amsgrad, maximize = false, false
			s.callInto(nil, opFusedAdamW, operands(tensors(g.Params)), operands(grads[at:at+n]),
				operands(tensors(o.first[i])), operands(tensors(o.second[i])), operands(nil), operands(counts),
				real64(rates[i]), real64(o.Beta1), real64(o.Beta2), real64(g.WeightDecay), real64(o.Eps),
				boolean(amsgrad), boolean(maximize))
			at += n
		}
		return nil
	})
	if err != nil {
		return norm, err
	}
	return norm, ZeroGrad(o.params())
}

func tensors(vs []*Var) []Tensor {
	ts := make([]Tensor, len(vs))
	for i, v := range vs {
		ts[i] = v.T()
	}
	return ts
}

// globalNorm is the Euclidean norm of all elements of ts.
func (s *Scope) globalNorm(ts []Tensor) float64 {
	if len(ts) == 0 {
		return 0
	}
	results := make([]C.rlt_tensor, len(ts))
	n := s.callInto(results, opForeachNorm, operands(ts), scalar(2))
	norms := make([]Tensor, n)
	for i := range norms {
		norms[i] = s.own(results[i])
	}
	return s.Item(s.call(opVectorNorm, operand(s.call(opStack, operands(norms)))))
}

// Steps returns the number of steps taken.
func (o *AdamW) Steps() int { return o.steps }

// Moments returns the first and second moments of each parameter, in group order. The optimiser owns them; writing to them
// changes its state.
func (o *AdamW) Moments() (first, second []*Var, err error) {
	if err := o.init(); err != nil {
		return nil, nil, err
	}
	return slices.Concat(o.first...), slices.Concat(o.second...), nil
}

// Continue sets the step count that belongs to restored Moments.
func (o *AdamW) Continue(steps int) error {
	if err := o.init(); err != nil {
		return err
	}
	for _, count := range o.counts {
		if err := count.Write([]float32{float32(steps)}); err != nil {
			return fmt.Errorf("torch: AdamW: step count: %w", err)
		}
	}
	o.steps = steps
	return nil
}

// Close frees the optimiser's state, not the parameters.
func (o *AdamW) Close() {
	for i := range o.first {
		CloseAll(o.first[i]...)
		CloseAll(o.second[i]...)
	}
	CloseAll(o.counts...)
	o.first, o.second, o.counts = nil, nil, nil
}
