package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/rl/report"
)

// Groups of the rows of SmolLM2 on two-digit sums and differences, each with a table.
const (
	sumSFT        = "SFT"
	sumObjectives = "objectives"
	sumGRPO       = "GRPO"
)

// shownSums writes sums of two digits with their answers as demonstrations.
func shownSums(_ *realExperiment, dir string) error {
	sample := sampleSum(2)
	return writeArithmetic(dir, func(rng *rand.Rand) arithmeticRow {
		row := sample(rng)
		row.Completion = strconv.Itoa(row.Answer)
		return row
	})
}

// sumSetting is what a row of a table differs in from the others.
type sumSetting struct{ name, options string }

// sumObjectiveSettings are the objectives that did best with the model tiny.
func sumObjectiveSettings() (settings []sumSetting) {
	for _, o := range objectives {
		switch o.name {
		case "grpo", "dapo", "gspo", "vespo", "maxrl":
			settings = append(settings, sumSetting{o.name, o.options + " --minibatches 4"})
		}
	}
	return settings
}

// sumAdapterSettings are the modules, ranks and learning rates of adapters: all ranks at the middle rate, all rates at rank 16,
// and full fine-tuning at a tenth of the rate.
func sumAdapterSettings() (settings []sumSetting) {
	add := func(targets string, rank int, rate string) {
		settings = append(settings, sumSetting{fmt.Sprintf("%s, rank %d, rate %s", targets, rank, rate),
			fmt.Sprintf("--lora-target-modules %s --lora-r %d --lora-alpha 32 RATE %s", targets, rank, rate)})
	}
	for _, targets := range []string{"all-linear", "q_proj,v_proj"} {
		add(targets, 16, "2e-4")
		add(targets, 1, "2e-4")
		add(targets, 64, "2e-4")
		add(targets, 16, "1e-3")
		add(targets, 16, "5e-5")
		add(targets, 4, "2e-4")
	}
	return append(settings, sumSetting{"full, rate 2e-5", "--tuning full RATE 2e-5"})
}

// sumRows are the rows of all tables, in the order of what they are worth. A name begins with that of its group.
func sumRows() (rows []realRow) {
	trained := strings.NewReplacer("--eval-every 60 --num-steps 120", "--eval-every STEPS --num-steps STEPS --keep last").Replace(arithmeticIn(12))
	for _, o := range sumObjectiveSettings() {
		rows = append(rows, realRow{sumObjectives + ": " + o.name, sums(2), []realCommand{
			{strings.ReplaceAll(trained, "STEPS", "100") + " " + o.options, answersOf("prompts_rl", atStart)}}})
	}
	for _, a := range sumAdapterSettings() {
		rows = append(rows, realRow{sumSFT + ": " + a.name, shownSums, []realCommand{
			{"--task prompts --mode supervised --model smollm2 --dataset WORK/train.jsonl --epochs 1 --batch-size 16 --seed SEED --output-dir OUT " +
				strings.Replace(a.options, "RATE", "--learning-rate", 1), nil},
			{"eval --task prompts --model OUT/prompts_supervised --dataset WORK/test.jsonl --max-new-tokens 12 --eval-samples 300 --output OUT/sft.json", evaluated(afterSFT, "sft.json")}}})
	}
	for _, a := range sumAdapterSettings() {
		rows = append(rows, realRow{sumGRPO + ": " + a.name, sums(2), []realCommand{
			{strings.ReplaceAll(trained, "STEPS", "60") + " " + strings.Replace(a.options, "RATE", "--rl-learning-rate", 1), answersOf("prompts_rl", atStart)}}})
	}
	return rows
}

// sumTable is the table of a group.
func (r realResults) sumTable(group string) string {
	var rows [][]string
	for _, row := range sumRows() {
		name, in := strings.CutPrefix(row.name, group+": ")
		for _, run := range r.Runs {
			if !in || run.Row != row.name {
				continue
			}
			after := cmp.Or(run.at(afterRL), run.at(afterSFT))
			rows = append(rows, []string{name, run.Device, strconv.Itoa(run.Seed), strconv.Itoa(after.N), run.at(atStart).String(), after.String(),
				fmt.Sprintf("%.1f", run.CPU/60), fmt.Sprintf("%.1f", run.Seconds/60)})
		}
	}
	return report.MarkdownTable([]string{"setting", "device", "seed", "n", "start, %", "after, %", "CPU min", "min"}, rows)
}

// writeSumTables writes the tables into their page.
func writeSumTables(page, results string) error {
	var r realResults
	if err := files.LoadJSON(results, &r); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, group := range []string{sumObjectives, sumSFT, sumGRPO} {
		if err := writeBlock(page, group, r.sumTable(group)); err != nil {
			return err
		}
	}
	return nil
}
