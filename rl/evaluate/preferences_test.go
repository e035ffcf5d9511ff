package evaluate

import (
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/rl"
)

func TestTiesCountHalf(t *testing.T) {
	for margin, want := range map[float64]float64{0.1: 1, 0: 0.5, -3: 0} {
		expect.Same(t, want, preferred(margin), "margin %v counts", margin)
	}
}

// TestLinesOfScores: lines have percentages where scores have fractions.
func TestLinesOfScores(t *testing.T) {
	half, two := rl.Interval{0.25, 0.75}, rl.Estimate{Value: 2, Interval: rl.Interval{1, 3}}
	pairs := PreferenceScores{Loss: 7, Accuracy: rl.Estimate{Value: 0.5, Interval: half}, N: 8, Margin: two, Chosen: rl.Estimate{Value: -4}, Rejected: rl.Estimate{Value: -5}}
	rewards := RewardScores{Loss: 7, Accuracy: 0.5, Interval: half, N: 8, Margin: two, ECE: 0.125, Brier: 0.375}
	for line, more := range map[string]string{pairs.String(): "-4.00 chosen, -5.00 rejected", rewards.String(): "ECE 0.1250, Brier 0.3750"} {
		for _, part := range []string{"loss 7.0000", "accuracy 50.0 %", "25.0–75.0, n = 8", "margin 2.0000 (1.0000 to 3.0000)", more} {
			expect.True(t, strings.Contains(line, part), "%q lacks %q", line, part)
		}
	}
}
