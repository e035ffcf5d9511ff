package torch

// #include "loader.h"
import "C"

import (
	"fmt"
	"math"
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
	Muon        bool // matrices [out, in] that move by Muon instead of AdamW
	EightBit    bool // AdamW's moments are kept in 8 bits where that is possible
}

// StateBytes is the memory that the optimiser keeps for the group.
func (g ParamGroup) StateBytes() (bytes int64, err error) {
	for _, p := range g.Params {
		n, err := p.Elements()
		if err != nil {
			return 0, err
		}
		switch {
		case g.Muon:
			bytes += 4 * n
		case g.EightBit && fitsMoment8(n):
			bytes += 2 * (n + 4*n/block8)
		default:
			bytes += 8 * n
		}
	}
	return bytes, nil
}

// Optimizer is Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2), in fp32, or what a group says.
type Optimizer struct {
	Beta1, Beta2 float64 // decay of the moments of the next step: 0.9 and 0.999 unless set
	Eps          float64

	groups  []ParamGroup
	steps   int
	states  []*optimizerState // of each parameter, in group order, created at the first step
	states8 *dynamicMaps      // nil without moments in 8 bits
}

// optimizerState is what the optimiser remembers of a parameter.
type optimizerState struct {
	first, second   *Var // moments in fp32; second is nil with Muon, both are with moments in 8 bits
	first8, second8 *moment8
	count           *Var // []: the number of steps, as the kernel expects it
}

// AdamEps is the default ε of AdamW in libtorch and transformers.
const AdamEps = 1e-8

// NewOptimizer optimises groups, some of which may be empty. The caller keeps ownership of the parameters.
func NewOptimizer(eps float64, groups ...ParamGroup) *Optimizer {
	return &Optimizer{Beta1: 0.9, Beta2: 0.999, groups: groups, Eps: eps}
}

func (o *Optimizer) params() []*Var {
	var all []*Var
	for _, g := range o.groups {
		all = append(all, g.Params...)
	}
	return all
}

func (o *Optimizer) init() error {
	if o.states != nil {
		return nil
	}
	for _, g := range o.groups {
		for _, p := range g.Params {
			state, err := o.newState(g, p)
			if err != nil {
				o.Close()
				return err
			}
			o.states = append(o.states, state)
		}
	}
	return nil
}

// newState is the state of a parameter before the first step.
func (o *Optimizer) newState(g ParamGroup, p *Var) (state *optimizerState, err error) {
	state = &optimizerState{}
	err = Do(NoGrad, func(s *Scope) error {
		shape := s.Shape(p.T())
		if g.EightBit && fitsMoment8(elements(shape)) {
			if o.states8 == nil {
				o.states8 = newDynamicMaps(s)
			}
			state.first8, state.second8 = s.newMoment8(elements(shape)), s.newMoment8(elements(shape))
		} else {
			state.first = s.Keep(s.zeros(scalarTypes[F32], shape...))
			if !g.Muon {
				state.second = s.Keep(s.zeros(scalarTypes[F32], shape...))
			}
		}
		state.count = s.Keep(s.Floats([]float32{float32(o.steps)}))
		return nil
	})
	if err != nil {
		state.close()
	}
	return state, err
}

// zeros is a tensor of zeros of a c10::ScalarType.
func (s *Scope) zeros(scalarType int64, dims ...int64) Tensor {
	device := arg{kind: C.RLT_ARG_DEVICE, word: int64(library.device.native())}
	return s.call(opZeros, integers(dims...), integer(scalarType), none, device)
}

func (s *optimizerState) close() {
	for _, v := range []*Var{s.first, s.second, s.count} {
		if v != nil {
			v.Close()
		}
	}
	for _, m := range []*moment8{s.first8, s.second8} {
		if m != nil {
			CloseAll(m.codes, m.scales)
		}
	}
}

// SetDecay changes the weight decay of all groups.
func (o *Optimizer) SetDecay(decay float64) {
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
func (o *Optimizer) Step(rates []float64, maxNorm float64) (norm float64, err error) {
	if len(rates) != len(o.groups) {
		return 0, fmt.Errorf("torch: optimizer: %d learning rates for %d groups", len(rates), len(o.groups))
	}
	if err := o.init(); err != nil {
		return 0, fmt.Errorf("torch: optimizer: creating its state: %w", err)
	}
	err = Do(NoGrad, func(s *Scope) error {
		var grads, together []Tensor
		var clipped [][]Tensor // clipped by one common norm
		for _, g := range o.groups {
			begin := len(grads)
			for _, p := range g.Params {
				grad, ok := s.Grad(p)
				if !ok {
					return fmt.Errorf("torch: optimizer: a parameter of shape %v has no gradient", s.Shape(p.T()))
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
			if n := len(g.Params); n > 0 {
				if err := o.move(s, g, grads[at:at+n], o.states[at:at+n], rates[i]); err != nil {
					return err
				}
				at += n
			}
		}
		return nil
	})
	if err != nil {
		return norm, err
	}
	return norm, ZeroGrad(o.params())
}

// move moves the parameters of a group by its rate.
func (o *Optimizer) move(s *Scope, g ParamGroup, grads []Tensor, states []*optimizerState, rate float64) error {
	var params, plain, first, second, counts []Tensor
	for i, state := range states {
		p := g.Params[i].T()
		if !g.Muon && state.first8 == nil {
			params, plain, counts = append(params, p), append(plain, grads[i]), append(counts, state.count.T())
			first, second = append(first, state.first.T()), append(second, state.second.T())
			continue
		}
		err := error(nil)
		if g.Muon { // what it takes meanwhile is free before the next one
			err = Do(NoGrad, func(s *Scope) error {
				s.muon(p, grads[i], state.first.T(), rate, g.WeightDecay)
				return nil
			})
		} else {
			err = o.move8(p, grads[i], state, rate, g.WeightDecay)
		}
		if err != nil {
			return err
		}
	}
	if len(params) > 0 {
		s.callInto(nil, opForeachAdd, operands(counts), scalar(1))
		o.adamW(s, params, plain, first, second, counts, rate, g.WeightDecay)
	}
	return nil
}

// adamW moves parameters and their moments in fp32, given the number of their steps.
func (o *Optimizer) adamW(s *Scope, params, grads, first, second, counts []Tensor, rate, decay float64) {
	const amsgrad, maximize = false, false
	s.callInto(nil, opFusedAdamW, operands(params), operands(grads), operands(first), operands(second), operands(nil), operands(counts),
		real64(rate), real64(o.Beta1), real64(o.Beta2), real64(decay), real64(o.Eps), boolean(amsgrad), boolean(maximize))
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
func (o *Optimizer) Steps() int { return o.steps }

// An OptimizerState is one tensor that the optimiser remembers. Its name is that of the moment and the number of the parameter, in
// group order: "first.0".
type OptimizerState struct {
	Name string
	v    *Var
}

// Read returns the values, row-major.
func (s OptimizerState) Read() ([]float32, error) { return s.v.Read() }

// Elements is the number of values.
func (s OptimizerState) Elements() (int64, error) { return s.v.Elements() }

// Write overwrites the values.
func (s OptimizerState) Write(data []float32) error {
	return Do(NoGrad, func(scope *Scope) error {
		scope.Store(s.v, scope.Floats(data, scope.Shape(s.v.T())...))
		return nil
	})
}

// States returns all that the optimiser remembers besides the number of steps.
func (o *Optimizer) States() ([]OptimizerState, error) {
	if err := o.init(); err != nil {
		return nil, err
	}
	var all []OptimizerState
	add := func(name string, i int, v *Var) {
		if v != nil {
			all = append(all, OptimizerState{fmt.Sprintf("%s.%d", name, i), v})
		}
	}
	for i, state := range o.states {
		add("first", i, state.first)
		add("second", i, state.second)
		if state.first8 != nil {
			add("first8", i, state.first8.codes)
			add("first8_scales", i, state.first8.scales)
			add("second8", i, state.second8.codes)
			add("second8_scales", i, state.second8.scales)
		}
	}
	return all, nil
}

// Continue sets the step count that belongs to restored States.
func (o *Optimizer) Continue(steps int) error {
	if err := o.init(); err != nil {
		return err
	}
	for _, state := range o.states {
		if err := state.count.Write([]float32{float32(steps)}); err != nil {
			return fmt.Errorf("torch: optimizer: step count: %w", err)
		}
	}
	o.steps = steps
	return nil
}

// Close frees the optimiser's state, not the parameters.
func (o *Optimizer) Close() {
	for _, state := range o.states {
		state.close()
	}
	if o.states8 != nil {
		o.states8.close()
	}
	o.states, o.states8 = nil, nil
}
