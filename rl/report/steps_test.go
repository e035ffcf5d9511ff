package report_test

import (
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/rl/report"
)

func TestStepLine(t *testing.T) {
	rollout := report.Row{
		"reward": 0.481, "reward_stderr": 0.03, "loss": 0.01, "accuracy": 0.36, "kl/k3": 0.0213, "completions/mean_length": 12.2,
		"completions/clipped_ratio": 0.0, "time/step": 12.13,
	}
	at := report.Progress{Stage: "reinforce", Done: 4, Total: 60, Left: 680 * time.Second}
	for name, test := range map[string]struct {
		progress report.Progress
		row      report.Row
		width    int
		want     string
	}{
		"rollout":     {at, rollout, 0, "reinforce  4/60  reward 0.48 ±0.03  sampled acc 36 %  kl 0.021  len 12  12.1 s/step  ETA 11:20"},
		"narrow":      {at, rollout, 60, "reinforce  4/60  reward 0.48 ±0.03  12.1 s/step  ETA 11:20"},
		"very narrow": {at, rollout, 10, "reinforce  4/60  reward 0.48 ±0.03  12.1 s/step  ETA 11:20"},
		"supervised": {
			report.Progress{Stage: "supervised", Done: 100, Total: 100}, report.Row{"loss": 0.5, "accuracy": 1.0, "time/step": 0.0123}, 80,
			"supervised 100/100  loss 0.500  acc 100 %  0.012 s/step",
		},
		"preferences": {
			report.Progress{Stage: "dpo", Done: 1, Total: 2}, report.Row{"loss": 0.5, "rewards/margins": 1.5, "rewards/accuracies": 0.75}, 80,
			"dpo 1/2  loss 0.500  acc 75 %  margin 1.50",
		},
		"answer format": {
			at, report.Row{"reward": -1.0, "format_rate": 0.5, "completions/clipped_ratio": 0.25}, 0,
			"reinforce  4/60  reward -1.00  format 50 %  truncated 25 %  ETA 11:20",
		},
		"evaluation": {at, report.Row{"step": 4, "eval_accuracy": 0.5}, 0, ""},
	} {
		expect.Equal(t, test.want, report.StepLine(test.progress, test.row, test.width), name)
	}
}

func TestRowLine(t *testing.T) {
	expect.Same(t, "loss=0.5123 reward=1", report.RowLine(report.Row{"loss": 0.51234, "time/step": 1.0, "reward": 1.0, "text": "x"}), "RowLine")
}

func TestTracked(t *testing.T) {
	got := report.Tracked(report.Row{"step": 3, "policy_version": uint64(2), "eval_accuracy/long": 0.5, "rewards/a/mean": 1.0, "note": "x"})
	want := map[string]float64{"train/global_step": 3, "train/policy_version": 2, "eval/accuracy/long": 0.5, "train/rewards/a/mean": 1}
	expect.Equal(t, want, got)
}
