package train

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/rollout"
	"github.com/rltrain/rltrain/rl/run"
)

// programResult is a line of results/results.json: the program that the kept weights write for a held-out problem.
type programResult struct {
	Problem int    `json:"problem"` // among the held-out ones, from 0
	Kind    string `json:"kind,omitempty"`
	Class   string `json:"class"`
	Passed  int    `json:"passed"`
	Total   int    `json:"total"`
	Program string `json:"program"`
}

// programs has the kept weights solve the held-out problems of a task whose answers are programs, and writes
// results/results.json and logs/rewards.json, the rewards of the logged steps. Problems that leave no room for an answer,
// and programs that the sandbox could not run, are skipped.
func (t *trainer) programs(ctx context.Context, stage *run.Stage, sampler rollout.Generator, task envs.Task, evaluation rollout.Config) error {
	if _, ok := t.config.Settings.(envs.ProgramSource); !ok {
		return nil
	}
	n := t.config.Answers.EvalSamples
	if most := task.Len(envs.Eval); most > 0 {
		n = min(n, most)
	}
	indices := make([]int, n)
	for i := range indices {
		indices[i] = i
	}
	evaluation.Rewards = nil
	played, err := rollout.Play(ctx, sampler, task, envs.Eval, indices, evaluation)
	if err != nil {
		return fmt.Errorf("generating programs for results.json: %w", err)
	}
	results := []programResult{}
	for i, group := range played.Groups {
		if info := group[0].Info; info != nil && info.Tests != nil {
			results = append(results, programResult{i, info.Kind, info.Tests.Class, info.Tests.Passed, info.Tests.Total, info.Tests.Program})
		}
	}
	path, err := stage.File("results", "results.json")
	if err := errors.Join(err, files.SaveJSON(path, results)); err != nil {
		return err
	}
	rows, err := report.ReadMetrics(filepath.Join(stage.Dir(), "logs", "metrics.jsonl"))
	if err != nil {
		return err
	}
	steps := []report.Row{}
	for _, row := range rows {
		if _, ok := row["reward"]; !ok {
			continue // an evaluation
		}
		maps.DeleteFunc(row, func(key string, _ any) bool {
			return key != "step" && key != "reward" && !strings.HasPrefix(key, "rewards/")
		})
		steps = append(steps, row)
	}
	return save(stage, "rewards.json", steps)
}
