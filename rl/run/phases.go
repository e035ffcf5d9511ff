package run

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rltrain/rltrain/rl/report"
)

// The phases of a step.
const (
	PhaseRollout    = "rollout"
	PhaseReward     = "reward"
	PhaseUpdate     = "update"
	PhaseEvaluation = "evaluation"
	PhaseCheckpoint = "checkpoint"
)

// units are what the progress of a phase counts.
var units = map[string]string{PhaseRollout: " samples", PhaseUpdate: " micro-batches"}

// Phases measures how long each phase of a run takes, and shows progress within a step. A nil Phases does nothing.
type Phases struct {
	now   func() time.Time
	show  func(text string) // progress of the current phase
	mu    sync.Mutex
	spent map[string]time.Duration
	name  string
	since time.Time
	// Tokens is how many tokens the last update learned from.
	Tokens int
}

// Begin ends the current phase and begins another; "" begins none.
func (p *Phases) Begin(name string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	now := p.now()
	if p.name != "" {
		p.spent[p.name] += now.Sub(p.since)
	}
	p.name, p.since = name, now
	p.mu.Unlock()
	p.show(name)
}

// Move counts seconds of a phase as those of another, which ran within it.
func (p *Phases) Move(from, to string, seconds float64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	d := min(p.spent[from], time.Duration(seconds*float64(time.Second))) // with asynchronous rollouts, both run at once
	p.spent[from] -= d
	p.spent[to] += d
}

// Within shows the progress of the current phase: done of total, with the tokens so far.
func (p *Phases) Within(done, total, tokens int) {
	if p == nil {
		return
	}
	p.mu.Lock()
	name, elapsed := p.name, p.now().Sub(p.since).Seconds()
	if name == PhaseUpdate {
		p.Tokens = tokens
	}
	p.mu.Unlock()
	if name == "" {
		return
	}
	text := fmt.Sprintf("%s %s/%s%s", name, report.Count(int64(min(done, total))), report.Count(int64(total)), units[name])
	if tokens > 0 && elapsed > 0 {
		text += fmt.Sprintf(", %s tokens/s", report.Count(int64(float64(tokens)/elapsed)))
	}
	p.show(text)
}

// Spent returns how long a phase that has ended took so far.
func (p *Phases) Spent(name string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.spent[name]
}

// seconds returns the seconds of each phase so far, with those of earlier processes.
func (p *Phases) seconds(earlier map[string]float64) map[string]float64 {
	p.Begin("")
	all := map[string]float64{}
	maps.Copy(all, earlier)
	for name, d := range p.spent {
		all[name] += d.Seconds()
	}
	return all
}

// Shares describes how seconds are divided among phases, the longest first: "rollout 61 %, update 30 %". It is empty without
// any.
func Shares(seconds map[string]float64) string {
	total := 0.0
	for _, s := range seconds {
		total += s
	}
	names := slices.SortedStableFunc(maps.Keys(seconds), func(a, b string) int {
		if seconds[a] != seconds[b] {
			return map[bool]int{true: -1, false: 1}[seconds[a] > seconds[b]]
		}
		return strings.Compare(a, b)
	})
	var parts []string
	for _, name := range names {
		if total > 0 {
			parts = append(parts, fmt.Sprintf("%s %.0f %%", name, 100*seconds[name]/total))
		}
	}
	return strings.Join(parts, ", ")
}

type phasesKey struct{}

// Show returns a context for work whose progress p shows.
func (p *Phases) Show(ctx context.Context) context.Context {
	return context.WithValue(ctx, phasesKey{}, p)
}

// Working shows, on the context's Phases if it has some, how far the current phase is.
func Working(ctx context.Context, done, total, tokens int) {
	p, _ := ctx.Value(phasesKey{}).(*Phases)
	p.Within(done, total, tokens)
}
