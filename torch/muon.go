package torch

import "math"

var (
	opForeachLerp = &op{name: "aten::_foreach_lerp_", overload: "Scalar"}
	opForeachSum  = &op{name: "aten::_foreach_add_", overload: "List"}
	opLerp        = &op{name: "aten::lerp", overload: "Scalar"}
	opTranspose   = &op{name: "aten::t"}
	opDivTensor   = &op{name: "aten::div", overload: "Tensor"}
	opAddMM       = &op{name: "aten::addmm"}
)

// Muon's constants, those of torch.optim.Muon.
const (
	muonMomentum = 0.95
	muonSteps    = 5
	muonEps      = 1e-7
	muonA        = 3.4445
	muonB        = -4.7750
	muonC        = 2.0315
)

// muon moves a matrix p [out, in] by an orthogonalised momentum with Nesterov's look-ahead (Jordan et al. 2024, "Muon"), as
// torch.optim.Muon does with adjust_lr_fn match_rms_adamw: the update's root mean square is 0.2, about AdamW's, so both share a
// learning rate (Liu et al. 2025, "Muon is Scalable for LLM Training", eq. 4).
func (s *Scope) muon(p, grad, momentum Tensor, rate, decay float64) {
	s.callInto(nil, opForeachLerp, operands([]Tensor{momentum}), operands([]Tensor{grad}), scalar(1-muonMomentum))
	update := s.orthogonalised(s.call(opLerp, operand(grad), operand(momentum), scalar(muonMomentum)))
	shape := s.Shape(p)
	s.callInto(nil, opForeachScale, operands([]Tensor{p}), scalar(1-rate*decay))
	scale := 0.2 * math.Sqrt(float64(max(shape[0], shape[1])))
	s.callInto(nil, opForeachSum, operands([]Tensor{p}), operands([]Tensor{update}), scalar(-rate*scale))
}

// orthogonalised is about U·V of g = U·S·V, with singular values between 0.5 and 1.5: five steps of a Newton-Schulz iteration in bf16.
func (s *Scope) orthogonalised(g Tensor) Tensor {
	shape := s.Shape(g)
	x := s.to(g, BF16)
	tall := shape[0] > shape[1]
	if tall {
		x = s.call(opTranspose, operand(x))
	}
	norm := s.call(opClamp, operand(s.call(opVectorNorm, operand(x))), scalar(muonEps), none)
	x = s.call(opDivTensor, operand(x), operand(norm))
	for range muonSteps {
		gram := s.call(opMatMul, operand(x), operand(s.call(opTranspose, operand(x))))
		factor := s.call(opAddMM, operand(gram), operand(gram), operand(gram), scalar(muonB), scalar(muonC))
		x = s.call(opAddMM, operand(x), operand(factor), operand(x), scalar(muonA), scalar(1))
	}
	if tall {
		x = s.call(opTranspose, operand(x))
	}
	return x
}
