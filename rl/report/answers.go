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

// answer is an answer of the policy as a page shows it.
type answer struct {
	Prompt, Sample int
	Text           template.HTML // its tokens, coloured by their advantage
	Reward         string
	Advantage      string
	Right          bool
	Label          string // of a classifier: what was chosen, and what is right
	Tier, Stop     string
}

// exchange is a prompt with answers to it.
type exchange struct {
	Shown   string
	Kind    string
	Answers []answer
}

// moment is what the policy answered in one step.
type moment struct {
	Title     string
	Exchanges []exchange
}

// How much of what was kept a page shows.
const (
	momentPrompts = 2
	promptAnswers = 4
	labelTexts    = 8
)

// moments are the answers of the first and of the last step that were kept.
func moments(dir string) ([]moment, error) {
	path := filepath.Join(dir, "logs", "completions.jsonl")
	first, last, err := firstAndLast(path)
	if err != nil || len(first) == 0 {
		return nil, err
	}
	all := []moment{{fmt.Sprintf("In step %d", first[0].Step), exchanges(first)}}
	if last[0].Step != first[0].Step {
		all = append(all, moment{fmt.Sprintf("In step %d", last[0].Step), exchanges(last)})
	}
	return all, nil
}

// firstAndLast reads the records of the first and the last step of a file; none where there is no file.
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
			return first, last, nil // the end, or a line that is being written
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

// exchanges are the first prompts of some records, each with its best and its worst answers.
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
		if n := len(group); n > promptAnswers {
			group = append(group[:promptAnswers/2:promptAnswers/2], group[n-promptAnswers/2:]...)
		}
		e := exchange{Shown: group[0].Shown, Kind: group[0].Kind}
		for _, r := range group {
			e.Answers = append(e.Answers, show(r, largest))
		}
		all = append(all, e)
		from = to
	}
	return all
}

func show(r rl.Record, largest float64) answer {
	a := answer{Prompt: r.Prompt, Sample: r.Sample, Reward: short(r.Reward), Advantage: short(r.Advantage), Right: r.Correct, Tier: r.Tier, Stop: r.Stop}
	if r.Truth != "" {
		a.Label = r.Written
		if !r.Correct {
			a.Label += ", right is " + r.Truth
		}
		a.Text = token(r.Written, float64(r.Advantage), largest)
		return a
	}
	var b strings.Builder
	for i, text := range r.Tokens {
		advantage := float64(r.Advantage)
		if i < len(r.PerToken) {
			advantage = float64(r.PerToken[i])
		}
		b.WriteString(string(token(text, advantage, largest)))
	}
	a.Text = template.HTML(b.String())
	return a
}

func short(n rl.Number) string {
	if math.IsNaN(float64(n)) {
		return "none"
	}
	return fmt.Sprintf("%.3g", float64(n))
}

// token is a token on a ground that says how much it is encouraged, or discouraged.
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

// alarms are the warnings of a run's log.
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
