package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/rltrain/rltrain/rl/report"
)

// engineResults is engine.json, which scripts/bench_engine.py writes: GRPO steps with --engine on a service beside steps in one process.
type engineResults map[string]enginePairs // by model and threads

// enginePairs are measured in turn.
type enginePairs struct {
	Processor string       `json:"processor"`
	Threads   int          `json:"threads"`
	Pairs     [][2]float64 `json:"pairs"` // seconds of a step in the process, and with --engine
}

func (r engineResults) markdown() string {
	var rows [][]string
	for _, name := range slices.Sorted(maps.Keys(r)) {
		p := r[name]
		var here, there, logs []float64
		for _, pair := range p.Pairs {
			here, there = append(here, pair[0]), append(there, pair[1])
			logs = append(logs, math.Log(pair[1]/pair[0]))
		}
		mean, standardError := meanWithError(logs)
		rows = append(rows, []string{name, p.Processor, strconv.Itoa(len(logs)), fmt.Sprintf("%.3f", middle(here)), fmt.Sprintf("%.3f", middle(there)),
			fmt.Sprintf("%.2f", math.Exp(mean)), fmt.Sprintf("%.1f %%", 100*standardError)})
	}
	return report.MarkdownTable([]string{"model", "processor", "pairs", "in one process, s", "with --engine, s", "ratio", "standard error"}, rows)
}

// engineMemory is engine_memory.json, which scripts/bench_engine.py --memory writes: MB of the client by model and kind.
type engineMemory map[string]map[string]struct {
	Middle int `json:"middle"`
	Most   int `json:"most"`
}

func (r engineMemory) markdown() string {
	var rows [][]string
	for _, model := range slices.Sorted(maps.Keys(r)) {
		row := []string{model}
		for _, kind := range []string{"Rss", "Pss", "Private", "heap of C and C++", "libtorch's files"} {
			row = append(row, fmt.Sprintf("%d, %d", r[model][kind].Middle, r[model][kind].Most))
		}
		rows = append(rows, row)
	}
	return report.MarkdownTable([]string{"model", "resident", "with its share of shared pages", "private", "of these the heap of C++", "files of libtorch, shared"}, rows)
}

// skyrlResults is skyrl.json, which scripts/engine.py writes: the largest differences between a service and rltrain's own trainer.
type skyrlResults map[string]struct {
	Objectives map[string]struct {
		Rate float64 `json:"rate"` // learning rate
		Loss float64 `json:"loss"`
		Norm float64 `json:"norm"`
	} `json:"objectives"`
}

func (r skyrlResults) markdown() string {
	var rows [][]string
	for _, model := range slices.Sorted(maps.Keys(r)) {
		for _, name := range slices.Sorted(maps.Keys(r[model].Objectives)) {
			x := r[model].Objectives[name]
			rows = append(rows, []string{model, name, fmt.Sprintf("%.0e", x.Rate), fmt.Sprintf("%.1g", x.Loss), fmt.Sprintf("%.1g %%", 100*x.Norm)})
		}
	}
	return report.MarkdownTable([]string{"model", "objective", "learning rate", "loss", "norm of the gradient"}, rows)
}

// meanWithError is a mean with its standard error.
func meanWithError(x []float64) (m, standardError float64) {
	n, m, squares := float64(len(x)), mean(x), 0.0
	for _, v := range x {
		squares += (v - m) * (v - m)
	}
	return m, math.Sqrt(squares / max(1, n-1) / n)
}
