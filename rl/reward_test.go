package rl

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"rltrain/envs"
)

func lengthReward(_ context.Context, c envs.Completion) (float64, error) {
	return float64(len(c.Text)), nil
}

func TestRewards(t *testing.T) {
	stuck := make(chan struct{})
	defer close(stuck)
	moody := func(_ context.Context, c envs.Completion) (float64, error) {
		switch c.Text {
		case "hang":
			<-stuck // ignores its context
		case "error":
			return 0, errors.New("no")
		case "panic":
			panic("at once")
		case "nan":
			return math.NaN(), nil
		}
		return 1, nil
	}
	rewards, err := NewRewards(
		WeightedReward{Name: "length", Weight: 0.5, Judge: lengthReward},
		WeightedReward{Name: "mood", Weight: 2, Timeout: 20 * time.Millisecond, Judge: moody},
	)
	if err != nil {
		t.Fatal(err)
	}
	var completions []envs.Completion
	for _, text := range []string{"a", "hang", "error", "panic", "nan", "abc"} {
		completions = append(completions, envs.Completion{Text: text})
	}
	got, err := rewards.Score(t.Context(), completions, 3)
	if err != nil {
		t.Fatal(err)
	}
	want := Scores{
		Total: []float64{2.5, nan, nan, nan, nan, 3.5},
		Rewards: []RewardScores{
			// mean 21/6 = 3.5; squares 6.25+.25+2.25+2.25+.25+.25 = 11.5
			{Name: "length", Values: []float64{1, 4, 5, 5, 3, 3}, Mean: 3.5, Std: math.Sqrt(11.5 / 5)},
			{Name: "mood", Values: []float64{1, nan, nan, nan, nan, 1}, Mean: 1, Failures: 4, Failure: "reward mood: no answer within 20ms"},
		},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateNaNs(), cmpopts.EquateApprox(0, 1e-12)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRewardsStopWithTheRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	rewards, err := NewRewards(WeightedReward{Name: "r", Weight: 1, Judge: func(ctx context.Context, _ envs.Completion) (float64, error) {
		cancel()
		<-ctx.Done()
		return 0, ctx.Err()
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rewards.Score(ctx, make([]envs.Completion, 3), 1); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestNewRewardsRefuses(t *testing.T) {
	ok := WeightedReward{Name: "a", Weight: 1, Judge: lengthReward}
	for want, list := range map[string][]WeightedReward{
		"empty":        nil,
		"given twice":  {ok, ok},
		"no name":      {{Weight: 1, Judge: lengthReward}},
		"weight 0":     {{Name: "a", Judge: lengthReward}},
		"weight NaN":   {{Name: "a", Weight: nan, Judge: lengthReward}},
		"timeout -1ns": {{Name: "a", Weight: 1, Timeout: -1, Judge: lengthReward}},
	} {
		if _, err := NewRewards(list...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

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

func TestScoreAnswersByKind(t *testing.T) {
	got := ScoreAnswers([]*envs.Info{{Correct: true, Kind: "easy"}, {Correct: true, Kind: "easy"}, {Kind: "hard"}, {Correct: true, Kind: "hard"}, nil})
	want := map[string]KindScore{"easy": {N: 2, Correct: 2, Accuracy: 1}, "hard": {N: 2, Correct: 1, Accuracy: 0.5}}
	if diff := cmp.Diff(want, got.Kinds); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, test := range []struct {
		scores AnswerScores
		want   float64
	}{
		{got, 0.5},
		{AnswerScores{Accuracy: 0.3}, 0.3},
		{AnswerScores{Accuracy: 0.8, Kinds: map[string]KindScore{"a": {N: 9, Correct: 9, Accuracy: 1}, "b": {N: 2}}}, 0},
	} {
		if least := test.scores.Weakest(); least != test.want {
			t.Errorf("the weakest kind of %+v has %g, want %g", test.scores, least, test.want)
		}
	}
}
