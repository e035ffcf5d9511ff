package half_test

import (
	"math"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/half"
)

// Every 16-bit value survives a round trip; NaNs stay NaNs.
func TestRoundTrip(t *testing.T) {
	for i := range 1 << 16 {
		h := uint16(i)
		if v := half.Float16(h); v == v && half.ToFloat16(v) != h || v != v && half.Float16(half.ToFloat16(v)) == half.Float16(half.ToFloat16(v)) {
			t.Fatalf("half %#x became %#x", h, half.ToFloat16(v))
		}
		if v := half.BFloat16(h); v == v && half.ToBFloat16(v) != h || v != v && half.BFloat16(half.ToBFloat16(v)) == half.BFloat16(half.ToBFloat16(v)) {
			t.Fatalf("bfloat16 %#x became %#x", h, half.ToBFloat16(v))
		}
	}
}

func TestRounding(t *testing.T) {
	for _, c := range []struct {
		v          float32
		half, bf16 uint16
	}{
		{1 + 1.0/2048, 0x3c00, 0x3f80}, {1 + 3.0/2048, 0x3c02, 0x3f80}, // ties to even
		{1 + 1.0/256, 0x3c04, 0x3f80}, {1 + 3.0/256, 0x3c0c, 0x3f82}, {65519, 0x7bff, 0x4780},
		{3.0 / (1 << 25), 0x0002, 0x33c0}, {math.MaxFloat32, 0x7c00, 0x7f80},
		{65520, 0x7c00, 0x4780}, {1e-8, 0, 0x322c}, {float32(math.Inf(-1)), 0xfc00, 0xff80}, {float32(math.Copysign(0, -1)), 0x8000, 0x8000},
	} {
		h, b := half.ToFloat16(c.v), half.ToBFloat16(c.v)
		expect.True(t, h == c.half && b == c.bf16, "%g: half %#x and bfloat16 %#x, want %#x and %#x", c.v, h, b, c.half, c.bf16)
	}
}
