package rl

import (
	"rltrain/envs"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestScoreAnswers(t *testing.T) {
	got := ScoreAnswers([]*envs.Info{
		{Correct: true, Formatted: true, Tier: "tag"}, {Formatted: true, Tier: "tag"}, {Correct: true, Tier: "last_number"}, nil,
	})
	want := AnswerScores{N: 4, Correct: 2, Accuracy: 0.5, Interval: wilson(2, 4), FormatRate: 0.5,
		Tiers: map[string]float64{"tag": 0.5, "last_number": 0.25, "none": 0.25}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(AnswerScores{Tiers: map[string]float64{}}, ScoreAnswers(nil)); diff != "" {
		t.Error(diff)
	}
}
