package main

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/report"
)

// writeTables replaces the text between <!-- NAME --> and <!-- /NAME --> in the page by tables of the results.
func writeTables(page, folder string) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	var r intentResults
	if err := files.LoadJSON(filepath.Join(folder, "intent_mmlu_pro.json"), &r); err != nil {
		return err
	}
	var digits digitsResults
	if err := files.LoadJSON(filepath.Join(folder, "digits.json"), &digits); err != nil {
		return err
	}
	bodies := map[string]string{"intent_mmlu_pro": r.markdown(), "digits": digits.markdown()}
	// An experiment without results has no table.
	add := func(name string, read func(path string, into any) error, into any, table func() string) error {
		err := read(filepath.Join(folder, name+".json"), into)
		if err == nil {
			bodies[name] = table()
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	for name, table := range map[string]interface{ markdown() string }{"preference": &preferenceResults{}, "code": &codeResults{}, "text": &textResults{}, "distributed": &distributedResults{}} {
		if err := add(name, files.LoadJSON, table, func() string { return table.markdown() }); err != nil {
			return err
		}
	}
	for name, table := range map[string]interface{ markdown() string }{"gpu": &gpuResults{}, "latency": &latencyResults{}, "weights": &weightsResults{}, "quantized": &quantizedResults{}, "quantized_zen": &quantizedResults{}, "quantized_avx2": &quantizedResults{}, "families": &familiesResults{}, "encoders": &encodersResults{}, "engine": &engineResults{}, "engine_memory": &engineMemory{}, "skyrl": &skyrlResults{}} {
		if err := add(name, readJSON, table, func() string { return table.markdown() }); err != nil {
			return err
		}
	}
	for name, what := range map[string]string{"bench_classifier": "Seconds per step in fp32", "bench_language": "Seconds per step", "bench_amx": "Seconds per step"} {
		var b benchResults
		if err := readJSON(filepath.Join(folder, name+".json"), &b); err != nil {
			return err
		}
		bodies[name] = b.markdown(what)
	}
	var cpu, clock, amx benchResults
	var products productResults
	var atMost amxLimits
	if err := readJSON(filepath.Join(folder, "bench_amx.json"), &amx); err != nil {
		return err
	}
	for _, timed := range []struct {
		name string
		into any
		body func() string
	}{
		{"bench_cpu", &cpu, func() string { return cpu.goals("CPU seconds per step on") }},
		{"bench_clock", &clock, func() string { return clock.goals("Seconds per step on") }},
		{"products", &products, func() string { return limits(products, cpu, clock) }},
		{"amx_limits", &atMost, func() string { return atMost.markdown(amx) }},
	} {
		if err := add(timed.name, readJSON, timed.into, timed.body); err != nil {
			return err
		}
	}
	out := string(text)
	for name, body := range bodies {
		if out, err = replaceBlock(out, name, body); err != nil {
			return fmt.Errorf("%s: %w", page, err)
		}
	}
	return outfile.Write(page, []byte(out), 0o644)
}

func replaceBlock(text, name, body string) (string, error) {
	begin, end := "<!-- "+name+" -->\n", "<!-- /"+name+" -->"
	head, rest, ok := strings.Cut(text, begin)
	if !ok {
		return "", fmt.Errorf("no line %q", strings.TrimSpace(begin))
	}
	_, tail, ok := strings.Cut(rest, end)
	if !ok {
		return "", fmt.Errorf("no line %q", end)
	}
	return head + begin + body + end + tail, nil
}

// markdown is the experiment's two tables.
func (r intentResults) markdown() string {
	var settings []string
	for _, run := range r.Runs {
		if !slices.Contains(settings, run.Setting) && !strings.HasPrefix(run.Setting, "tune ") {
			settings = append(settings, run.Setting)
		}
	}
	var rows [][]string
	for _, setting := range settings {
		var accuracy, f1, ece, brier, cpu []float64
		for _, run := range r.Runs {
			if run.Setting == setting {
				accuracy, f1 = append(accuracy, 100*run.Test.Accuracy), append(f1, 100*run.Test.F1Macro)
				ece, brier = append(ece, run.Test.ECE), append(brier, run.Test.Brier)
				cpu = append(cpu, run.CPUSeconds)
			}
		}
		rows = append(rows, []string{names(setting), fmt.Sprint(len(accuracy)), spread(accuracy, 1), spread(f1, 1), spread(ece, 4), spread(brier, 4), fmt.Sprintf("%.0f", slices.Min(cpu))})
	}
	text := fmt.Sprintf("%s: %d training, %d validation and %d test rows; mean ± standard deviation over seeds, on the test rows. Chosen on validation: %s.\n\n",
		r.Data, r.Rows["train"], r.Rows["val"], r.Rows["test"], r.Chosen)
	text += report.MarkdownTable([]string{"run", "seeds", "accuracy %", "F1 macro %", "ECE", "Brier", "CPU s, least"}, rows)
	rows = nil
	for _, run := range r.Runs {
		if c := run.Against; c != nil {
			rows = append(rows, []string{names(run.Setting), fmt.Sprint(run.Seed), fmt.Sprint(run.Updates),
				difference(c.Accuracy, 100, 1), difference(c.F1Macro, 100, 1), difference(c.ECE, 1, 4), difference(c.Brier, 1, 4)})
		}
	}
	for _, setting := range settings {
		if c, ok := r.Pooled[setting]; ok {
			rows = append(rows, []string{names(setting), "all", "",
				difference(c.Accuracy, 100, 1), difference(c.F1Macro, 100, 1), difference(c.ECE, 1, 4), difference(c.Brier, 1, 4)})
		}
	}
	text += "\nDifferences from the checkpoint, with paired 95 % bootstrap intervals; \"all\" is the mean over seeds:\n\n"
	return text + report.MarkdownTable([]string{"run", "seed", "updates", "accuracy, points", "F1 macro, points", "ECE", "Brier"}, rows)
}

func names(setting string) string {
	switch setting {
	case supervised:
		return "supervised, all training rows"
	case peerRun:
		return "the same in Python (transformers + PEFT)"
	case checkpoint:
		return "checkpoint: supervised, 3/4 of the rows"
	case continued:
		return "checkpoint + supervised, the other 1/4"
	}
	return strings.Replace(setting, "rl ", "checkpoint + PPO on the other 1/4, reward ", 1)
}

func mean(xs []float64) float64 {
	sum := 0.0
	for _, x := range xs {
		sum += x
	}
	return sum / float64(len(xs))
}

func spread(xs []float64, digits int) string {
	m, squares := mean(xs), 0.0
	for _, x := range xs {
		squares += (x - m) * (x - m)
	}
	if len(xs) < 2 {
		return fmt.Sprintf("%.*f", digits, m)
	}
	return fmt.Sprintf("%.*f ± %.*f", digits, m, digits, math.Sqrt(squares/float64(len(xs)-1)))
}

func difference(d rl.Difference, scale float64, digits int) string {
	return fmt.Sprintf("%+.*f [%+.*f, %+.*f]", digits, scale*d.Difference, digits, scale*d.Interval[0], digits, scale*d.Interval[1])
}
