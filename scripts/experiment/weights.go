package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/rl/report"
)

// weightsExperiment compares the memory of models with the size of their weight files.
type weightsExperiment struct{ *experiment }

// weightsResults is the output of bench, by its arguments.
type weightsResults map[string]struct {
	Weights   float64 `json:"weights_mb"`
	Anonymous float64 `json:"anonymous_mb,omitempty"` // from startup
	Engine    float64 `json:"engine_mb,omitempty"`    // from grpo_step
	Held      float64 `json:"held_mb,omitempty"`
}

// benched are the arguments of bench, with their names in the table.
var benched = []struct{ args, name string }{
	{"startup --shape smol135", "generate, SmolLM2-135M's shape, fp32"},
	{"startup --shape smol135 --dtype bf16", "generate, SmolLM2-135M's shape, bf16"},
	{"startup --shape qwen1.5b --dtype bf16", "generate, Qwen2.5-1.5B's shape, bf16"},
	{"grpo_step --shape smol135", "GRPO, SmolLM2-135M's shape, fp32"},
}

func (e *weightsExperiment) run(ctx context.Context) error {
	results := weightsResults{}
	if err := files.LoadJSON(e.out, &results); err != nil && !os.IsNotExist(err) {
		return err
	}
	for _, b := range benched {
		if _, done := results[b.args]; done {
			continue
		}
		args := append([]string{"bench"}, strings.Fields(b.args)...)
		_, printed, err := command(ctx, e.program, append(args, "--reps", "1", "--json")...)
		if err != nil {
			return err
		}
		result := results[b.args]
		if err := json.Unmarshal([]byte(printed), &result); err != nil {
			return fmt.Errorf("bench %s: %w", b.args, err)
		}
		results[b.args] = result
		if err := save(e.out, results); err != nil {
			return err
		}
	}
	return nil
}

// markdown is the experiment's table.
func (r weightsResults) markdown() string {
	var rows [][]string
	add := func(name string, weights, took float64) {
		rows = append(rows, []string{name, fmt.Sprintf("%.0f", weights), fmt.Sprintf("%.0f", took), fmt.Sprintf("%.2f×", took/weights)})
	}
	for _, b := range benched {
		switch x, measured := r[b.args]; {
		case !measured:
		case x.Anonymous > 0:
			add(b.name+": the process at its first token", x.Weights, x.Anonymous)
		default:
			add(b.name+": what is to write completions", x.Weights, x.Engine)
			add(b.name+": that, and what steps leave", x.Weights, x.Held)
		}
	}
	return report.MarkdownTable([]string{"what", "weights, MiB", "anonymous memory, MiB", "ratio"}, rows)
}
