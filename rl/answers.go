package rl

import (
	"fmt"

	"github.com/rltrain/rltrain/envs"
)

// AnswerScores says how well a policy answers the episodes of a task.
type AnswerScores struct {
	N        int      `json:"n"`
	Correct  int      `json:"correct"`
	Accuracy float64  `json:"accuracy"`
	Interval Interval `json:"interval"` // Wilson's, of the accuracy
	// Unfinished counts answers that are equal to the correct one and leave a calculation to do, such as 74 - 70. The
	// task's answer form decides whether they are among Correct.
	Unfinished int `json:"unfinished,omitempty"`
	// AnyForm counts Correct and Unfinished answers together, if there are Unfinished ones.
	AnyForm int `json:"any_form,omitempty"`
	// Doubted counts the correct answers that the strictest verifier of the task refuses.
	Doubted int `json:"doubted,omitempty"`
	// Accepted counts completions with the higher reward, if the policy is measured by rewards of two values; else nil.
	Accepted *int `json:"accepted,omitempty"`
	// FormatRate is the share of answers in the form that was asked for.
	FormatRate float64 `json:"format_rate"`
	// FoundBy is the fraction of answers by how they were found, including "none".
	FoundBy map[string]float64 `json:"tiers"`
	// Kinds has each kind of episode on its own, where the task tells kinds apart.
	Kinds map[string]KindScore `json:"kinds,omitempty"`
	// Reward is the mean reward, where that is what the policy is measured by.
	Reward      *float64 `json:"reward,omitempty"`
	RewardError float64  `json:"-"` // standard error of it
}

// Verified reports whether answers were compared with correct ones.
func (s AnswerScores) Verified() bool { return s.FoundBy["none"] < 1 }

// KindScore says how well episodes of one kind are answered.
type KindScore struct {
	N        int     `json:"n"`
	Correct  int     `json:"correct"`
	Accuracy float64 `json:"accuracy"`
}

// Weakest is the least accuracy of a kind, or where there are no kinds that of all episodes.
func (s AnswerScores) Weakest() float64 {
	least := s.Accuracy
	for _, kind := range s.Kinds {
		least = min(least, kind.Accuracy)
	}
	return least
}

// Forms are the accuracies with the answer forms final and any on one line; "" if they are equal.
func (s AnswerScores) Forms() string {
	if s.AnyForm == 0 {
		return ""
	}
	text := func(correct int) string {
		in := Wilson(correct, s.N)
		return fmt.Sprintf("%d/%d = %.1f %% (95 %% CI %.1f–%.1f)", correct, s.N, 100*ratio(correct, s.N), 100*in[0], 100*in[1])
	}
	return fmt.Sprintf("--answer-form final: %s, any: %s", text(s.AnyForm-s.Unfinished), text(s.AnyForm))
}

// ScoreAnswers counts the judgements of an evaluation. An episode that ended without
// one, nil, is neither correct nor formatted, and of tier none. Without episodes every
// figure is 0.
func ScoreAnswers(infos []*envs.Info) AnswerScores {
	s := AnswerScores{N: len(infos), FoundBy: map[string]float64{}}
	formatted, anyForm := 0, 0
	kinds := map[string]KindScore{}
	tiers := map[string]int{}
	for _, info := range infos {
		if info == nil {
			tiers["none"]++
			continue
		}
		tiers[info.FoundBy]++
		if info.Correct {
			s.Correct++
		}
		if info.Doubted {
			s.Doubted++
		}
		if info.Unfinished {
			s.Unfinished++
		}
		if info.Correct || info.Unfinished {
			anyForm++
		}
		if info.Kind != "" {
			kind := kinds[info.Kind]
			kind.N++
			if info.Correct {
				kind.Correct++
			}
			kind.Accuracy = ratio(kind.Correct, kind.N)
			kinds[info.Kind] = kind
		}
		if info.FormatOK {
			formatted++
		}
	}
	if s.Unfinished > 0 {
		s.AnyForm = anyForm
	}
	if s.N > 0 {
		s.Interval = Wilson(s.Correct, s.N)
	}
	s.Accuracy, s.FormatRate = ratio(s.Correct, s.N), ratio(formatted, s.N)
	if len(kinds) > 0 {
		s.Kinds = kinds
	}
	for tier, n := range tiers {
		s.FoundBy[tier] = ratio(n, s.N)
	}
	return s
}
