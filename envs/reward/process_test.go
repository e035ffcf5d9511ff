package reward

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// scripted scores the texts that it knows.
type scripted map[string]float64

func (s scripted) Score(_ context.Context, completions []envs.Completion) ([]float64, []error) {
	scores, errs := make([]float64, len(completions)), make([]error, len(completions))
	for i, c := range completions {
		var known bool
		if scores[i], known = s[c.Text]; !known {
			errs[i] = fmt.Errorf("unknown text %q", c.Text)
		}
	}
	return scores, errs
}

func (s scripted) Steps(ctx context.Context, completions []envs.Completion, ends [][]int, separator string) ([][]float64, []error) {
	all, errs := make([][]float64, len(completions)), make([]error, len(completions))
	for i, c := range completions {
		var parts []envs.Completion
		for _, end := range ends[i] {
			parts = append(parts, envs.Completion{Text: strings.TrimSuffix(c.Text, c.Generated) + strings.TrimSuffix(c.Generated[:end], separator)})
		}
		var failed []error
		all[i], failed = s.Score(ctx, parts)
		errs[i] = errors.Join(failed...)
	}
	return all, errs
}

func TestProcessRewards(t *testing.T) {
	// The first turn has been scored already; blank lines belong to the step before them.
	c := envs.Completion{Text: "earlier a\n\nb\nc", Generated: "a\n\nb\nc", Action: envs.Action{Text: "a\n\nb\nc"}}
	judge := scripted{"earlier a\n": 3, "earlier a\n\nb": 1, "earlier a\n\nb\nc": 2}
	for total, want := range map[string][]float64{"sum": {3, 1, 2}, "mean": {1, 1. / 3, 2. / 3}, "last": {3, -2, 1}, "min": {3, -2, 0}} {
		list := fmt.Sprintf("process(model=DIR,total=%s)=0.5,expr:'10'", total)
		r := must.Get(ParseText(list, nil, Options{Critic: func(name string) (envs.Critic, error) {
			expect.Same(t, "DIR", name, "model")
			return judge, nil
		}}))(t)
		scores := must.Get(r.Score(t.Context(), []envs.Completion{c, {Text: "?\n!", Generated: "?\n!"}}, 1))(t)
		steps, sum := []Step(nil), 0.0
		for i, end := range []int{3, 5, 6} {
			steps, sum = append(steps, Step{end, want[i] / 2}), sum+want[i]
		}
		near := cmpopts.EquateApprox(0, 1e-12)
		expect.Equal(t, [][]Step{steps, nil}, scores.Steps, near, total)
		expect.Equal(t, sum/2+10, scores.Total[0], near, total)
		expect.Contains(t, scores.Rewards[0].Failure, `unknown text "?"`)
	}
}

// FuzzStepEnds: steps divide a text, and each has something other than space if the text has.
func FuzzStepEnds(f *testing.F) {
	for _, text := range []string{"", "\n", "a", "a\n", "\n\na\n\nb", "a\n \nb\n\n"} {
		f.Add(text, "\n")
	}
	f.Add("1. x 2. y", ". ")
	f.Fuzz(func(t *testing.T, text, separator string) {
		if separator == "" {
			return
		}
		from := 0
		ends := stepEnds(text, separator)
		for i, end := range ends {
			step := text[from:end]
			expect.Require(t, end > from || text == "", "ends %v of %q", ends, text)
			expect.True(t, strings.TrimSpace(step) != "" || strings.TrimSpace(text) == "", "step %q of %q is blank", step, text)
			expect.True(t, i == len(ends)-1 || strings.HasSuffix(step, separator), "step %q of %q ends without %q", step, text, separator)
			from = end
		}
		expect.Same(t, len(text), from, "end of the last step of %q", text)
	})
}

func TestProcessIsRefused(t *testing.T) {
	missing := Options{Critic: func(string) (envs.Critic, error) { return nil, errors.New("no such folder") }}
	for list, want := range map[string]string{
		"process": "write process(model=DIR)", "process(model=m,separator=)": "separator", "process(model=m,total=product)": "total",
		"process:m": "process", "process(model=m)": "no such folder",
	} {
		expect.Failure(ParseText(list, nil, missing))(t, want)
	}
}
