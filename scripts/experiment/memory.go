package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/rl/report"
	runs "github.com/rltrain/rltrain/rl/run"
)

// memoryExperiment compares the memory that --dry-run predicts with the peak of the runs.
type memoryExperiment struct {
	*experiment
	results memoryResults
}

// memoryResults is the content of the results file.
type memoryResults struct {
	Runs []memoryRun `json:"runs"`
}

// memoryRun is one planned run.
type memoryRun struct {
	Name     string  `json:"name"`
	Options  string  `json:"options"`
	Estimate float64 `json:"estimate_mib"`
	Peak     float64 `json:"peak_mib"`
}

// plannedRuns cover many kinds of runs. TEXTS are documents of 20 to 2,000 characters, SHORT of 10 to 60, PAIRS preferences
// of many lengths; START and INTENT are outputs of the supervised runs.
var plannedRuns = []struct{ name, options string }{
	{"intent, supervised", "--mode supervised --epochs 1"},
	{"intent, PPO", "--mode rl_only --pretrained-model INTENT --rl-episodes 4 --eval-every 2"},
	{"text, GRPO", "--task text --algorithm grpo --rl-episodes 8 --eval-every 4"},
	{"digits, supervised", "--task sum_digits --mode supervised --max-steps 60 --warmup-check-every 30"},
	{"digits, GRPO", "--task sum_digits --mode rl_only --pretrained-model START --algorithm grpo --num-steps 8 --eval-every 4 --fresh-samples 0"},
	{"digits, PPO", "--task sum_digits --mode rl_only --pretrained-model START --algorithm ppo --num-steps 8 --eval-every 4 --fresh-samples 0"},
	{"chat, long texts", "--task chat --model tiny --dataset TEXTS --epochs 1"},
	{"chat, short texts", "--task chat --model tiny --dataset SHORT --epochs 1"},
	{"chat, 12 layers 512 wide", "--task chat --model tiny --tiny-layers 12 --tiny-hidden 512 --dataset SHORT --max-steps 12"},
	{"preferences, DPO", "--task preference --model START --dataset PAIRS --epochs 1"},
	{"intent, PPO, a second try", "--mode rl_only --pretrained-model INTENT --rl-episodes 4 --eval-every 2"},
}

func (e *memoryExperiment) run(ctx context.Context) error {
	if err := files.LoadJSON(e.out, &e.results); err != nil && !os.IsNotExist(err) {
		return err
	}
	if err := e.write(); err != nil {
		return err
	}
	for _, planned := range plannedRuns {
		if slices.ContainsFunc(e.results.Runs, func(r memoryRun) bool { return r.Name == planned.name }) {
			continue
		}
		out := filepath.Join(e.work, strings.ReplaceAll(planned.name, " ", "_"))
		if err := os.RemoveAll(out); err != nil {
			return err
		}
		options := strings.NewReplacer("TEXTS", e.file("texts"), "SHORT", e.file("short"), "PAIRS", e.file("pairs"), "START", filepath.Join(e.work, "digits,_supervised", "sum_digits_supervised"),
			"INTENT", filepath.Join(e.work, "intent,_supervised", "intent_classifier_supervised")).Replace(planned.options)
		args := append(strings.Fields(options), "--threads", "1", "--output-dir", out)
		_, told, err := command(ctx, e.program, append(args, "--dry-run")...)
		if err != nil {
			return err
		}
		found := regexp.MustCompile(`at most +(\d+) MiB`).FindStringSubmatch(told)
		if found == nil {
			return fmt.Errorf("%s: no memory in what --dry-run says: %s", planned.name, told)
		}
		estimate, _ := strconv.ParseFloat(found[1], 64)
		if _, _, err := command(ctx, e.program, args...); err != nil {
			return err
		}
		peak := int64(0)
		stages, err := filepath.Glob(filepath.Join(out, "*", "run.json"))
		if err != nil {
			return err
		}
		for _, stage := range stages {
			record, err := runs.ReadRun(filepath.Dir(stage))
			if err != nil {
				return err
			}
			peak = max(peak, record.PeakMemory)
		}
		e.results.Runs = append(e.results.Runs, memoryRun{planned.name, planned.options, estimate, float64(peak) / (1 << 20)})
		if err := save(e.out, e.results); err != nil {
			return err
		}
	}
	return nil
}

func (e *memoryExperiment) file(name string) string { return filepath.Join(e.work, name+".jsonl") }

// write writes the data sets.
func (e *memoryExperiment) write() error {
	if err := os.MkdirAll(e.work, 0o755); err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(1, 1))
	words := func(least, most int) string {
		var b strings.Builder
		for n := least + rng.IntN(most-least); b.Len() < n; {
			b.WriteString([]string{"the ", "sum ", "of ", "numbers ", "is ", "a ", "long ", "and "}[rng.IntN(8)])
		}
		return b.String()
	}
	for name, row := range map[string]func() map[string]string{
		"texts": func() map[string]string { return map[string]string{"text": words(20, 2000)} },
		"short": func() map[string]string { return map[string]string{"text": words(10, 60)} },
		"pairs": func() map[string]string {
			return map[string]string{"prompt": words(10, 200), "chosen": words(10, 300), "rejected": words(10, 300)}
		},
	} {
		var b strings.Builder
		for range 200 {
			line, err := json.Marshal(row())
			if err != nil {
				return err
			}
			b.Write(append(line, '\n'))
		}
		if err := outfile.Write(e.file(name), []byte(b.String()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// markdown is the experiment's table.
func (r memoryResults) markdown() string {
	var rows [][]string
	for _, run := range r.Runs {
		rows = append(rows, []string{run.Name, fmt.Sprintf("%.0f", run.Estimate), fmt.Sprintf("%.0f", run.Peak), fmt.Sprintf("%+.1f", 100*(run.Estimate/run.Peak-1))})
	}
	return report.MarkdownTable([]string{"run", "--dry-run, MiB", "measured, MiB", "error, %"}, rows)
}

// writeMemoryTable writes the table into the page.
func writeMemoryTable(page, results string) error {
	var r memoryResults
	if err := files.LoadJSON(results, &r); err != nil {
		return err
	}
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	out, err := replaceBlock(string(text), "memory", r.markdown())
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	return outfile.Write(page, []byte(out), 0o644)
}
