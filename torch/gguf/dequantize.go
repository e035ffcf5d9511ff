package gguf

import (
	"encoding/binary"
	"math"

	"github.com/rltrain/rltrain/internal/half"
)

// A conversion rounds every product to float32 separately: fused multiply-add would give other bits.

func half16(b []byte) float32 { return half.Float16(binary.LittleEndian.Uint16(b)) }

func fromF32(dst []float32, b []byte) { dst[0] = math.Float32frombits(binary.LittleEndian.Uint32(b)) }
func fromF16(dst []float32, b []byte) { dst[0] = half16(b) }
func fromBF16(dst []float32, b []byte) {
	dst[0] = half.BFloat16(binary.LittleEndian.Uint16(b))
}

// fromQ4_0: d, 16 bytes of two values each. w = d·(q − 8)
func fromQ4_0(dst []float32, b []byte) {
	d, qs := half16(b), b[2:18]
	for i, q := range qs {
		dst[i] = d * float32(int(q&15)-8)
		dst[i+16] = d * float32(int(q>>4)-8)
	}
}

// fromQ4_1: d, m, 16 bytes. w = d·q + m
func fromQ4_1(dst []float32, b []byte) {
	d, m, qs := half16(b), half16(b[2:]), b[4:20]
	for i, q := range qs {
		dst[i] = float32(d*float32(q&15)) + m
		dst[i+16] = float32(d*float32(q>>4)) + m
	}
}

// fifth returns the fifth bits of values i and i+16, at bit 4.
func fifth(high uint32, i int) (first, second byte) {
	return byte(high>>i&1) << 4, byte(high>>(i+16)&1) << 4
}

// fromQ5_0: d, 32 high bits, 16 bytes. w = d·(q − 16)
func fromQ5_0(dst []float32, b []byte) {
	d, high, qs := half16(b), binary.LittleEndian.Uint32(b[2:]), b[6:22]
	for i, q := range qs {
		h0, h1 := fifth(high, i)
		dst[i] = d * float32(int(q&15|h0)-16)
		dst[i+16] = d * float32(int(q>>4|h1)-16)
	}
}

// fromQ5_1: d, m, 32 high bits, 16 bytes. w = d·q + m
func fromQ5_1(dst []float32, b []byte) {
	d, m, high, qs := half16(b), half16(b[2:]), binary.LittleEndian.Uint32(b[4:]), b[8:24]
	for i, q := range qs {
		h0, h1 := fifth(high, i)
		dst[i] = float32(d*float32(q&15|h0)) + m
		dst[i+16] = float32(d*float32(q>>4|h1)) + m
	}
}

// fromQ8_0: d, 32 signed bytes. w = d·q
func fromQ8_0(dst []float32, b []byte) {
	d := half16(b)
	for i, q := range b[2:34] {
		dst[i] = d * float32(int8(q))
	}
}

// nonlinear are the 16 values of IQ4_NL.
var nonlinear = [16]float32{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}

// fromIQ4NL: d, 16 bytes of two numbers of nonlinear each.
func fromIQ4NL(dst []float32, b []byte) {
	d := half16(b)
	for i, q := range b[2:18] {
		dst[i] = d * nonlinear[q&15]
		dst[i+16] = d * nonlinear[q>>4]
	}
}
