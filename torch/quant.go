package torch

// #include "loader.h"
import "C"

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"unsafe"
)

// QuantType is how a frozen linear weight [out, in] is quantised: rows of blocks, each block with its scale. A model
// takes it under a name such as "layers.0.q.nf4" instead of "layers.0.q.weight", on the CPU only. Its products, in
// training and in an [Engine], are bit-identical to those of the weight that it dequantises to: in bfloat16, or in
// float32 if the processor has no bfloat16 products. An output layer, "head.nf4", is always bfloat16.
type QuantType string

// The types, with their numbers in rltrain.h.
const (
	Int8 QuantType = "int8" // w = q·absmax/127, one absmax per row
	NF4  QuantType = "nf4"  // the 4 bits of QLoRA (Dettmers et al. 2023) in blocks of 64, w = code[q]·absmax
	Q4_0 QuantType = "q4_0" // GGUF types, which the core only reads
	Q4_1 QuantType = "q4_1"
	Q8_0 QuantType = "q8_0"
	Q4_K QuantType = "q4_k"
	Q6_K QuantType = "q6_k"
)

var quantTypes = []struct {
	t                     QuantType
	values, bytes, header int64
}{{Int8, 1, 1, 4}, {NF4, 64, 36, 0}, {Q4_0, 32, 18, 0}, {Q4_1, 32, 20, 0}, {Q8_0, 32, 34, 0}, {Q4_K, 256, 144, 0}, {Q6_K, 256, 210, 0}}

var (
	opQuantize   = &op{name: "rltrain::quantize"}
	opDequantize = &op{name: "rltrain::dequantize"}
)

// number returns the type's number in rltrain.h, 0 if unknown.
func (t QuantType) number() int64 {
	for i, q := range quantTypes {
		if q.t == t {
			return int64(i) + 1
		}
	}
	return 0
}

// Known reports whether the core has the type.
func (t QuantType) Known() bool { return t.number() > 0 }

// RowBytes returns the size of a row of in values; 0 if blocks do not divide it.
func (t QuantType) RowBytes(in int64) int64 {
	n := t.number()
	if n == 0 || in < 1 || in%quantTypes[n-1].values != 0 {
		return 0
	}
	q := quantTypes[n-1]
	return q.header + in/q.values*q.bytes
}

// Quantize returns v, a weight [out, in] of F32, BF16 or F16, as rows of blocks of t, Int8 or NF4. Errors: an in that
// the blocks do not divide.
func (v *Var) Quantize(t QuantType) (quantized *Var, err error) {
	err = Do(NoGrad, func(s *Scope) error {
		quantized = s.Keep(s.call(opQuantize, operand(v.T()), integer(t.number())))
		return nil
	})
	return quantized, err
}

// Dequantize returns the weight [out, in] stored in v as rows of blocks of t: in F32 exactly as t defines it, or in BF16.
func (v *Var) Dequantize(t QuantType, in int64, dtype DType) (dense *Var, err error) {
	return v.dequantize(t, in, integer(scalarTypes[dtype]))
}

// DequantizeAsUsed is Dequantize to the values, and the dtype, by which layers multiply.
func (v *Var) DequantizeAsUsed(t QuantType, in int64) (dense *Var, err error) {
	return v.dequantize(t, in, none)
}

func (v *Var) dequantize(t QuantType, in int64, as arg) (dense *Var, err error) {
	err = Do(NoGrad, func(s *Scope) error {
		dense = s.Keep(s.call(opDequantize, operand(v.T()), integer(t.number()), integer(in), as))
		return nil
	})
	return dense, err
}

// Blocks copies rows of blocks of t, row-major, into a Var for NewModel. Errors: data is not out rows of in values.
func (t QuantType) Blocks(data []byte, out, in int64) (v *Var, err error) {
	row := t.RowBytes(in)
	if row == 0 || int64(len(data)) != out*row {
		return nil, fmt.Errorf("torch: %d bytes are not %d rows of %d values of %s, %d bytes each", len(data), out, in, t, row)
	}
	err = Do(NoGrad, func(s *Scope) error {
		v = s.Keep(s.own(newTensor("Blocks", unsafe.Pointer(unsafe.SliceData(data)), len(data), U8, Device{}, []int64{out, row})))
		return nil
	})
	return v, err
}

// ReadBytes copies rows of blocks out, row-major.
func (v *Var) ReadBytes() (data []byte, err error) {
	err = Do(NoGrad, func(s *Scope) error {
		data = make([]byte, elements(s.Shape(v.T())))
		must("ReadBytes", C.rlt_tensor_read(v.handle, C.RLT_U8, unsafe.Pointer(unsafe.SliceData(data)), C.int64_t(len(data))))
		return nil
	})
	return data, err
}

// JoinNF4 returns rows of NF4 from the tensors that bitsandbytes stores: codes, two per byte with the first in the high
// half, and the absmax of each 64 values. Errors: blocks that cross rows.
func JoinNF4(codes []byte, absmax []float32, in int64) ([]byte, error) {
	if in%64 != 0 || len(codes) != 32*len(absmax) {
		return nil, fmt.Errorf("torch: %d bytes of codes and %d scales are no nf4 rows of %d values, a multiple of 64", len(codes), len(absmax), in)
	}
	rows := make([]byte, 0, 36*len(absmax))
	for block := range slices.Chunk(codes, 32) {
		rows = binary.LittleEndian.AppendUint32(rows, math.Float32bits(absmax[0]))
		rows = append(rows, block...)
		absmax = absmax[1:]
	}
	return rows, nil
}

// JoinInt8 returns rows of Int8 from the tensors that bitsandbytes stores: values [out, in], and the absmax of each
// row.
func JoinInt8(values []byte, absmax []float32) ([]byte, error) {
	if len(absmax) == 0 || len(values)%len(absmax) != 0 {
		return nil, fmt.Errorf("torch: %d values and %d scales are no int8 rows", len(values), len(absmax))
	}
	var rows []byte
	for row := range slices.Chunk(values, max(1, len(values)/len(absmax))) {
		rows = binary.LittleEndian.AppendUint32(rows, math.Float32bits(absmax[0]))
		rows = append(rows, row...)
		absmax = absmax[1:]
	}
	return rows, nil
}
