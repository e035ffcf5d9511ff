package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/report"
)

// command runs a program and returns its CPU time in seconds and its standard output.
func command(ctx context.Context, name string, args ...string) (float64, string, error) {
	c := exec.CommandContext(ctx, name, args...)
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	if err := c.Run(); err != nil {
		return 0, "", fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(stderr.String()))
	}
	return (c.ProcessState.UserTime() + c.ProcessState.SystemTime()).Seconds(), stdout.String(), nil
}

// folderOf returns the name of the folder of a setting or row.
func folderOf(name string) string { return strings.NewReplacer(" ", "_", ",", "").Replace(name) }

// portable writes WORK for the first occurrence of each folder, in turn, in recorded options.
func portable(options []string, folders ...string) []string {
	out := slices.Clone(options)
	for _, folder := range folders {
		for i, o := range out {
			out[i] = strings.Replace(o, folder, "WORK", 1)
		}
	}
	return out
}

// percent is a fraction with its interval, in percent.
func percent(value float64, in rl.Interval) string {
	return fmt.Sprintf("%.1f [%.1f, %.1f]", 100*value, 100*in[0], 100*in[1])
}

// updatesIn is the number of the last step in the metrics.
func updatesIn(rows []report.Row) int {
	n := 0
	for _, row := range rows {
		if step, ok := row["step"].(float64); ok {
			n = max(n, int(step))
		}
	}
	return n
}

// save writes results atomically.
func save(path string, results any) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return files.SaveJSON(path, results)
}

// writeLines writes labelled rows as JSON lines, with the split of each.
func writeLines(path string, rows []dataset.Row) error {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	for _, r := range rows {
		if err := encoder.Encode(map[string]string{"text": r.Text, "label": r.Label, "split": r.Split}); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return outfile.Write(path, b.Bytes(), 0o644)
}
