package rl

import "rltrain/envs"

// AnswerScores says how well a policy answers the episodes of a task.
type AnswerScores struct {
	N        int      `json:"n"`
	Correct  int      `json:"correct"`
	Accuracy float64  `json:"accuracy"`
	Interval Interval `json:"interval"` // Wilson's, of the accuracy
	// FormatRate is the share of answers in the form that was asked for.
	FormatRate float64 `json:"format_rate"`
	// Tiers is the share of answers found in each way, "none" among them.
	Tiers map[string]float64 `json:"tiers"`
}

// ScoreAnswers counts the judgements of an evaluation. An episode that ended without
// one, nil, is neither correct nor formatted, and of tier none. Without episodes every
// figure is 0.
func ScoreAnswers(infos []*envs.Info) AnswerScores {
	s := AnswerScores{N: len(infos), Tiers: map[string]float64{}}
	formatted := 0
	tiers := map[string]int{}
	for _, info := range infos {
		if info == nil {
			tiers["none"]++
			continue
		}
		tiers[info.Tier]++
		if info.Correct {
			s.Correct++
		}
		if info.Formatted {
			formatted++
		}
	}
	if s.N > 0 {
		s.Interval = wilson(s.Correct, s.N)
	}
	s.Accuracy, s.FormatRate = ratio(s.Correct, s.N), ratio(formatted, s.N)
	for tier, n := range tiers {
		s.Tiers[tier] = ratio(n, s.N)
	}
	return s
}
