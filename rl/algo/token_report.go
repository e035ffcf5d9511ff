package algo

import (
	"slices"

	"rltrain/rl"
	"rltrain/rl/report"
)

// alarms tells of those that were not raised the step before.
func (h Hooks) alarms(history []rl.Health) error {
	limits := rl.DefaultAlarmLimits()
	before := rl.Alarms(history[:len(history)-1], limits)
	for _, alarm := range rl.Alarms(history, limits) {
		if slices.ContainsFunc(before, func(a rl.Alarm) bool { return a.Name == alarm.Name }) {
			continue
		}
		if err := h.log("warning: %s: %s", alarm.Name, alarm.Text); err != nil {
			return err
		}
	}
	return nil
}

// evaluated writes the line and the row of an evaluation.
func (h Hooks) evaluated(step int, version uint64, best int, scores rl.AnswerScores) error {
	if err := h.row(report.Row{
		"step": step, "policy_version": version, "eval_accuracy": scores.Accuracy, "eval_format_rate": scores.FormatRate,
	}); err != nil {
		return err
	}
	return h.log("Evaluation: %d/%d correct (%.1f %%, 95 %% interval %.1f to %.1f), %.1f %% formatted (best step: %d)",
		scores.Correct, scores.N, 100*scores.Accuracy, 100*scores.Interval[0], 100*scores.Interval[1], 100*scores.FormatRate, best)
}
