// Package half converts between float32 and the two 16-bit floating-point formats.
package half

import "math"

// Float16 is the value of the IEEE 754 half h.
func Float16(h uint16) float32 {
	sign := uint32(h>>15) << 31
	exp, frac := uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exp {
	case 0: // zero and subnormals: frac · 2^-24, exact in float32
		v := float32(frac) * (1.0 / (1 << 24))
		return math.Float32frombits(math.Float32bits(v) | sign)
	case 0x1f: // infinities and NaN
		return math.Float32frombits(sign | 0xff<<23 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+127-15)<<23 | frac<<13)
}

// BFloat16 is the value of the bfloat16 b.
func BFloat16(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// ToFloat16 rounds v to the nearest half, ties to even; a value that is too large becomes infinite.
func ToFloat16(v float32) uint16 {
	b := math.Float32bits(v)
	sign := uint16(b >> 16 & 0x8000)
	exp, frac := int(b>>23&0xff)-127+15, b&0x7fffff
	switch {
	case v != v:
		return sign | 0x7e00
	case exp >= 0x1f:
		return sign | 0x7c00
	case exp <= 0: // subnormal: in steps of 2^-24
		steps := math.RoundToEven(math.Abs(float64(v)) * (1 << 24))
		return sign | uint16(steps)
	}
	// A carry out of the fraction increments the exponent, correctly, up to infinity.
	whole := uint32(exp)<<23 | frac
	return sign | uint16((whole+0xfff+whole>>13&1)>>13)
}

// ToBFloat16 rounds v to the nearest bfloat16, ties to even.
func ToBFloat16(v float32) uint16 {
	b := math.Float32bits(v)
	if v != v {
		return uint16(b>>16) | 0x40 // a quiet NaN, even if the remaining bits are zero
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}
