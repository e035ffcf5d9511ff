package gguf

import (
	"encoding/binary"
	"math"

	"github.com/rltrain/rltrain/internal/half"
)

func toF32(dst []byte, v []float32) { binary.LittleEndian.PutUint32(dst, math.Float32bits(v[0])) }
func toF16(dst []byte, v []float32) { binary.LittleEndian.PutUint16(dst, half.ToFloat16(v[0])) }
func toBF16(dst []byte, v []float32) {
	binary.LittleEndian.PutUint16(dst, half.ToBFloat16(v[0]))
}
