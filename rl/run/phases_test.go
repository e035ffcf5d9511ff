package run

import (
	"slices"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/rl/report"
)

func TestPhases(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var shown []string
	p := &Phases{now: func() time.Time { return now }, show: func(text string) { shown = append(shown, text) }, spent: map[string]time.Duration{}}
	ctx := p.Show(t.Context())
	Working(ctx, 1, 2, 3) // in no phase
	p.Begin(PhaseRollout)
	now = now.Add(6 * time.Second)
	Working(ctx, 24, 64, 600)
	p.Begin(PhaseUpdate)
	p.Move(PhaseRollout, PhaseReward, 2)
	now = now.Add(3 * time.Second)
	p.Within(3, 8, 0)
	p.Begin(PhaseEvaluation)
	now = now.Add(time.Second)
	Working(ctx, 40, 200, 0)
	p.Move(PhaseCheckpoint, PhaseReward, 5) // more than there is
	want := []string{"rollout", "rollout 24/64 samples, 100 tokens/s", "update", "update 3/8 micro-batches", "evaluation", "evaluation 40/200"}
	expect.Equal(t, want, shown)
	seconds := p.seconds(map[string]float64{PhaseRollout: 6})
	expect.Equal(t, map[string]float64{PhaseRollout: 10, PhaseReward: 2, PhaseUpdate: 3, PhaseEvaluation: 1, PhaseCheckpoint: 0}, seconds)
	expect.Same(t, "rollout 62 %, update 19 %, reward 12 %, evaluation 6 %, checkpoint 0 %", Shares(seconds), "Shares")
	about := Record{Seconds: seconds}.About()
	expect.True(t, slices.ContainsFunc(about.Facts, func(s report.Setting) bool { return s.Name == "time" }),
		"facts %v", about.Facts)
	var none *Phases
	none.Begin("x")
	none.Within(1, 2, 3)
	Working(t.Context(), 1, 2, 3)
}
