package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/report"
)

// realExperiment trains SmolLM2-135M-Instruct on the tasks, with the settings that a user gets who names a pretrained model,
// but for what bounds the time.
type realExperiment struct {
	*experiment
	rows    []realRow
	data    string // folder of public data sets
	only    string // row; "" = all
	device  string // as the program's --device has it
	results realResults
}

// realResults is the content of the results file.
type realResults struct {
	Runs []realRun `json:"runs"`
}

// realRun is one row with one seed.
type realRun struct {
	Row     string       `json:"row"`
	Seed    int          `json:"seed"`
	Device  string       `json:"device"`
	Options [][]string   `json:"options"` // of each command
	Seconds float64      `json:"seconds"`
	CPU     float64      `json:"cpu_seconds"`
	Load    [2]float64   `json:"load_average"` // of the machine in the last minute, before and after; 2 is a run alone
	Figures []realFigure `json:"figures"`
}

// realFigure is what was measured on held-out rows at one point of a run.
type realFigure struct {
	When     string      `json:"when"`
	What     string      `json:"what"`
	N        int         `json:"n"`
	Value    float64     `json:"value"`
	Interval rl.Interval `json:"interval"` // 95 %
}

// Points of a run.
const (
	atStart  = "start"
	afterSFT = "after SFT"
	afterRL  = "after RL"
)

// Figures that the table has no column for: the mean length of answers, and the change that RL makes on the same rows.
const (
	answerCharacters = "characters of an answer"
	pairedChange     = "paired change of accuracy"
)

// realCommand is a call of the program. WORK is the row's data, OUT its results, SEED its seed.
type realCommand struct {
	options string
	read    func(out string) ([]realFigure, error)
}

// realRow is a row of the table.
type realRow struct {
	name     string
	data     func(e *realExperiment, dir string) error // writes what WORK stands for; nil for built-in problems
	commands []realCommand
}

func (e *realExperiment) run(ctx context.Context) error {
	if err := files.LoadJSON(e.out, &e.results); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, row := range e.rows {
		if e.only != "" && e.only != row.name {
			continue
		}
		for _, seed := range e.eachSeed() {
			if slices.ContainsFunc(e.results.Runs, func(r realRun) bool { return r.Row == row.name && r.Seed == seed }) {
				continue
			}
			r, err := e.train(ctx, row, seed)
			if err != nil {
				return fmt.Errorf("%s, seed %d: %w", row.name, seed, err)
			}
			fmt.Printf("%-28s seed %d  %s  %.0f s\n", r.Row, r.Seed, strings.Join(r.cells(), "  "), r.Seconds)
			e.results.Runs = append(e.results.Runs, r)
			if err := save(e.out, e.results); err != nil {
				return err
			}
		}
	}
	return nil
}

// train runs a row's commands.
func (e *realExperiment) train(ctx context.Context, row realRow, seed int) (realRun, error) {
	r := realRun{Row: row.name, Seed: seed, Device: "CPU"}
	if e.device != "cpu" {
		name, err := exec.CommandContext(ctx, "nvidia-smi", "--query-gpu=name", "--format=csv,noheader").Output()
		if err != nil {
			return r, fmt.Errorf("name of the GPU: %w", err)
		}
		r.Device, _, _ = strings.Cut(strings.TrimPrefix(strings.TrimSpace(string(name)), "NVIDIA "), " ")
	}
	data, out := filepath.Join(e.work, folderOf(row.name), "data"), filepath.Join(e.work, folderOf(row.name), strconv.Itoa(seed))
	if row.data != nil {
		if _, err := os.Stat(data); err != nil {
			if err := errors.Join(os.MkdirAll(data, 0o755), row.data(e, data)); err != nil {
				return r, errors.Join(err, os.RemoveAll(data))
			}
		}
	}
	if err := os.RemoveAll(out); err != nil { // what a stopped call left
		return r, err
	}
	r.Load[0] = loadAverage()
	began := time.Now()
	for _, c := range row.commands {
		two := filepath.Join(e.work, folderOf(realRows[0].name), strconv.Itoa(seed), "prompts_rl")
		args := strings.Fields(strings.NewReplacer("WORK", data, "OUT", out, "TWO", two, "SEED", strconv.Itoa(seed)).Replace(c.options + " --threads 2 --device " + e.device))
		cpu, _, err := command(ctx, e.program, args...)
		if err != nil {
			return r, err
		}
		r.CPU += cpu
		r.Options = append(r.Options, portable(args, data, out, e.work))
		if c.read == nil {
			continue
		}
		figures, err := c.read(out)
		if err != nil {
			return r, err
		}
		r.Figures = append(r.Figures, figures...)
	}
	r.Seconds, r.Load[1] = time.Since(began).Seconds(), loadAverage()
	return r, nil
}

// loadAverage is the number of running threads of the machine, averaged over the last minute; 0 where it is not known.
func loadAverage() float64 {
	data, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(data), " ")
	load, _ := strconv.ParseFloat(first, 64)
	return load
}

// at is the figure of a point, in percent; nil where there is none.
func (r realRun) at(when string) *realFigure {
	i := slices.IndexFunc(r.Figures, func(f realFigure) bool { return f.When == when && f.What != answerCharacters && f.What != pairedChange })
	if i < 0 {
		return nil
	}
	return &r.Figures[i]
}

// String is a percentage with its interval.
func (f *realFigure) String() string {
	if f == nil {
		return ""
	}
	return percent(f.Value, f.Interval)
}

func (r realRun) cells() []string {
	return []string{r.at(atStart).String(), r.at(afterSFT).String(), r.at(afterRL).String()}
}

// markdown is the experiment's tables.
func (r realResults) markdown() string {
	var rows, changes, lengths [][]string
	for _, row := range realRows {
		for _, run := range r.Runs {
			if run.Row != row.name || run.at(afterRL) == nil {
				continue
			}
			name, load := []string{run.Row, run.Device, fmt.Sprint(run.Seed)}, ""
			if run.Device == "CPU" {
				load = unlessZero("%.0f", min(run.Load[0], run.Load[1])) + unlessZero("–%.0f", max(run.Load[0], run.Load[1]))
			}
			rows = append(rows, slices.Concat(name, []string{fmt.Sprint(run.at(afterRL).N)}, run.cells(),
				[]string{unlessZero("%.0f", run.CPU/60), fmt.Sprintf("%.1f", run.Seconds/60), load}))
			for _, f := range run.Figures {
				n := fmt.Sprint(f.N)
				switch {
				case f.What == pairedChange:
					changes = append(changes, slices.Concat(name, []string{n, fmt.Sprintf("%+.1f [%+.1f, %+.1f]", 100*f.Value, 100*f.Interval[0], 100*f.Interval[1])}))
				case f.What != answerCharacters:
				case f.When == atStart:
					lengths = append(lengths, slices.Concat(name, []string{n, fmt.Sprintf("%.0f [%.0f, %.0f]", f.Value, f.Interval[0], f.Interval[1]), ""}))
				default:
					lengths[len(lengths)-1][5] = fmt.Sprintf("%.0f [%.0f, %.0f]", f.Value, f.Interval[0], f.Interval[1])
				}
			}
		}
	}
	head := []string{"row", "device", "seed", "n"}
	return report.MarkdownTable(append(slices.Clone(head), "start", "after SFT", "after RL", "CPU min", "min", "load"), rows) +
		"\nChange of accuracy by RL on the same rows, in points:\n\n" + report.MarkdownTable(append(slices.Clone(head), "change"), changes) +
		"\nCharacters of an answer before and after DPO:\n\n" + report.MarkdownTable(append(slices.Clone(head), "start", "after DPO"), lengths)
}

// unlessZero is a figure, or nothing where it was not measured.
func unlessZero(format string, value float64) string {
	if value == 0 {
		return ""
	}
	return fmt.Sprintf(format, value)
}

// writeRealTable writes the table into its page.
func writeRealTable(page, results string) error {
	var r realResults
	if err := files.LoadJSON(results, &r); err != nil {
		return err
	}
	return writeBlock(page, "real-models", r.markdown())
}

// writeBlock replaces a page's block of that name.
func writeBlock(page, name, content string) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	out, err := replaceBlock(string(text), name, content)
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	return outfile.Write(page, []byte(out), 0o644)
}
