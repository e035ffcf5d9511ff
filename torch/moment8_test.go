package torch

import (
	"math"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

// TestDynamicValues compares with bitsandbytes' create_dynamic_map: the number of values, the sums, and some of them.
func TestDynamicValues(t *testing.T) {
	for _, want := range []struct {
		signed     bool
		sum, sizes float64
		some       [3]float64 // 1, 100 and 200
	}{
		{true, 1, 75.10526317, [3]float64{-0.97890627, -0.00746875, 0.23359375}},
		{false, 75.10526324, 75.10526324, [3]float64{3.25e-7, 0.06273438, 0.61679685}},
	} {
		values := dynamicValues(want.signed)
		expect.Require(t, len(values) == 256, "signed %t: %d values", want.signed, len(values))
		var sum, sizes float64
		for _, v := range values {
			sum, sizes = sum+float64(v), sizes+math.Abs(float64(v))
		}
		expect.True(t, math.Abs(sum-want.sum) < 1e-5 && math.Abs(sizes-want.sizes) < 1e-5, "signed %t: sums %g and %g", want.signed, sum, sizes)
		for i, at := range []int{1, 100, 200} {
			expect.True(t, math.Abs(float64(values[at])-want.some[i]) < 1e-7, "signed %t: value %d is %g, want %g", want.signed, at, values[at], want.some[i])
		}
	}
}
