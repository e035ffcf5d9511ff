package evaluate

import "testing"

func TestTiesCountHalf(t *testing.T) {
	for margin, want := range map[float64]float64{0.1: 1, 0: 0.5, -3: 0} {
		if got := preferred(margin); got != want {
			t.Errorf("margin %v counts %v, want %v", margin, got, want)
		}
	}
}
