package app

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/answer"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/report"
)

// answerTasks lists the tasks that can score completions from a file.
func answerTasks() []string {
	return tasksWhere(func(d envs.Definition) bool {
		_, ok := d.Options().(envs.AnswerSource)
		return ok
	})
}

// answerMatches lists the comparison rules in the order of the table.
var answerMatches = []answer.Match{answer.Exact, answer.Numeric, answer.Units, answer.Math}

// answerFlags are the flags of eval for --completions.
func answerFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "completions", Usage: "file of problems, answers and completions from any source"},
		&cli.StringFlag{Name: "completion-field", Usage: "field of --completions with the completion", DefaultText: "completion"},
		answerMatchFlag(),
		&cli.StringFlag{Name: "output", Usage: "write the results to this JSON file", DefaultText: "logs/eval_results.json in --output-dir; none for a language model"},
		&cli.StringFlag{Name: "output-rows", Usage: "JSON Lines file with the verdict on each row: prompt, completion, parsed answer, why it is wrong"},
	}
}

func answerMatchFlag() cli.Flag {
	return &cli.StringFlag{Name: "answer-match", Usage: "comparison rule: numeric, exact, units or math", DefaultText: "the task's default"}
}

// answerResults is logs/eval_results.json for completions from a file.
type answerResults struct {
	Task        string       `json:"task"`
	Completions string       `json:"completions"`
	Field       string       `json:"completion_field"`
	Match       answer.Match `json:"answer_match"`
	rl.AnswerScores
	// Matches has the scores by every rule, including Match.
	Matches map[answer.Match]rl.AnswerScores `json:"matches"`
}

// evalAnswers scores the completions of a file.
func evalAnswers(c *cli.Context) error {
	results := answerResults{
		Task: c.String("task"), Completions: c.String("completions"), Field: "completion", Matches: map[answer.Match]rl.AnswerScores{},
	}
	if !slices.Contains(answerTasks(), results.Task) {
		return shared.UsageErrorf("--completions: choose a --task with answers: %s", strings.Join(answerTasks(), ", "))
	}
	if err := onlyFlags(c, "with --completions FILE", append([]string{"answer-match"}, completionsFlags...)); err != nil {
		return err
	}
	if c.IsSet("completion-field") {
		if results.Field = c.String("completion-field"); results.Field == "" {
			return shared.UsageErrorf("--completion-field: the name is empty")
		}
	}
	d, err := envs.Find(results.Task)
	if err != nil {
		return err
	}
	o := d.Options()
	if err := (envs.Settings{}).Set(o); err != nil {
		return err
	}
	if c.IsSet("answer-match") {
		if results.Match, err = answer.ParseMatch(c.String("answer-match")); err != nil {
			return shared.UsageErrorf("--answer-match: %v", err)
		}
	}
	judges, usual, err := o.(envs.AnswerSource).Answers(results.Completions, results.Field)
	if err != nil {
		return err
	}
	results.Match = cmp.Or(results.Match, usual)
	for _, match := range answerMatches {
		infos := make([]*envs.Info, len(judges))
		for i, judge := range judges {
			infos[i] = judge(match)
			infos[i].CheckForm(answer.AnyForm)
		}
		results.Matches[match] = rl.ScoreAnswers(infos)
	}
	results.AnswerScores = results.Matches[results.Match]
	if err := saveRows(c.String("output-rows"), answerRows(judges, results.Match)); err != nil {
		return err
	}
	output, err := completionsOutput(c)
	if err != nil {
		return err
	}
	return printResults(c, output, results)
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
	Rule       string `json:"rule"` // the rule that decided
}

// answerRows returns the verdict on each completion.
func answerRows(judges []envs.Verifier, match answer.Match) (rows []answerRow) {
	for i, judge := range judges {
		info := judge(match)
		row := answerRow{Row: i + 1, Correct: info.Correct, Gold: info.Truth, Answer: info.Answer, Tier: info.FoundBy, Rule: "no answer"}
		if info.FoundBy != string(answer.NotFound) {
			verdict := match.Compare(info.Truth, info.Answer)
			row.GoldRead, row.AnswerRead, row.Rule = verdict.Gold, verdict.Answer, verdict.Rule
		}
		rows = append(rows, row)
	}
	return rows
}

// formatRate is a format rate, "" if the task asks for no format.
func formatRate(rate float64, freeForm bool) string {
	if freeForm {
		return ""
	}
	return fmt.Sprintf(" format_rate=%.1f%%", 100*rate)
}

// String returns the tables that eval prints.
func (r answerResults) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: task=%s n=%s%s answer_match=%s\n\n",
		r.Completions, r.Task, report.Count(int64(r.N)), formatRate(r.FormatRate, r.FreeForm), r.Match)
	b.WriteString(rl.FewRows(r.N, "completions"))
	var rows [][]string
	for _, match := range answerMatches {
		s := r.Matches[match]
		rows = append(rows, []string{string(match), report.Count(int64(s.Correct)), fmt.Sprintf("%.4f", s.Accuracy),
			fmt.Sprintf("%.4f–%.4f", s.Interval[0], s.Interval[1])})
	}
	b.WriteString(report.RenderTable([]string{"match", "correct", "accuracy", "95 % CI"}, rows) + "\n")
	if r.Unfinished > 0 {
		fmt.Fprintf(&b, "%d of these answers leave a calculation to do, such as 74 - 70; in training, --answer-form final is the default.\n%s\n\n", r.Unfinished, r.Forms())
	}
	rows = nil
	for _, tier := range slices.Sorted(maps.Keys(r.FoundBy)) {
		rows = append(rows, []string{tier, fmt.Sprintf("%.4f", r.FoundBy[tier])})
	}
	b.WriteString(report.RenderTable([]string{"answer found by", "fraction"}, rows))
	return b.String()
}
