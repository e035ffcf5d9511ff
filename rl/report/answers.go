package report

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"html/template"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/rl"
)

// completion is one completion on a page.
type completion struct {
	Text      template.HTML // tokens, coloured by their advantage
	Reward    string
	Advantage string
	Correct   bool
	Label     string // classifiers: the sampled label and the correct one
	Tier      string // how the answer was found
	Stop      string
}

// exchange is a prompt with some of its completions.
type exchange struct {
	Shown       string
	Kind        string
	Completions []completion
}

// moment holds completions of one step.
type moment struct {
	Title     string
	Exchanges []exchange
}

// Limits of what a page shows for a step.
const (
	momentPrompts     = 2
	promptCompletions = 4
	labelTexts        = 8
)

// moments returns completions of the first and the last recorded step.
func moments(dir string) ([]moment, error) {
	path := filepath.Join(dir, "logs", "completions.jsonl")
	first, last, err := firstAndLast(path)
	if err != nil || len(first) == 0 {
		return nil, err
	}
	all := []moment{{fmt.Sprintf("Step %d", first[0].Step), exchanges(first)}}
	if last[0].Step != first[0].Step {
		all = append(all, moment{fmt.Sprintf("Step %d", last[0].Step), exchanges(last)})
	}
	return all, nil
}

// firstAndLast reads the records of the first and the last step of a file; none if the file does not exist.
func firstAndLast(path string) (first, last []rl.Record, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	lines := bufio.NewReader(f)
	for number := 1; ; number++ {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return first, last, nil // the end, or an incomplete line
		}
		var r rl.Record
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, nil, fmt.Errorf("%s:%d: %w", path, number, err)
		}
		if len(first) == 0 || first[0].Step == r.Step {
			first = append(first, r)
		}
		if len(last) > 0 && last[0].Step != r.Step {
			last = nil
		}
		last = append(last, r)
	}
}

// exchanges returns the first prompts of records, each with its best and worst completions.
func exchanges(records []rl.Record) []exchange {
	largest := 0.0
	for _, r := range records {
		if a := math.Abs(float64(r.Advantage)); a > largest {
			largest = a
		}
		for _, a := range r.PerToken {
			largest = max(largest, math.Abs(float64(a)))
		}
	}
	prompts := momentPrompts
	if records[0].Truth != "" {
		prompts = labelTexts
	}
	var all []exchange
	for from := 0; from < len(records) && len(all) < prompts; {
		to := from
		for to < len(records) && records[to].Prompt == records[from].Prompt {
			to++
		}
		group := slices.Clone(records[from:to])
		slices.SortStableFunc(group, func(a, b rl.Record) int {
			switch x, y := float64(a.Reward), float64(b.Reward); {
			case x > y:
				return -1
			case x < y:
				return 1
			}
			return 0
		})
		if n := len(group); n > promptCompletions {
			group = append(group[:promptCompletions/2:promptCompletions/2], group[n-promptCompletions/2:]...)
		}
		e := exchange{Shown: group[0].Shown, Kind: group[0].Kind}
		for _, r := range group {
			e.Completions = append(e.Completions, show(r, largest))
		}
		all = append(all, e)
		from = to
	}
	return all
}

func show(r rl.Record, largest float64) completion {
	c := completion{Reward: short(r.Reward), Advantage: short(r.Advantage), Correct: r.Correct, Tier: r.Tier, Stop: r.Stop}
	if r.Truth != "" {
		c.Label = r.Written
		if !r.Correct {
			c.Label += ", correct: " + r.Truth
		}
		c.Text = token(r.Written, float64(r.Advantage), largest)
		return c
	}
	var b strings.Builder
	for i, text := range r.Tokens {
		advantage := float64(r.Advantage)
		if i < len(r.PerToken) {
			advantage = float64(r.PerToken[i])
		}
		b.WriteString(string(token(text, advantage, largest)))
	}
	c.Text = template.HTML(b.String())
	return c
}

func short(n rl.Number) string {
	if math.IsNaN(float64(n)) {
		return "none"
	}
	return fmt.Sprintf("%.3g", float64(n))
}

// token renders a token on a green (positive advantage) or red (negative) background.
func token(text string, advantage, largest float64) template.HTML {
	shown := strings.NewReplacer("\n", "⏎\n", "\t", "⇥\t").Replace(html.EscapeString(text))
	if math.IsNaN(advantage) || advantage == 0 || largest == 0 {
		return template.HTML(shown)
	}
	class := "up"
	if advantage < 0 {
		class = "down"
	}
	return template.HTML(fmt.Sprintf(`<span class="%s" style="--a:%.2f" title="advantage %.3g">%s</span>`, class, 0.12+0.6*math.Abs(advantage)/largest, advantage, shown))
}

// alarms returns the warnings in the training log of a run, each once.
func alarms(dir string) ([]string, error) {
	data, err := os.ReadFile(filepath.Join(dir, "logs", "training_log.txt"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var all []string
	for line := range strings.Lines(string(data)) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), "warning: "); ok && !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	const most = 20
	return all[:min(len(all), most)], err
}
