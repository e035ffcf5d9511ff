package report

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestStepTable(t *testing.T) {
	var table StepTable
	got := table.Line(Row{"step": 1.0, "loss": 0.51234, "reward": -1.0, "learning_rate": 1e-4, "time/step": 0.25, "other": 3.0}, 80)
	got += table.Line(Row{"step": 1234, "loss": 12345.678, "reward": 0.5}, 80)
	got += table.Line(Row{"step": 1234, "eval_accuracy": 0.5}, 80) // an evaluation
	want := `   step      loss    reward      rate  s a step
      1    0.5123        -1    0.0001      0.25
  1,234 1.235e+04       0.5         -         -
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for range headingEvery - 2 {
		got += table.Line(Row{"step": 3, "loss": 1.0}, 80)
	}
	if n := strings.Count(got, "loss"); n != 1 {
		t.Errorf("%d headings before they are due", n)
	}
	if line := table.Line(Row{"step": 3, "loss": 1.0}, 80); !strings.HasPrefix(line, "   step") {
		t.Errorf("no heading where it is due: %q", line)
	}
	var narrow StepTable
	if line := narrow.Line(Row{"step": 1, "loss": 1.0, "reward": 2.0, "entropy": 1.0}, 30); strings.Contains(line, "entropy") || !strings.Contains(line, "reward") {
		t.Errorf("in 30 columns: %q", line)
	}
	if got, want := RowLine(Row{"loss": 0.51234, "time/step": 1.0, "reward": 1.0, "text": "x"}), "loss=0.5123 reward=1"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestTracked(t *testing.T) {
	got := Tracked(Row{"step": 3, "policy_version": uint64(2), "eval_accuracy/long": 0.5, "rewards/a/mean": 1.0, "note": "x"})
	want := map[string]float64{"train/global_step": 3, "train/policy_version": 2, "eval/accuracy/long": 0.5, "train/rewards/a/mean": 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
