package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/urfave/cli/v2"

	"rltrain/envs"
	"rltrain/envs/answer"
	"rltrain/envs/dataset"
	"rltrain/envs/digits"
	"rltrain/envs/math"
	"rltrain/rl"
	"rltrain/rl/report"
)

// answerTasks are the tasks whose answers are scored from a file.
var answerTasks = []string{math.GSM8K, math.MATH, digits.Sum, digits.Reverse}

// answerMatches are the rules of comparison, in the order of the table.
var answerMatches = []answer.Match{answer.Exact, answer.Numeric, answer.Units, answer.Math}

// answerFlags are those of eval that go with --completions.
func answerFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "completions", Usage: "file of questions, right answers and completions that something else wrote"},
		&cli.StringFlag{Name: "completion-field", Usage: "field of --completions with the completion", DefaultText: "completion"},
		&cli.StringFlag{Name: "answer-match", Usage: "when an answer is right: numeric, exact, units or math", DefaultText: "exact for gsm8k, math for math, numeric for digits"},
		&cli.StringFlag{Name: "output", Usage: "file of the results of --completions", DefaultText: "logs/eval_results.json"},
		&cli.StringFlag{Name: "output-rows", Usage: "file of JSON lines with both answers as they were read and the verdict, for each row of --completions"},
	}
}

// answerResults is the content of logs/eval_results.json for completions from a file.
type answerResults struct {
	Task        string       `json:"task"`
	Completions string       `json:"completions"`
	Field       string       `json:"completion_field"`
	Match       answer.Match `json:"answer_match"`
	rl.AnswerScores
	// Matches are the scores by each rule, that of Match among them.
	Matches map[answer.Match]rl.AnswerScores `json:"matches"`
}

// evalAnswers scores the completions of a file.
func evalAnswers(c *cli.Context) error {
	results := answerResults{
		Task: c.String("task"), Completions: c.String("completions"), Field: "completion", Matches: map[answer.Match]rl.AnswerScores{},
	}
	if !slices.Contains(answerTasks, results.Task) {
		return usageErrorf("--completions: answers have a --task of their own: %s", strings.Join(answerTasks, ", "))
	}
	for _, name := range c.FlagNames() {
		if !slices.Contains([]string{"task", "completions", "completion-field", "answer-match", "output", "output-rows"}, name) {
			return usageErrorf("--%s: does not apply with --completions FILE", name)
		}
	}
	if c.IsSet("completion-field") {
		if results.Field = c.String("completion-field"); results.Field == "" {
			return usageErrorf("--completion-field: name the field")
		}
	}
	digitsTask := results.Task == digits.Sum || results.Task == digits.Reverse
	results.Match = math.Defaults(results.Task).Match
	if digitsTask {
		results.Match = answer.Numeric
	}
	if c.IsSet("answer-match") {
		var err error
		if results.Match, err = answer.ParseMatch(c.String("answer-match")); err != nil {
			return usageErrorf("--answer-match: %v", err)
		}
	}
	read := mathAnswers
	if digitsTask {
		read = digitAnswers
	}
	judges, err := read(results.Completions, results.Task, results.Field)
	if err != nil {
		return err
	}
	for _, match := range answerMatches {
		infos := make([]*envs.Info, len(judges))
		for i, judge := range judges {
			infos[i] = judge(match)
		}
		results.Matches[match] = rl.ScoreAnswers(infos)
	}
	results.AnswerScores = results.Matches[results.Match]
	if path := c.String("output-rows"); path != "" {
		if err := saveAnswerRows(path, judges, results.Match); err != nil {
			return err
		}
	}
	output := c.String("output")
	if output == "" {
		output = filepath.Join("logs", "eval_results.json")
	}
	if err := makeDirs(filepath.Dir(output)); err != nil {
		return err
	}
	if err := rl.SaveJSON(output, results); err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.App.Writer, "%s\nWritten: %s\n", results, output)
	return err
}

// answerRow is a line of --output-rows.
type answerRow struct {
	Row        int    `json:"row"` // from 1
	Correct    bool   `json:"correct"`
	Gold       string `json:"gold"`   // as given
	Answer     string `json:"answer"` // as found
	Tier       string `json:"tier"`   // how it was found
	GoldRead   string `json:"gold_read"`
	AnswerRead string `json:"answer_read"`
	Rule       string `json:"rule"` // that decided
}

// saveAnswerRows writes how each completion was judged.
func saveAnswerRows(path string, judges []judge, match answer.Match) error {
	if err := makeDirs(filepath.Dir(path)); err != nil {
		return err
	}
	var b bytes.Buffer
	lines := json.NewEncoder(&b)
	lines.SetEscapeHTML(false)
	for i, judge := range judges {
		info := judge(match)
		row := answerRow{Row: i + 1, Correct: info.Correct, Gold: info.Truth, Answer: info.Answer, Tier: info.Tier, Rule: "no answer"}
		if info.Tier != string(answer.TierNone) {
			verdict := match.Compare(info.Truth, info.Answer)
			row.GoldRead, row.AnswerRead, row.Rule = verdict.Gold, verdict.Answer, verdict.Rule
		}
		if err := lines.Encode(row); err != nil {
			return fmt.Errorf("writing row %d: %w", i+1, err)
		}
	}
	if err := renameio.WriteFile(path, b.Bytes(), 0o644, renameio.WithTempDir(filepath.Dir(path))); err != nil {
		return fmt.Errorf("writing rows: %w", err)
	}
	return nil
}

// A judge compares one completion with the right answer.
type judge func(match answer.Match) *envs.Info

func mathAnswers(path, task, field string) ([]judge, error) {
	problems, completions, err := math.ReadCompletions(path, task, field)
	if err != nil {
		return nil, err
	}
	judges := make([]judge, len(problems))
	for i, p := range problems {
		judges[i] = func(match answer.Match) *envs.Info { return p.Judge(completions[i], match) }
	}
	return judges, nil
}

// digitAnswers reads rows with a number called answer and a completion.
func digitAnswers(path, _, field string) ([]judge, error) {
	var judges []judge
	for r, err := range dataset.Records(path) {
		if err != nil {
			return nil, err
		}
		value, _ := r.Fields.Get("answer")
		truth, err := wholeNumber(value)
		if err != nil {
			return nil, fmt.Errorf("%s: field \"answer\": %w", r.Place(), err)
		}
		completion, _ := r.Fields.Get(field)
		text, ok := completion.(string)
		if !ok {
			return nil, fmt.Errorf("%s: field %q is missing or no text", r.Place(), field)
		}
		found := answer.Extract(text)
		info := envs.Info{Formatted: answer.Tagged(text), Tier: string(found.Tier), Answer: found.Text, Truth: strconv.FormatInt(truth, 10)}
		judges = append(judges, func(match answer.Match) *envs.Info {
			// What Extract finds has a value and no unit: apart from its spelling there is one rule, that of the tasks.
			judged := info
			judged.Correct = found.Value != nil && found.Value.Cmp(new(big.Rat).SetInt64(truth)) == 0 &&
				(match != answer.Exact || match.Same(found.Text, info.Truth))
			return &judged
		})
	}
	if len(judges) == 0 {
		return nil, fmt.Errorf("%s has no rows", path)
	}
	return judges, nil
}

// wholeNumber reads a number of a row, which may be text.
func wholeNumber(value any) (int64, error) {
	switch v := value.(type) {
	case nil:
		return 0, errors.New("it is missing")
	case int64:
		return v, nil
	case string:
		if n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64); err == nil {
			return n, nil
		}
	}
	return 0, fmt.Errorf("%.40q is not a whole number", fmt.Sprint(value))
}

// String is the tables that eval prints.
func (r answerResults) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, task %s: %s answers, %.1f %% in the form asked for, judged by match %s\n\n",
		r.Completions, r.Task, report.Count(int64(r.N)), 100*r.FormatRate, r.Match)
	var rows [][]string
	for _, match := range answerMatches {
		s := r.Matches[match]
		rows = append(rows, []string{string(match), report.Count(int64(s.Correct)), fmt.Sprintf("%.4f", s.Accuracy),
			fmt.Sprintf("%.4f to %.4f", s.Interval[0], s.Interval[1])})
	}
	b.WriteString(report.RenderTable([]string{"match", "correct", "accuracy", "95 % interval"}, rows) + "\n")
	rows = nil
	for _, tier := range slices.Sorted(maps.Keys(r.Tiers)) {
		rows = append(rows, []string{tier, fmt.Sprintf("%.4f", r.Tiers[tier])})
	}
	b.WriteString(report.RenderTable([]string{"answer found by", "share"}, rows))
	return b.String()
}
