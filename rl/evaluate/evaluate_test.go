package evaluate

import (
	"encoding/json"
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
	expect.True(t, math.Abs(good.Loss+math.Log(0.9)) <= 1e-6 && math.Abs(bad.Loss+math.Log(0.02)) <= 1e-6, "cross-entropies %v and %v", good.Loss, bad.Loss)
	for _, metric := range []string{MetricLoss, MetricAccuracy, MetricF1Macro, MetricF1Weighted, MetricBrier, MetricECE, MetricReward} {
		a := must.Get(good.by(metric))(t)
		b, err := bad.by(metric)
		expect.True(t, err == nil && a > b, "%s: %v of the good, %v of the bad, %v", metric, a, b, err)
	}
	expect.Fails(good.by("luck"))(t, "luck is a metric")
	// The loss of an underflowed probability stays finite.
	loss := crossEntropy([]int{0}, [][]float32{{0, 1, 0}})
	expect.True(t, !math.IsInf(loss, 0) && loss >= 50, "the loss of an impossible label is %v", loss)
}

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
		expect.Contains(t, line, "loss 7.0000", "accuracy 50.0 %", "25.0–75.0, n = 8", "margin 2.0000 (1.0000 to 3.0000)", more)
	}
}

// A run keeps its evaluations in its state: what they say must not change on the way.
func TestScoresFromFile(t *testing.T) {
	reward := 1.5
	s := rl.AnswerScores{N: 4, Reward: &reward, RewardError: 0.5, FoundBy: map[string]float64{"none": 1}}
	kept := must.Into[rl.AnswerScores](t, json.Unmarshal, must.Get(json.Marshal(s))(t))
	expect.Equal(t, "mean reward 1.5000 (n = 4, 95 % CI 0.5200–2.4800)", DescribeAnswers(kept))
}
