package report

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"html/template"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
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

// readAnswers shows completions of the first, the middle and the last recorded step.
func readAnswers(dir string, p *page) error {
	steps, err := RecordedSteps(filepath.Join(dir, "logs", "completions.jsonl"))
	if err != nil {
		return err
	}
	for i, records := range steps {
		title := fmt.Sprintf("Step %d", records[0].Step)
		if i == 0 || i == len(steps)-1 {
			p.Moments = append(p.Moments, moment{title, exchanges(records)})
		}
		if records[0].Truth != "" { // a classifier's labels
			continue
		}
		p.Best.Headers = append(p.Best.Headers, title)
		for row, text := range Best(records) {
			if row == len(p.Best.Rows) {
				p.Best.Rows = append(p.Best.Rows, make([]string, len(steps)))
			}
			p.Best.Rows[row][i] = text
		}
	}
	return nil
}

// RecordedSteps reads the records of the first, the middle and the last step of a completions file, each once. A missing file
// has none.
func RecordedSteps(path string) (steps [][]rl.Record, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	type place struct {
		step         int
		from, number int64
	}
	var places []place
	at := place{}
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil { // the end, or an incomplete line
			places = append(places, place{from: at.from})
			break
		}
		at.number++
		if err := json.Unmarshal(line, &struct{ Step *int }{&at.step}); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, at.number, err)
		}
		if n := len(places); n == 0 || places[n-1].step != at.step {
			places = append(places, at)
		}
		at.from += int64(len(line))
	}
	n := len(places) - 1
	for _, i := range slices.Compact([]int{0, n / 2, n - 1}) {
		if i < 0 || n == 0 {
			continue
		}
		part := json.NewDecoder(io.NewSectionReader(f, places[i].from, places[i+1].from-places[i].from))
		var records []rl.Record
		for part.More() {
			var r rl.Record
			if err := part.Decode(&r); err != nil {
				return nil, fmt.Errorf("%s:%d: %w", path, places[i].number+int64(len(records)), err)
			}
			records = append(records, r)
		}
		steps = append(steps, records)
	}
	return steps, nil
}

// mostBest is how many of a step's best-rewarded completions a page lists.
const mostBest = 10

// marks are the special tokens of chat templates.
var marks = regexp.MustCompile(`<\|[^|<>]*\|>|</?s>`)

// Best describes the ten completions of a step with the highest rewards, equal ones once.
func Best(records []rl.Record) (texts []string) {
	for _, r := range byReward(records) {
		verdict := ""
		if r.Tier != "" {
			verdict = map[bool]string{true: " correct", false: " wrong"}[r.Correct]
		}
		prompt := []rune(strings.Join(strings.Fields(marks.ReplaceAllString(r.Shown, " ")), " "))
		text := fmt.Sprintf("%s%s: …%s → %q", short(r.Reward), verdict, string(prompt[max(0, len(prompt)-60):]), r.Written)
		if len(texts) < mostBest && !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	return texts
}

// byReward sorts records, the highest reward first; failed ones are last.
func byReward(records []rl.Record) []rl.Record {
	return slices.SortedStableFunc(slices.Values(records), func(a, b rl.Record) int {
		return cmp.Compare(float64(b.Reward), float64(a.Reward))
	})
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
		group := byReward(records[from:to])
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
