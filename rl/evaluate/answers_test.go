package evaluate

import (
	"math"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
)

// TestMetricsRankPolicies scores two policies with fixed probabilities: under every metric, confidently right
// must beat confidently wrong.
func TestMetricsRankPolicies(t *testing.T) {
	truth := []int{0, 1, 2, 1}
	scores := func(right float32) LabelScores {
		probs := make([][]float32, len(truth))
		for i, y := range truth {
			probs[i] = []float32{(1 - right) / 2, (1 - right) / 2, (1 - right) / 2}
			probs[i][y] = right
		}
		return LabelScores{Evaluation: rl.Evaluate([]string{"a", "b", "c"}, truth, probs), Loss: crossEntropy(truth, probs), Reward: float64(right)}
	}
	good, bad := scores(0.9), scores(0.02)
	expect.True(t, math.Abs(good.Loss+math.Log(0.9)) <= 1e-6 && math.Abs(bad.Loss+math.Log(0.02)) <= 1e-6,
		"cross-entropies %v and %v", good.Loss, bad.Loss)
	for _, metric := range []string{MetricLoss, MetricAccuracy, MetricF1Macro, MetricF1Weighted, MetricBrier, MetricECE, MetricReward} {
		a := must.Get(good.by(metric))(t)
		b, err := bad.by(metric)
		expect.True(t, err == nil && a > b, "%s: %v of the good, %v of the bad, %v", metric, a, b, err)
	}
	_, err := good.by("luck")
	expect.True(t, err != nil, "luck is a metric")
	// The loss of an underflowed probability stays finite.
	loss := crossEntropy([]int{0}, [][]float32{{0, 1, 0}})
	expect.True(t, !math.IsInf(loss, 0) && loss >= 50, "the loss of an impossible label is %v", loss)
}
