package safetensors

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"

	"github.com/rltrain/rltrain/internal/half"
)

// DType is a tensor's element type, as spelled in the file.
type DType string

// Element types with full bytes.
const (
	Bool   DType = "BOOL"
	U8     DType = "U8"
	I8     DType = "I8"
	F8E4M3 DType = "F8_E4M3"
	F8E5M2 DType = "F8_E5M2"
	I16    DType = "I16"
	U16    DType = "U16"
	F16    DType = "F16"
	BF16   DType = "BF16"
	I32    DType = "I32"
	U32    DType = "U32"
	F32    DType = "F32"
	F64    DType = "F64"
	I64    DType = "I64"
	U64    DType = "U64"
)

// Size is the size of an element in bytes, 0 for an unknown dtype.
func (d DType) Size() int64 {
	switch d {
	case Bool, U8, I8, F8E4M3, F8E5M2:
		return 1
	case I16, U16, F16, BF16:
		return 2
	case I32, U32, F32:
		return 4
	case F64, I64, U64:
		return 8
	}
	return 0
}

// byteSize is the size of a tensor in bytes. Negative dimensions, unknown dtypes and sizes above 2^63-1 are errors.
func byteSize(d DType, shape []int64) (int64, error) {
	size := d.Size()
	if size == 0 {
		return 0, fmt.Errorf("unknown dtype %.40q", string(d))
	}
	for _, dim := range shape {
		if dim < 0 {
			return 0, fmt.Errorf("negative dimension %d", dim)
		}
		hi, lo := bits.Mul64(uint64(size), uint64(dim))
		if hi != 0 || lo > math.MaxInt64 {
			return 0, fmt.Errorf("the shape is larger than 2^63 bytes")
		}
		size = int64(lo)
	}
	return size, nil
}

// widen converts little-endian float elements to float32. src holds len(dst) elements of d: F32, F16 or BF16.
func widen(dst []float32, d DType, src []byte) {
	switch d {
	case F32:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case BF16:
		for i := range dst {
			dst[i] = half.BFloat16(binary.LittleEndian.Uint16(src[2*i:]))
		}
	case F16:
		for i := range dst {
			dst[i] = half.Float16(binary.LittleEndian.Uint16(src[2*i:]))
		}
	}
}

// widens reports whether every element of d is exact in float32.
func (d DType) widens() bool { return d == F32 || d == F16 || d == BF16 }
