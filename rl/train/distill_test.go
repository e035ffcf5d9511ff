package train

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/epochs"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/run"
)

// TestDistillApproachesTheTeacher trains a student with each divergence, which must at least halve.
func TestDistillApproachesTheTeacher(t *testing.T) {
	for _, kind := range []string{policy.ReverseKL, policy.ForwardKL, policy.JSD} {
		t.Run(kind, func(t *testing.T) {
			r := newTokenRun(func() algo.Algorithm { return &algo.Distill{Teacher: "given", Divergence: kind, Mix: 0.5} })
			r.taught = true
			var seen recorded
			must.Get(r.on(t.Context(), t, tinyToken(t, 4), seen.hooks()))(t)
			found := seen.figure("divergence")
			first, last := found[0], found[len(found)-1]
			expect.True(t, first > 0 && last < first/2, "KL %v at first, %v at the end", first, last)
		})
	}
}

// TestDistillIgnoresRewards compares weights after two steps with different rewards.
func TestDistillIgnoresRewards(t *testing.T) {
	after := func(rewards string) run.Snapshot {
		r := newTokenRun(func() algo.Algorithm { return &algo.Distill{Teacher: "given"} })
		r.taught, r.Steps, r.rewards = true, 2, rewards
		p := tinyToken(t, 4)
		must.Get(r.on(t.Context(), t, p, (&recorded{}).hooks()))(t)
		return weightsOf(t, p)
	}
	expect.True(t, slices.EqualFunc(after(""), after("expr:'length'=-1"), slices.Equal), "the weights differ")
}

// TestAlarmsOfATeacher: equal rewards raise no alarm if a teacher supervises, and training improves as the loss falls.
// The truncated completions still raise theirs.
func TestAlarmsOfATeacher(t *testing.T) {
	r := newTokenRun(func() algo.Algorithm { return &algo.Distill{Teacher: "given"} })
	r.taught, r.rewards = true, "expr:'1'"
	judged := 0.0
	r.Evaluate = &evaluate.Plan{Every: 5, Run: func(context.Context, int) (evaluate.Scores, error) {
		judged--
		return evaluate.Scores{Score: judged}, nil
	}}
	var said recorded
	must.Get(r.on(t.Context(), t, tinyToken(t, 4), said.hooks()))(t)
	var alarms []string
	for _, line := range said.lines {
		if rest, ok := strings.CutPrefix(line, "warning: "); ok {
			name, _, _ := strings.Cut(rest, ":")
			alarms = append(alarms, name)
		}
	}
	if diff := cmp.Diff([]string{"truncation", "missing_end", "overfitting"}, alarms); diff != "" {
		t.Errorf("(-want +got):\n%s\n%s", diff, strings.Join(said.lines, "\n"))
	}
}

func TestDistillNeedsATeacher(t *testing.T) {
	expect.True(t, (&algo.Distill{}).Check(1) != nil, "no teacher is accepted")
	p := tinyToken(t, 4)
	_, err := New(p, epochs.NewPreferences([][]*rl.Sample{policy.Samples(texts(1))}, 1, 0, 1), &algo.Distill{Teacher: "given"}, Config{Steps: 1, Optimisation: Optimisation{LearningRate: 1, Schedule: "linear"}}, (&recorded{}).hooks())
	expect.True(t, err != nil && err.Error() == "the algorithm needs a teacher", "without the teacher: %v", err)
}
