package rl_test

import (
	"testing"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/answer"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/rl"
)

func TestScoreAnswers(t *testing.T) {
	got := rl.ScoreAnswers([]*envs.Info{
		{Correct: true, FormatOK: true, FoundBy: "tag"}, {FormatOK: true, FoundBy: "tag"}, {Correct: true, FoundBy: "last_number"}, nil,
	})
	want := rl.AnswerScores{N: 4, Correct: 2, Accuracy: 0.5, Interval: rl.Wilson(2, 4), FormatRate: 0.5,
		FoundBy: map[string]float64{"tag": 0.5, "last_number": 0.25, "none": 0.25}}
	expect.Equal(t, want, got)
	expect.Equal(t, rl.AnswerScores{FoundBy: map[string]float64{}}, rl.ScoreAnswers(nil))
	expect.Same(t, 0.5, got.Weakest(), "without kinds the weakest is %v, want the accuracy", got.Weakest())
}

func TestKindsAreScoredApart(t *testing.T) {
	got := rl.ScoreAnswers([]*envs.Info{
		{Correct: true, Kind: "2x1"}, {Correct: true, Kind: "2x1"}, {Kind: "4x3"}, {Correct: true, Kind: "4x3"}, {Kind: "4x3"}, nil,
	})
	want := map[string]rl.KindScore{"2x1": {2, 2, 1}, "4x3": {3, 1, 1. / 3}}
	expect.Equal(t, want, got.Kinds)
	expect.True(t, got.Weakest() == 1./3 && got.Accuracy == 0.5, "the weakest %v of accuracy %v", got.Weakest(), got.Accuracy)
}

// TestForms: an unfinished answer counts only with AnyForm, and the line has both accuracies.
func TestForms(t *testing.T) {
	for _, form := range []answer.Form{answer.FinalForm, answer.AnyForm} {
		infos := []*envs.Info{{Correct: true, Answer: "74 - 70", Truth: "4"}, {Correct: true, Answer: "4", Truth: "4"}, {Answer: "5", Truth: "4"}, {Answer: "5 - 0", Truth: "4"}}
		for _, info := range infos {
			info.CheckForm(form)
		}
		s := rl.ScoreAnswers(infos)
		expect.Same(t, "--answer-form final: 1/4 = 25.0 % (95 % CI 4.6–69.9), any: 2/4 = 50.0 % (95 % CI 15.0–85.0)", s.Forms(),
			"%s", form)
		want := map[answer.Form]int{answer.FinalForm: 0, answer.AnyForm: 1}[form]
		expect.True(t, s.Doubted == want, "%s: %d doubted, want %d", form, s.Doubted, want)
	}
	expect.Same(t, "", rl.ScoreAnswers([]*envs.Info{{Correct: true}}).Forms(), "equal accuracies are both printed")
}
