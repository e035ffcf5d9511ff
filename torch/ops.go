package torch

// #include "loader.h"
import "C"

// Operators panic with *Error if shapes or types do not fit; scalars broadcast as in libtorch.

var (
	opAdd         = &op{name: "aten::add", overload: "Tensor"}
	opSub         = &op{name: "aten::sub", overload: "Tensor"}
	opMul         = &op{name: "aten::mul", overload: "Tensor"}
	opMulScalar   = &op{name: "aten::mul", overload: "Scalar"}
	opAddScalar   = &op{name: "aten::add", overload: "Scalar"}
	opNeg         = &op{name: "aten::neg"}
	opExp         = &op{name: "aten::exp"}
	opExpm1       = &op{name: "aten::expm1"}
	opLog         = &op{name: "aten::log"}
	opSigmoid     = &op{name: "aten::sigmoid"}
	opLogSigmoid  = &op{name: "aten::log_sigmoid"}
	opTanh        = &op{name: "aten::tanh"}
	opReLU        = &op{name: "aten::relu"}
	opGELU        = &op{name: "aten::gelu"}
	opSiLU        = &op{name: "aten::silu"}
	opLayerNorm   = &op{name: "aten::layer_norm"}
	opClamp       = &op{name: "aten::clamp"}
	opMinimum     = &op{name: "aten::minimum"}
	opMaximum     = &op{name: "aten::maximum"}
	opSum         = &op{name: "aten::sum"}
	opSumDim      = &op{name: "aten::sum", overload: "dim_IntList"}
	opLogSoftmax  = &op{name: "aten::log_softmax", overload: "int"}
	opGather      = &op{name: "aten::gather"}
	opReshape     = &op{name: "aten::reshape"}
	opSqueeze     = &op{name: "aten::squeeze", overload: "dim"}
	opUnsqueeze   = &op{name: "aten::unsqueeze"}
	opSelectRows  = &op{name: "rltrain::select_rows"}
	opLinear      = &op{name: "aten::linear"}
	opDetach      = &op{name: "aten::detach"}
	opTo          = &op{name: "aten::to", overload: "dtype"}
	opCopy        = &op{name: "aten::_to_copy"}
	opZeros       = &op{name: "aten::zeros"}
	opNarrow      = &op{name: "aten::narrow"}
	opCopyInto    = &op{name: "aten::copy_"}
	opSVD         = &op{name: "aten::linalg_svd"}
	opMatMul      = &op{name: "aten::mm"}
	opSegmentMean = &op{name: "rltrain::segment_mean"}
	opFrozen      = &op{name: "rltrain::linear"}
)

// Add is a + b.
func (s *Scope) Add(a, b Tensor) Tensor { return s.call(opAdd, operand(a), operand(b)) }

// Sub is a - b.
func (s *Scope) Sub(a, b Tensor) Tensor { return s.call(opSub, operand(a), operand(b)) }

// Mul is a · b, element by element.
func (s *Scope) Mul(a, b Tensor) Tensor { return s.call(opMul, operand(a), operand(b)) }

// SVD is u [m, k], the singular values [k] in descending order, and v [k, n] of a [m, n], k being the lesser of m and n:
// a = u · diag(values) · v.
func (s *Scope) SVD(a Tensor) (u, values, v Tensor) {
	var results [3]C.rlt_tensor
	s.callInto(results[:], opSVD, operand(a), boolean(false), none)
	return s.own(results[0]), s.own(results[1]), s.own(results[2])
}

// Scale is f · a.
func (s *Scope) Scale(a Tensor, f float64) Tensor {
	return s.call(opMulScalar, operand(a), scalar(f))
}

// Shift is a + f.
func (s *Scope) Shift(a Tensor, f float64) Tensor {
	return s.call(opAddScalar, operand(a), scalar(f))
}

// Neg is -a.
func (s *Scope) Neg(a Tensor) Tensor { return s.call(opNeg, operand(a)) }

// Exp is eᵃ.
func (s *Scope) Exp(a Tensor) Tensor { return s.call(opExp, operand(a)) }

// Expm1 is eᵃ − 1, accurate for small a.
func (s *Scope) Expm1(a Tensor) Tensor { return s.call(opExpm1, operand(a)) }

// Log is the natural logarithm.
func (s *Scope) Log(a Tensor) Tensor { return s.call(opLog, operand(a)) }

// Sigmoid is 1/(1 + e⁻ᵃ).
func (s *Scope) Sigmoid(a Tensor) Tensor { return s.call(opSigmoid, operand(a)) }

// LogSigmoid is −log(1 + e⁻ᵃ), finite for all a.
func (s *Scope) LogSigmoid(a Tensor) Tensor { return s.call(opLogSigmoid, operand(a)) }

// Tanh is the elementwise hyperbolic tangent.
func (s *Scope) Tanh(a Tensor) Tensor { return s.call(opTanh, operand(a)) }

// ReLU is max(a, 0).
func (s *Scope) ReLU(a Tensor) Tensor { return s.call(opReLU, operand(a)) }

// GELU is a·Φ(a), exact, with erf.
func (s *Scope) GELU(a Tensor) Tensor { return s.call(opGELU, operand(a)) }

// SiLU is a·sigmoid(a).
func (s *Scope) SiLU(a Tensor) Tensor { return s.call(opSiLU, operand(a)) }

// LayerNorm is (x - mean)/√(variance + eps)·w + b of each row (Ba 2016). x [S, H], w, b [H].
func (s *Scope) LayerNorm(x, w, b Tensor, eps float64) Tensor {
	return s.call(opLayerNorm, operand(x), integers(s.Shape(w)[0]), operand(w), operand(b), real64(eps))
}

// Clamp limits a to [low, high]; its gradient is 0 outside.
func (s *Scope) Clamp(a Tensor, low, high float64) Tensor {
	return s.call(opClamp, operand(a), scalar(low), scalar(high))
}

// Minimum is the smaller of a and b, element by element.
func (s *Scope) Minimum(a, b Tensor) Tensor { return s.call(opMinimum, operand(a), operand(b)) }

// Maximum is the larger of a and b, element by element.
func (s *Scope) Maximum(a, b Tensor) Tensor { return s.call(opMaximum, operand(a), operand(b)) }

// Sum is the sum of all elements, [].
func (s *Scope) Sum(a Tensor) Tensor { return s.call(opSum, operand(a)) }

// SumLast sums over the last dimension. a [..., C]; result [...].
func (s *Scope) SumLast(a Tensor) Tensor { return s.call(opSumDim, operand(a), integers(-1)) }

// LogSoftmax is log softmax over the last dimension.
func (s *Scope) LogSoftmax(a Tensor) Tensor { return s.call(opLogSoftmax, operand(a), integer(-1)) }

// Pick selects one element per row. a [S, C], index [S] int64 in [0, C); result [S].
func (s *Scope) Pick(a, index Tensor) Tensor {
	column := s.call(opUnsqueeze, operand(index), integer(1))
	picked := s.call(opGather, operand(a), integer(1), operand(column))
	return s.Squeeze(picked)
}

// Squeeze drops the last dimension, of size 1. a [S, 1]; result [S].
func (s *Scope) Squeeze(a Tensor) Tensor { return s.call(opSqueeze, operand(a), integer(-1)) }

// View reshapes a.
func (s *Scope) View(a Tensor, dims ...int64) Tensor {
	return s.call(opReshape, operand(a), integers(dims...))
}

// Rows selects rows by index. a [N, ...], index [S] int64, with repetitions allowed; result [S, ...].
func (s *Scope) Rows(a, index Tensor) Tensor {
	return s.call(opSelectRows, operand(a), operand(index))
}

// Linear is x wᵀ + b, all three trainable. x [S, in], w [out, in], b [out]; result [S, out].
func (s *Scope) Linear(x, w, b Tensor) Tensor {
	return s.call(opLinear, operand(x), operand(w), operand(b))
}

// FrozenLinear is Linear with a faster kernel that keeps x for backward only if w is trained.
func (s *Scope) FrozenLinear(x, w, b Tensor) Tensor {
	return s.call(opFrozen, operand(x), operand(w), operand(b))
}

// SegmentMean is the mean of each sequence's rows. x [N, H], cu [S+1] int32; result [S, H].
func (s *Scope) SegmentMean(x, cu Tensor) Tensor {
	return s.call(opSegmentMean, operand(x), operand(cu))
}

// MatMul is a b. a [M, K], b [K, N] of one type; result [M, N].
func (s *Scope) MatMul(a, b Tensor) Tensor { return s.call(opMatMul, operand(a), operand(b)) }

// Detach is a without gradient history.
func (s *Scope) Detach(a Tensor) Tensor { return s.call(opDetach, operand(a)) }

// Norm is the Euclidean norm of all elements, [].
func (s *Scope) Norm(a Tensor) Tensor { return s.call(opVectorNorm, operand(a)) }

// scalarTypes are the numbers of c10::ScalarType.
var scalarTypes = map[DType]int64{F32: 6, F16: 5, BF16: 15}

// to copies a as dtype, F32, BF16 or F16.
func (s *Scope) to(a Tensor, dtype DType) Tensor {
	const nonBlocking, copied = false, true
	return s.call(opTo, operand(a), integer(scalarTypes[dtype]), boolean(nonBlocking), boolean(copied))
}
