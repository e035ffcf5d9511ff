package app

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
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
	"github.com/rltrain/rltrain/internal/options"
	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/report"
)

// programTasks are the tasks whose answers are programs.
func programTasks() []string {
	return tasksWhere(func(d envs.Definition) bool {
		_, ok := d.Options().(envs.ProgramSource)
		return ok
	})
}

// programResults is the content of the results file for programs from a file.
type programResults struct {
	Task        string `json:"task"`
	Dataset     string `json:"dataset"`
	Completions string `json:"completions"`
	Problems    int    `json:"problems"`  // in the data set
	Attempted   int    `json:"attempted"` // of them, by completions that were judged
	N           int    `json:"n"`         // completions that were judged
	Passed      int    `json:"passed"`
	// PassAt is the mean over the problems with at least k completions of the unbiased estimate, by "pass@k".
	PassAt map[string]float64 `json:"pass_at"`
	Pass1  float64            `json:"pass@1"`
	// TestRate is the mean over problems of the share of tests that the best completion passes.
	TestRate float64        `json:"test_rate"`
	Classes  map[string]int `json:"classes"`
	Excluded int            `json:"sandbox_errors"` // completions of which nothing is known, because the sandbox failed
	Failure  string         `json:"sandbox_error,omitempty"`
}

// programRow is a line of --output-rows.
type programRow struct {
	Row     int     `json:"row"`
	TaskID  string  `json:"task_id"`
	Class   string  `json:"class"`
	Passed  int     `json:"passed"`
	Total   int     `json:"total"`
	Seconds float64 `json:"cpu_s"`
	Message string  `json:"message,omitempty"`
}

// atKs are the k of pass@k.
var atKs = []int{1, 2, 4, 5, 6, 8, 10, 16, 100}

// evalPrograms runs the programs of a file.
func evalPrograms(c *cli.Context) error {
	task, err := programOptions(c)
	if err != nil {
		return err
	}
	output, err := programOutput(c)
	if err != nil {
		return err
	}
	t := &programTally{
		programResults: programResults{Task: c.String("task"), Dataset: c.String("dataset"), Completions: c.String("completions"), Classes: map[string]int{}, PassAt: map[string]float64{}},
		tries:          map[string][]bool{}, shares: map[string]float64{},
	}
	var lines bytes.Buffer
	rows := json.NewEncoder(&lines)
	rows.SetEscapeHTML(false)
	var failed error
	progress := programProgress(c)
	each := func(p envs.Program) {
		progress(p)
		failed = cmp.Or(failed, rows.Encode(t.add(p)))
	}
	t.Problems, err = task.(envs.ProgramSource).Programs(c.Context, envs.Setup{EvalOnly: true}, t.Completions, cmp.Or(c.String("completion-field"), "completion"), each)
	if err := cmp.Or(err, failed); err != nil {
		return optionFault(err)
	}
	if t.N == 0 {
		return fmt.Errorf("none of %d programs could be judged; the first: %s", t.Excluded, t.Failure)
	}
	t.score()
	if path := c.String("output-rows"); path != "" {
		if err := makeDirs(filepath.Dir(path)); err != nil {
			return err
		}
		if err := outfile.Write(path, lines.Bytes(), 0o644); err != nil {
			return err
		}
	}
	if err := files.SaveJSON(output, t.programResults); err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.App.Writer, "%s\nWritten: %s\n", t.programResults, output)
	return err
}

// programOptions are the task's options as the command line sets them. An option that does not apply is an error.
func programOptions(c *cli.Context) (any, error) {
	d, err := envs.Find(c.String("task"))
	if err != nil {
		return nil, err
	}
	own := flagNames(config.ProblemFlags())
	settings := envs.Settings{}
	for _, name := range c.FlagNames() {
		switch {
		case slices.Contains([]string{"task", "completions", "completion-field", "output", "output-dir", "output-rows"}, name):
		case name == "dataset" || slices.Contains(own, name):
			settings[strings.ReplaceAll(name, "-", "_")] = fmt.Sprint(c.Value(name))
		default:
			return nil, shared.UsageErrorf("--%s: does not apply with --completions FILE", name)
		}
	}
	o := d.Options()
	return o, optionFault(settings.Set(o))
}

// optionFault is err as a fault of the command line, where it names an option.
func optionFault(err error) error {
	if wrong := (*envs.OptionError)(nil); errors.As(err, &wrong) {
		return shared.UsageErrorf("%s: %v", options.Flag(wrong.Option), wrong.Err)
	}
	return err
}

// programOutput is the file that the results go to; it can be written.
func programOutput(c *cli.Context) (string, error) {
	output := c.String("output")
	switch {
	case output != "" && c.String("output-dir") != "":
		return "", shared.UsageErrorf("--output and --output-dir both say where the results go; keep one")
	case output == "":
		output = filepath.Join(c.String("output-dir"), "logs", "eval_results.json")
	}
	return output, newResults(output)
}

// programProgress returns a function that shows how many programs have run.
func programProgress(c *cli.Context) func(envs.Program) {
	console := report.NewConsole(c.App.Writer, c.App.ErrWriter, time.Now)
	var bar *report.Bar
	return func(p envs.Program) {
		if bar == nil {
			bar = console.Bar("running", "programs", 0, p.Rows)
		}
		bar.Set(p.Row, "")
		if p.Row == p.Rows {
			bar.Done()
		}
	}
}

// programTally collects what came of each program.
type programTally struct {
	programResults
	tries  map[string][]bool  // by problem: which completions pass
	shares map[string]float64 // by problem: share of the tests that the best completion passes
}

// add counts a program and returns its row.
func (t *programTally) add(p envs.Program) programRow {
	row := programRow{Row: p.Row, TaskID: p.Problem, Class: "sandbox-error", Message: p.Failure}
	if p.Info == nil {
		t.Excluded++
		t.Failure = cmp.Or(t.Failure, p.Failure)
		return row
	}
	tests := p.Info.Tests
	row.Class, row.Passed, row.Total, row.Seconds = tests.Class, tests.Passed, tests.Total, tests.Seconds
	t.tries[p.Problem] = append(t.tries[p.Problem], p.Info.Correct)
	t.shares[p.Problem] = max(t.shares[p.Problem], float64(tests.Passed)/float64(max(1, tests.Total)))
	t.Classes[tests.Class]++
	t.N++
	if p.Info.Correct {
		t.Passed++
	}
	return row
}

// score makes the figures of what came of each problem's completions.
func (t *programTally) score() {
	t.Attempted = len(t.tries)
	names := slices.Sorted(maps.Keys(t.tries)) // sums are the same each time
	for _, k := range atKs {
		sum, n := 0.0, 0
		for _, name := range names {
			all := t.tries[name]
			if len(all) < k {
				continue
			}
			right := 0
			for _, ok := range all {
				if ok {
					right++
				}
			}
			sum += rl.PassAt(len(all), right, k)
			n++
		}
		if n > 0 && n == len(t.tries) {
			t.PassAt[fmt.Sprintf("pass@%d", k)] = sum / float64(n)
		}
	}
	t.Pass1 = t.PassAt["pass@1"]
	for _, name := range names {
		t.TestRate += t.shares[name]
	}
	t.TestRate /= float64(len(names))
}

// String is what eval prints.
func (r programResults) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d of %d programs pass, for %d of %d problems\n", r.Completions, r.Passed, r.N, r.Attempted, r.Problems)
	var rows [][]string
	for _, k := range atKs {
		name := fmt.Sprintf("pass@%d", k)
		if value, ok := r.PassAt[name]; ok {
			rows = append(rows, []string{name, fmt.Sprintf("%.4f", value)})
		}
	}
	rows = append(rows, []string{"tests passed by the best", fmt.Sprintf("%.4f", r.TestRate)})
	b.WriteString(report.RenderTable([]string{"figure", "value"}, rows))
	b.WriteString("\nhow they ended: " + classes(r.Classes))
	if r.Excluded > 0 {
		fmt.Fprintf(&b, "\nwarning: the sandbox failed for %d programs, which are left out; the first: %s", r.Excluded, r.Failure)
	}
	return b.String()
}

// classes says how many programs ended in which way.
func classes(counts map[string]int) string {
	var all []string
	for _, class := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, fmt.Sprintf("%s %d", class, counts[class]))
	}
	return strings.Join(all, ", ")
}
