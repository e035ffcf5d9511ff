package gguf

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

// Type is the storage type of a tensor, by its name in llama.cpp: "F32", "Q4_K".
type Type string

// The types that this package reads.
const (
	F32   Type = "F32"
	F16   Type = "F16"
	BF16  Type = "BF16"
	Q4_0  Type = "Q4_0"
	Q4_1  Type = "Q4_1"
	Q5_0  Type = "Q5_0"
	Q5_1  Type = "Q5_1"
	Q8_0  Type = "Q8_0"
	Q2_K  Type = "Q2_K"
	Q3_K  Type = "Q3_K"
	Q4_K  Type = "Q4_K"
	Q5_K  Type = "Q5_K"
	Q6_K  Type = "Q6_K"
	IQ4NL Type = "IQ4_NL"
)

// A format says how a type is stored: bytes per block of values.
type format struct {
	id     uint32
	values int // in a block
	bytes  int // of a block
	// dequantize writes the values of one block.
	dequantize func(dst []float32, block []byte)
	// quantize encodes the values of one block; nil if this package does not write the type.
	quantize func(dst []byte, values []float32)
}

const (
	small = 32  // values in a block of the older types
	super = 256 // values in a block of the K types
)

var formats = map[Type]format{
	F32:   {0, 1, 4, fromF32, toF32},
	F16:   {1, 1, 2, fromF16, toF16},
	Q4_0:  {2, small, 18, fromQ4_0, toQ4_0},
	Q4_1:  {3, small, 20, fromQ4_1, toQ4_1},
	Q5_0:  {6, small, 22, fromQ5_0, toQ5_0},
	Q5_1:  {7, small, 24, fromQ5_1, nil},
	Q8_0:  {8, small, 34, fromQ8_0, toQ8_0},
	Q2_K:  {10, super, 84, fromQ2_K, nil},
	Q3_K:  {11, super, 110, fromQ3_K, nil},
	Q4_K:  {12, super, 144, fromQ4_K, toQ4_K},
	Q5_K:  {13, super, 176, fromQ5_K, nil},
	Q6_K:  {14, super, 210, fromQ6_K, nil},
	IQ4NL: {20, small, 18, fromIQ4NL, nil},
	BF16:  {30, 1, 2, fromBF16, toBF16},
}

// others are types of llama.cpp that this package does not read, for errors.
var others = map[uint32]string{
	9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS",
	24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}

var typeOf = func() map[uint32]Type {
	types := map[uint32]Type{}
	for t, f := range formats {
		types[f.id] = t
	}
	return types
}()

func readType(id uint32) (Type, error) {
	if t, ok := typeOf[id]; ok {
		return t, nil
	}
	var list []string
	for t := range formats {
		list = append(list, string(t))
	}
	slices.Sort(list)
	name := others[id]
	if name == "" {
		name = fmt.Sprintf("number %d", id)
	}
	return "", fmt.Errorf("type %s is not supported, want one of %s", name, strings.Join(list, ", "))
}

// Packed reports whether a type stores values in blocks.
func (t Type) Packed() bool { return formats[t].values > 1 }

// Block returns the values and bytes per block.
func (t Type) Block() (values, bytes int) { return formats[t].values, formats[t].bytes }

// sizeOf returns the number of values and bytes of a tensor of this shape.
func (t Type) sizeOf(shape []int64) (values, bytes int64, err error) {
	n := uint64(1)
	for _, d := range shape {
		hi, lo := bits.Mul64(n, uint64(d))
		if d < 1 || hi != 0 || lo > 1<<60 {
			return 0, 0, fmt.Errorf("shape %v has a dimension below 1 or more than 2^60 values", shape)
		}
		n = lo
	}
	f := formats[t]
	if row := shape[len(shape)-1]; row%int64(f.values) != 0 {
		return 0, 0, fmt.Errorf("rows of %d values are not a multiple of the %d in a block of %s", row, f.values, t)
	}
	return int64(n), int64(n) / int64(f.values) * int64(f.bytes), nil
}
