package torch

import (
	"math"
	"slices"
)

var (
	opIndexSelect = &op{name: "aten::index_select"}
	opAbs         = &op{name: "aten::abs"}
	opAMax        = &op{name: "aten::amax"}
	opBucketize   = &op{name: "aten::bucketize", overload: "Tensor"}
)

const (
	block8    = 256  // values that share a scale
	minimum8  = 4096 // values of the smallest tensor whose moments are kept in 8 bits
	part8     = 4096 // blocks whose moments are in fp32 at a time
	byteType  = 0    // of c10::ScalarType
	int32Type = 3
)

// moment8 is a moment in 8 bits: numbers of a dynamic map's values, and the largest magnitude of each block.
type moment8 struct {
	codes  *Var // [blocks, block8] uint8
	scales *Var // [blocks, 1]
}

// fitsMoment8 says whether the moments of n values are kept in 8 bits.
func fitsMoment8(n int64) bool { return n >= minimum8 && n%block8 == 0 }

func (s *Scope) newMoment8(n int64) *moment8 {
	return &moment8{codes: s.Keep(s.zeros(byteType, n/block8, block8)), scales: s.Keep(s.zeros(scalarTypes[F32], n/block8, 1))}
}

// dynamicMap is a sorted list of 256 values between -1, or 0, and 1, and what lies halfway between them.
type dynamicMap struct{ values, halves *Var }

// dynamicMaps are those of the first moment, which is signed, and the second.
type dynamicMaps struct{ first, second dynamicMap }

func newDynamicMaps(s *Scope) *dynamicMaps {
	of := func(signed bool) dynamicMap {
		values := dynamicValues(signed)
		halves := make([]float32, len(values)-1)
		for i := range halves {
			halves[i] = float32((float64(values[i]) + float64(values[i+1])) / 2)
		}
		return dynamicMap{s.Keep(s.Floats(values, int64(len(values)))), s.Keep(s.Floats(halves, int64(len(halves))))}
	}
	return &dynamicMaps{first: of(true), second: of(false)}
}

func (m *dynamicMaps) close() {
	CloseAll(m.first.values, m.first.halves, m.second.values, m.second.halves)
}

// dynamicValues are bitsandbytes' create_dynamic_map (Dettmers 2016, "8-Bit Approximations for Parallelism in Deep Learning"): for each
// power of ten from -6 to 0, the middles of 2ⁱ equal parts of [0.1, 1] times that power, of either sign; 2ⁱ⁺¹ parts without a sign.
func dynamicValues(signed bool) []float32 {
	values := []float32{0, 1}
	for i := range 7 {
		parts := 1 << i
		if !signed {
			parts *= 2
		}
		power := math.Pow(10, float64(i-6))
		for k := range parts {
			value := float32(power * (0.1 + 0.9*(float64(k)+0.5)/float64(parts)))
			values = append(values, value)
			if signed {
				values = append(values, -value)
			}
		}
	}
	slices.Sort(values)
	return values
}

// part is n rows of a tensor, from one on.
func (s *Scope) part(t Tensor, from, n int64) Tensor {
	return s.call(opNarrow, operand(t), integer(0), integer(from), integer(n))
}

// dequantize is n blocks of the moment, from one on, [n, block8].
func (s *Scope) dequantize(m *moment8, by dynamicMap, from, n int64) Tensor {
	const nonBlocking, copied = false, false
	codes := s.call(opTo, operand(s.View(s.part(m.codes.T(), from, n), -1)), integer(int32Type), boolean(nonBlocking), boolean(copied))
	values := s.View(s.call(opIndexSelect, operand(by.values.T()), integer(0), operand(codes)), n, block8)
	return s.Mul(values, s.part(m.scales.T(), from, n))
}

// quantize overwrites blocks of m, from one on.
func (s *Scope) quantize(m *moment8, by dynamicMap, from int64, blocks Tensor) {
	const keep, asInt32, right = true, true, false
	n := s.Shape(blocks)[0]
	scales := s.call(opAMax, operand(s.call(opAbs, operand(blocks))), integers(1), boolean(keep))
	divisor := s.call(opClamp, operand(scales), scalar(math.SmallestNonzeroFloat32), none) // of blocks of zeros
	codes := s.call(opBucketize, operand(s.call(opDivTensor, operand(blocks), operand(divisor))), operand(by.halves.T()), boolean(asInt32), boolean(right))
	s.call(opCopyInto, operand(s.part(m.codes.T(), from, n)), operand(codes))
	s.call(opCopyInto, operand(s.part(m.scales.T(), from, n)), operand(scales))
}

// move8 moves a parameter whose moments are kept in 8 bits, as bitsandbytes' AdamW8bit does, a part at a time: the moments of all of it
// in fp32 would take more memory than the 8 bits save.
func (o *Optimizer) move8(p, grad Tensor, state *optimizerState, rate, decay float64) error {
	elements, err := state.first8.codes.Elements()
	if err != nil {
		return err
	}
	blocks, count := elements/block8, []Tensor{state.count.T()}
	for from := int64(0); from < blocks; from += part8 {
		n := min(part8, blocks-from)
		if err := Do(NoGrad, func(s *Scope) error {
			if from == 0 {
				s.callInto(nil, opForeachAdd, operands(count), scalar(1))
			}
			part := func(t Tensor) []Tensor { return []Tensor{s.part(s.View(t, -1, block8), from, n)} }
			first, second := s.dequantize(state.first8, o.states8.first, from, n), s.dequantize(state.second8, o.states8.second, from, n)
			o.adamW(s, part(p), part(grad), []Tensor{first}, []Tensor{second}, count, rate, decay)
			s.quantize(state.first8, o.states8.first, from, first)
			s.quantize(state.second8, o.states8.second, from, second)
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}
