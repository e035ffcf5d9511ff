package app

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/report"
)

// programTasks lists the tasks whose answers are programs.
func programTasks() []string {
	return tasksWhere(func(d envs.Definition) bool {
		_, ok := d.Options().(envs.ProgramSource)
		return ok
	})
}

// programResults is logs/eval_results.json for programs from a file.
type programResults struct {
	Task        string `json:"task"`
	Dataset     string `json:"dataset"`
	Completions string `json:"completions"`
	Problems    int    `json:"problems"`  // in the data set
	Attempted   int    `json:"attempted"` // problems with a completion that ran
	N           int    `json:"n"`         // completions that ran
	Passed      int    `json:"passed"`
	// PassAt has the unbiased estimates by "pass@k", for every k that all problems have completions for.
	PassAt map[string]float64 `json:"pass_at"`
	Pass1  float64            `json:"pass@1"`
	// Intervals are the 95 % intervals of PassAt, over problems.
	Intervals map[string]rl.Interval `json:"intervals"`
	// TestRate is the fraction of tests that the best completion passes, averaged over problems.
	TestRate float64        `json:"test_rate"`
	Classes  map[string]int `json:"classes"`
	Excluded int            `json:"sandbox_errors"` // completions that the sandbox failed to run
	Failure  string         `json:"sandbox_error,omitempty"`
}

// programRow is a line of --output-rows.
type programRow struct {
	Row        int     `json:"row"`
	TaskID     string  `json:"task_id"`
	Class      string  `json:"class"`
	Passed     int     `json:"passed"`
	Total      int     `json:"total"`
	Seconds    float64 `json:"cpu_s"`
	Message    string  `json:"message,omitempty"`
	Prompt     string  `json:"prompt"`
	Completion string  `json:"completion"`
}

// atKs lists the k of pass@k.
var atKs = []int{1, 2, 4, 5, 6, 8, 10, 16, 100}

// evalPrograms runs the programs of a file.
func evalPrograms(c *cli.Context) error {
	task, err := programOptions(c)
	if err != nil {
		return err
	}
	output, err := completionsOutput(c)
	if err != nil {
		return err
	}
	t := &programTally{
		programResults: programResults{Task: c.String("task"), Dataset: c.String("dataset"), Completions: c.String("completions"), PassAt: map[string]float64{}},
		attempts:       map[string]rl.Attempts{},
	}
	var rows []programRow
	progress := programProgress(c)
	each := func(p envs.Program) {
		progress(p)
		rows = append(rows, t.add(p))
	}
	t.Problems, err = task.(envs.ProgramSource).Programs(c.Context, envs.Setup{EvalOnly: true}, t.Completions, cmp.Or(c.String("completion-field"), "completion"), each)
	if err != nil {
		return usageFault(err)
	}
	if t.N == 0 {
		return fmt.Errorf("the sandbox ran none of %d programs; first error: %s", t.Excluded, t.Failure)
	}
	t.score()
	if err := saveRows(c.String("output-rows"), rows); err != nil {
		return err
	}
	return printResults(c, output, t.programResults)
}

// saveRows writes rows to a JSON Lines file, unless path is "".
func saveRows[T any](path string, rows []T) error {
	if path == "" {
		return nil
	}
	if err := makeDirs(filepath.Dir(path)); err != nil {
		return err
	}
	return files.SaveLines(path, rows)
}

// completionsFlags are the flags that always apply with --completions.
var completionsFlags = []string{"task", "completions", "completion-field", "output", "output-dir", "output-rows"}

// programOptions returns the task's options from the command line. An option that does not apply is an error.
func programOptions(c *cli.Context) (any, error) {
	d, err := envs.Find(c.String("task"))
	if err != nil {
		return nil, err
	}
	own := append(flagNames(config.ProblemFlags()), "dataset")
	if err := onlyFlags(c, "with --completions FILE", slices.Concat(own, completionsFlags)); err != nil {
		return nil, err
	}
	o := d.Options()
	return o, usageFault(settingsOf(c, own...).Set(o))
}

// completionsOutput returns the path of the results of --completions after checking that it is writable.
func completionsOutput(c *cli.Context) (string, error) {
	output := c.String("output")
	switch {
	case output != "" && c.String("output-dir") != "":
		return "", shared.UsageErrorf("--output and --output-dir conflict; keep one")
	case output == "":
		output = filepath.Join(c.String("output-dir"), "logs", "eval_results.json")
	}
	return output, newResults(output)
}

// programProgress returns a function that shows the progress.
func programProgress(c *cli.Context) func(envs.Program) {
	console := report.NewConsole(c.App.Writer, c.App.ErrWriter, time.Now)
	var bar *report.Bar
	return func(p envs.Program) {
		if bar == nil {
			bar = console.Bar("eval", "programs", 0, p.Rows)
		}
		bar.Set(p.Row, "")
		if p.Row == p.Rows {
			bar.Done()
		}
	}
}

// programTally collects the outcome of each program.
type programTally struct {
	programResults
	attempts map[string]rl.Attempts // by problem
}

// add counts a program and returns its row.
func (t *programTally) add(p envs.Program) programRow {
	row := programRow{Row: p.Row, TaskID: p.Problem, Class: "sandbox-error", Message: p.Failure, Prompt: p.Prompt, Completion: p.Completion}
	if p.Info == nil {
		t.Excluded++
		t.Failure = cmp.Or(t.Failure, p.Failure)
		return row
	}
	tests := p.Info.Tests
	row.Class, row.Passed, row.Total, row.Seconds = tests.Class, tests.Passed, tests.Total, tests.Seconds
	t.attempts[p.Problem] = append(t.attempts[p.Problem], p.Info)
	t.N++
	if p.Info.Correct {
		t.Passed++
	}
	return row
}

// score computes the metrics from the outcomes.
func (t *programTally) score() {
	t.Attempted = len(t.attempts)
	var all []rl.Attempts
	fewest := t.N
	for _, name := range slices.Sorted(maps.Keys(t.attempts)) { // sums are reproducible
		all, fewest = append(all, t.attempts[name]), min(fewest, len(t.attempts[name]))
	}
	t.Intervals = map[string]rl.Interval{}
	for _, k := range atKs {
		if k > fewest {
			break
		}
		var passes []float64
		for _, attempts := range all {
			passes = append(passes, attempts.Pass(k))
		}
		name, e := fmt.Sprintf("pass@%d", k), rl.RateEstimate(passes)
		t.PassAt[name], t.Intervals[name] = e.Value, e.Interval
	}
	t.Pass1 = t.PassAt["pass@1"]
	rate, classes := programFigures(all)
	t.TestRate, t.Classes = *rate, classes
}

// programFigures returns the fraction of tests that the best program passes, averaged over problems, and the number of
// programs by outcome. Both are nil if no attempt is a program.
func programFigures(all []rl.Attempts) (testRate *float64, classes map[string]int) {
	var best []float64
	for _, attempts := range all {
		rate, ran := 0.0, false
		for _, info := range attempts {
			if info == nil || info.Tests == nil {
				continue
			}
			if classes == nil {
				classes = map[string]int{}
			}
			classes[info.Tests.Class]++
			rate, ran = max(rate, float64(info.Tests.Passed)/float64(max(1, info.Tests.Total))), true
		}
		if ran {
			best = append(best, rate)
		}
	}
	if len(best) == 0 {
		return nil, nil
	}
	mean := rl.MeanEstimate(best).Value
	return &mean, classes
}

// String returns the text that eval prints.
func (r programResults) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d of %d programs pass (%d of %d problems)\n", r.Completions, r.Passed, r.N, r.Attempted, r.Problems)
	b.WriteString(rl.FewRows(r.Attempted, "problems"))
	var rows [][]string
	for _, k := range atKs {
		name := fmt.Sprintf("pass@%d", k)
		if value, ok := r.PassAt[name]; ok {
			rows = append(rows, report.EstimateRow(name, rl.Estimate{Value: value, Interval: r.Intervals[name]}))
		}
	}
	rows = append(rows, []string{"tests passed, best program", fmt.Sprintf("%.4f", r.TestRate), ""})
	b.WriteString(report.RenderTable([]string{"metric", "value", "95 % CI"}, rows))
	b.WriteString("\noutcomes: " + classes(r.Classes))
	if r.Excluded > 0 {
		fmt.Fprintf(&b, "\nwarning: skipped %d programs that the sandbox failed to run; first error: %s", r.Excluded, r.Failure)
	}
	return b.String()
}

// classes formats the number of programs by outcome.
func classes(counts map[string]int) string {
	var all []string
	for _, class := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, fmt.Sprintf("%s %d", class, counts[class]))
	}
	return strings.Join(all, ", ")
}
