package train

import (
	"fmt"
	"math"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/report"
)

// silentSteps is how many steps without a signal, counted from the first, stop a run.
const silentSteps = 3

// SignalHelp is what to try if no rewards differ, the most useful first.
const SignalHelp = "run SFT first (--mode supervised_then_rl), use easier prompts, sample a larger group (--samples-per-prompt), raise --max-new-tokens if completions are truncated, or add a partial reward (--reward)"

// seek counts the steps without a signal from the first step on, and warns after the first.
func (t *training) seek(step *rl.Step) error {
	s := &t.state
	if s.Silent != s.Step-1 || !t.needs.Rewards || t.needs.Teacher != "" && !t.bySuccess() || step.Records == nil {
		return nil
	}
	records, err := step.Records(-1)
	if err != nil || len(step.Samples) > 0 && (t.bySuccess() || !silent(records, t.needs.ByAdvantage)) {
		return err
	}
	infos := make([]*envs.Info, len(records))
	cut, verified := 0, false
	for i, r := range records {
		infos[i] = &envs.Info{Correct: r.Correct}
		verified = verified || r.Tier != "" || r.Truth != ""
		if r.Stop == string(envs.StopLength) {
			cut++
		}
	}
	scores, help := rl.ScoreAnswers(infos), SignalHelp
	if verified && scores.Correct == scores.N && scores.N > 0 {
		help = "use harder prompts or a stricter reward"
	} else {
		s.Silent++ // a policy that is always right may go on
	}
	if s.Step > 1 {
		return nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "warning: nothing to learn from in the first step: no prompt has %s. To get a signal, %s", t.signal(), help)
	if verified {
		fmt.Fprintf(&b, "\n  correct: %d of %d = %.1f %% (95 %% CI %.1f–%.1f)", scores.Correct, scores.N, 100*scores.Accuracy, 100*scores.Interval[0], 100*scores.Interval[1])
	}
	if len(records) > 0 {
		fmt.Fprintf(&b, "\n  truncated at the token limit: %.0f %%", 100*float64(cut)/float64(len(records)))
	}
	shown := min(3, len(records))
	for i := range shown {
		r := records[i*len(records)/shown]
		fmt.Fprintf(&b, "\n  prompt %d, reward %.4g: %q", r.Prompt, float64(r.Reward), report.Shortened(r.Written, 120))
	}
	return t.hooks.Logf("%s", b.String())
}

// bySuccess says whether completions teach only others of their prompt, and only if they succeed.
func (t *training) bySuccess() bool { return t.needs.Context.Kind == algo.Sibling }

// signal is what a prompt needs, so that something can be learned from it.
func (t *training) signal() string {
	if t.bySuccess() {
		return fmt.Sprintf("a completion with a reward of at least %g (success_reward_threshold) for another to learn from", t.needs.Context.Success)
	}
	return "completions with different rewards"
}

// silent says whether no reward tells a better sample from a worse one: those of each prompt are equal, and those of all
// prompts are too or the algorithm compares only within prompts.
func silent(records []rl.Record, byAdvantage bool) bool {
	first, equal, learns := map[int]float64{}, true, !byAdvantage
	for _, r := range records {
		value := float64(r.Reward) + r.Overlong
		if math.IsNaN(value) {
			continue
		}
		if other, ok := first[r.Prompt]; ok && value != other {
			return false
		}
		first[r.Prompt] = value
		equal = equal && value == first[records[0].Prompt]
		learns = learns || r.Advantage != 0 // NaN: not known
	}
	return equal || !learns
}

// lost returns an error if the run has had no signal for so long that it stops.
func (t *training) lost() error {
	if n := t.state.Silent; t.config.AllowNone || n < silentSteps || n < t.state.Step || t.state.Step == t.config.Steps {
		return nil
	}
	return fmt.Errorf("stopped after step %d: no prompt had %s in any step, so nothing can be learned; %s. To continue anyway, add --resume --allow-no-signal", t.state.Step, t.signal(), SignalHelp)
}
