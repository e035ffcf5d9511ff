package app

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"rltrain/cmd/rltrain/config"
	"rltrain/cmd/rltrain/shared"
	"rltrain/envs"
	"rltrain/internal/files"
	"rltrain/internal/outfile"
	"rltrain/rl"
	"rltrain/rl/report"
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
	r := programResults{Task: c.String("task"), Dataset: c.String("dataset"), Completions: c.String("completions"), Classes: map[string]int{}, PassAt: map[string]float64{}}
	d, err := envs.Find(r.Task)
	if err != nil {
		return err
	}
	o := d.Options()
	own := flagNames(config.ExerciseFlags())
	settings := envs.Settings{}
	for _, name := range c.FlagNames() {
		switch {
		case slices.Contains([]string{"task", "completions", "completion-field", "output", "output-dir", "output-rows"}, name):
		case name == "dataset" || slices.Contains(own, name):
			settings[strings.ReplaceAll(name, "-", "_")] = fmt.Sprint(c.Value(name))
		default:
			return shared.UsageErrorf("--%s: does not apply with --completions FILE", name)
		}
	}
	if err := settings.Set(o); err != nil {
		if wrong := (*envs.OptionError)(nil); errors.As(err, &wrong) {
			return shared.UsageErrorf("--%s: %v", strings.ReplaceAll(wrong.Option, "_", "-"), wrong.Err)
		}
		return err
	}
	output := c.String("output")
	switch {
	case output != "" && c.String("output-dir") != "":
		return shared.UsageErrorf("--output and --output-dir both say where the results go; keep one")
	case output == "":
		output = filepath.Join(c.String("output-dir"), "logs", "eval_results.json")
	}
	if err := newResults(output); err != nil {
		return err
	}
	tries, shares := map[string][]bool{}, map[string]float64{}
	var lines bytes.Buffer
	rows := json.NewEncoder(&lines)
	rows.SetEscapeHTML(false)
	var failed error
	console := report.NewConsole(c.App.Writer, c.App.ErrWriter, time.Now)
	progress := func(int) {}
	each := func(p envs.Program) {
		if p.Row == 1 {
			bar := console.Bar("running", "programs", 0, p.Rows)
			progress = func(n int) {
				bar.Set(n, "")
				if n == p.Rows {
					bar.Done()
				}
			}
		}
		progress(p.Row)
		row := programRow{Row: p.Row, TaskID: p.Problem, Class: "sandbox-error", Message: p.Failure}
		if p.Info == nil {
			r.Excluded++
			r.Failure = cmp.Or(r.Failure, p.Failure)
		} else {
			t := p.Info.Tests
			tries[p.Problem] = append(tries[p.Problem], p.Info.Correct)
			shares[p.Problem] = max(shares[p.Problem], float64(t.Passed)/float64(max(1, t.Total)))
			r.Classes[t.Class]++
			r.N++
			if p.Info.Correct {
				r.Passed++
			}
			row.Class, row.Passed, row.Total, row.Seconds = t.Class, t.Passed, t.Total, t.Seconds
		}
		failed = cmp.Or(failed, rows.Encode(row))
	}
	r.Problems, err = o.(envs.ProgramSource).Programs(c.Context, envs.Setup{Judging: true}, r.Completions, cmp.Or(c.String("completion-field"), "completion"), each)
	if err := cmp.Or(err, failed); err != nil {
		if wrong := (*envs.OptionError)(nil); errors.As(err, &wrong) {
			return shared.UsageErrorf("--%s: %v", strings.ReplaceAll(wrong.Option, "_", "-"), wrong.Err)
		}
		return err
	}
	r.score(tries, shares)
	if path := c.String("output-rows"); path != "" {
		if err := makeDirs(filepath.Dir(path)); err != nil {
			return err
		}
		if err := outfile.Write(path, lines.Bytes(), 0o644); err != nil {
			return err
		}
	}
	if err := files.SaveJSON(output, r); err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.App.Writer, "%s\nWritten: %s\n", r, output)
	return err
}

// score makes the figures of what came of each problem's completions.
func (r *programResults) score(tries map[string][]bool, shares map[string]float64) {
	r.Attempted = len(tries)
	for _, k := range atKs {
		sum, n := 0.0, 0
		for _, all := range tries {
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
		if n > 0 && n == len(tries) {
			r.PassAt[fmt.Sprintf("pass@%d", k)] = sum / float64(n)
		}
	}
	r.Pass1 = r.PassAt["pass@1"]
	for _, share := range shares {
		r.TestRate += share / float64(len(shares))
	}
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
	var classes []string
	for class, n := range r.Classes {
		classes = append(classes, fmt.Sprintf("%s %d", class, n))
	}
	slices.Sort(classes)
	b.WriteString("\nhow they ended: " + strings.Join(classes, ", "))
	if r.Excluded > 0 {
		fmt.Fprintf(&b, "\nwarning: the sandbox failed for %d programs, which are left out; the first: %s", r.Excluded, r.Failure)
	}
	return b.String()
}
