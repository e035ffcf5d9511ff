package torch

// Operators. Each panics with *Error where shapes or types do not fit; scalars broadcast as in libtorch.

var (
	opAdd         = &op{name: "aten::add", overload: "Tensor"}
	opSub         = &op{name: "aten::sub", overload: "Tensor"}
	opMul         = &op{name: "aten::mul", overload: "Tensor"}
	opMulScalar   = &op{name: "aten::mul", overload: "Scalar"}
	opAddScalar   = &op{name: "aten::add", overload: "Scalar"}
	opNeg         = &op{name: "aten::neg"}
	opExp         = &op{name: "aten::exp"}
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
	opSqueeze     = &op{name: "aten::squeeze", overload: "dim"}
	opUnsqueeze   = &op{name: "aten::unsqueeze"}
	opIndexSelect = &op{name: "aten::index_select"}
	opLinear      = &op{name: "aten::linear"}
	opDetach      = &op{name: "aten::detach"}
	opTo          = &op{name: "aten::to", overload: "dtype"}
	opSegmentMean = &op{name: "rltrain::segment_mean"}
	opFrozen      = &op{name: "rltrain::linear"}
)

// Add is a + b.
func (s *Scope) Add(a, b Tensor) Tensor { return s.argTensor(a).argTensor(b).call(opAdd) }

// Sub is a - b.
func (s *Scope) Sub(a, b Tensor) Tensor { return s.argTensor(a).argTensor(b).call(opSub) }

// Mul is a · b, element by element.
func (s *Scope) Mul(a, b Tensor) Tensor { return s.argTensor(a).argTensor(b).call(opMul) }

// Scale is f · a.
func (s *Scope) Scale(a Tensor, f float64) Tensor {
	return s.argTensor(a).argScalar(f).call(opMulScalar)
}

// Shift is a + f.
func (s *Scope) Shift(a Tensor, f float64) Tensor {
	return s.argTensor(a).argScalar(f).call(opAddScalar)
}

// Neg is -a.
func (s *Scope) Neg(a Tensor) Tensor { return s.argTensor(a).call(opNeg) }

// Exp is eᵃ.
func (s *Scope) Exp(a Tensor) Tensor { return s.argTensor(a).call(opExp) }

// Tanh is elementwise.
func (s *Scope) Tanh(a Tensor) Tensor { return s.argTensor(a).call(opTanh) }

// ReLU is max(a, 0).
func (s *Scope) ReLU(a Tensor) Tensor { return s.argTensor(a).call(opReLU) }

// GELU is a·Φ(a), the exact one with erf.
func (s *Scope) GELU(a Tensor) Tensor { return s.argTensor(a).call(opGELU) }

// SiLU is a·sigmoid(a).
func (s *Scope) SiLU(a Tensor) Tensor { return s.argTensor(a).call(opSiLU) }

// LayerNorm is (x - mean)/√(variance + eps)·w + b of each row (Ba 2016). x [S, H], w, b [H].
func (s *Scope) LayerNorm(x, w, b Tensor, eps float64) Tensor {
	return s.argTensor(x).argInts(s.Shape(w)[0]).argTensor(w).argTensor(b).argDouble(eps).call(opLayerNorm)
}

// Clamp limits a to [low, high]; its gradient is 0 outside.
func (s *Scope) Clamp(a Tensor, low, high float64) Tensor {
	return s.argTensor(a).argScalar(low).argScalar(high).call(opClamp)
}

// Minimum is the smaller of a and b, element by element.
func (s *Scope) Minimum(a, b Tensor) Tensor { return s.argTensor(a).argTensor(b).call(opMinimum) }

// Maximum is the larger of a and b, element by element.
func (s *Scope) Maximum(a, b Tensor) Tensor { return s.argTensor(a).argTensor(b).call(opMaximum) }

// Sum is the sum of all elements, [].
func (s *Scope) Sum(a Tensor) Tensor { return s.argTensor(a).call(opSum) }

// SumLast sums over the last dimension. a [..., C]; result [...].
func (s *Scope) SumLast(a Tensor) Tensor { return s.argTensor(a).argInts(-1).call(opSumDim) }

// LogSoftmax is log softmax over the last dimension.
func (s *Scope) LogSoftmax(a Tensor) Tensor { return s.argTensor(a).argInt(-1).call(opLogSoftmax) }

// Pick takes one element of each row. a [S, C], index [S] int64 in [0, C); result [S].
func (s *Scope) Pick(a, index Tensor) Tensor {
	column := s.argTensor(index).argInt(1).call(opUnsqueeze)
	picked := s.argTensor(a).argInt(1).argTensor(column).call(opGather)
	return s.Squeeze(picked)
}

// Squeeze drops the last dimension, of size 1. a [S, 1]; result [S].
func (s *Scope) Squeeze(a Tensor) Tensor { return s.argTensor(a).argInt(-1).call(opSqueeze) }

// Rows takes rows by number. a [N, H], index [S] int64; result [S, H].
func (s *Scope) Rows(a, index Tensor) Tensor {
	return s.argTensor(a).argInt(0).argTensor(index).call(opIndexSelect)
}

// Linear is x wᵀ + b, all three trainable. x [S, in], w [out, in], b [out]; result [S, out].
func (s *Scope) Linear(x, w, b Tensor) Tensor {
	return s.argTensor(x).argTensor(w).argTensor(b).call(opLinear)
}

// FrozenLinear is Linear by a kernel that is faster and keeps x for backward only where w is trained.
func (s *Scope) FrozenLinear(x, w, b Tensor) Tensor {
	return s.argTensor(x).argTensor(w).argTensor(b).call(opFrozen)
}

// SegmentMean is the mean of each sequence's rows. x [N, H], cu [S+1] int32; result [S, H].
func (s *Scope) SegmentMean(x, cu Tensor) Tensor {
	return s.argTensor(x).argTensor(cu).call(opSegmentMean)
}

// Detach is a without its history: no gradient flows through it.
func (s *Scope) Detach(a Tensor) Tensor { return s.argTensor(a).call(opDetach) }

// Norm is the Euclidean norm of all elements, [].
func (s *Scope) Norm(a Tensor) Tensor { return s.argTensor(a).call(opVectorNorm) }

// to copies a as dtype, F32, BF16 or F16.
func (s *Scope) to(a Tensor, dtype DType) Tensor {
	scalarType := map[DType]int64{F32: 6, F16: 5, BF16: 15}[dtype] // c10::ScalarType
	const nonBlocking, copied = false, true
	return s.argTensor(a).argInt(scalarType).argBool(nonBlocking).argBool(copied).call(opTo)
}
