package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/rltrain/rltrain/rl/report"
)

// benchResults is the output of scripts/bench_peers.py by case, with the fields that the table shows.
type benchResults map[string]benchCase

type benchCase struct {
	Ours         benchSide  `json:"ours"`
	Peer         benchSide  `json:"peer"`
	Tuned        *benchSide `json:"peer_tuned"`
	RatioToPeer  float64    `json:"ratio_to_peer"`
	RatioToTuned float64    `json:"ratio_to_peer_tuned"`
	TokensRatio  float64    `json:"tokens_ratio_to_peer"` // of tokens per second; 0 if both sides had the same batch
	Memory       float64    `json:"memory_of_peer"`
	Disturbed    bool       `json:"disturbed"`
	Goal         float64    `json:"goal"` // for the ratio; 0 if there is none
}

// ratio is by tokens if the sides sampled different lengths.
func (c benchCase) ratio() float64 {
	if c.TokensRatio != 0 {
		return c.TokensRatio
	}
	return c.RatioToPeer
}

type benchSide struct {
	Best    float64 `json:"best_s"`
	CPU     string  `json:"cpu_capability"`
	Threads int     `json:"threads"`
	Step    float64 `json:"decode_step_ms"`
	Bytes   float64 `json:"step_bytes"` // that a decode step reads at least
}

// readJSON reads another program's file and ignores unknown fields.
func readJSON(path string, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// markdown is a table, after a note on what is computed.
func (b benchResults) markdown(what string) string {
	var rows [][]string
	note := ""
	for _, name := range slices.Sorted(maps.Keys(b)) {
		c := b[name]
		tuned := "not measured"
		if c.Tuned != nil {
			tuned = fmt.Sprintf("%.2f (%.2f×)", c.Tuned.Best, c.RatioToTuned)
		}
		peer := fmt.Sprintf("%.2f (%.2f×)", c.Peer.Best, c.RatioToPeer)
		if c.TokensRatio != 0 {
			peer = fmt.Sprintf("%.2f (%.2f×; %.2f× per token)", c.Peer.Best, c.RatioToPeer, c.TokensRatio)
		}
		if c.Disturbed {
			name += ", disturbed"
		}
		rows = append(rows, []string{name, fmt.Sprintf("%.2f", c.Ours.Best), peer, tuned, fmt.Sprintf("%.2f×", c.Memory)})
		note = fmt.Sprintf("%s on %d threads, %s, best of several alternating runs; in brackets the ratio to rltrain.\n\n", what, c.Ours.Threads, c.Ours.CPU)
	}
	return note + report.MarkdownTable([]string{"case", "rltrain", "Python", "Python with MKL's AVX512 path forced", "memory, rltrain / Python"}, rows)
}

// goals is a table of times, ratios and target ratios. what names the kind of time.
func (b benchResults) goals(what string) string {
	var rows [][]string
	note := ""
	for _, name := range slices.Sorted(maps.Keys(b)) {
		c := b[name]
		ratio, holds := c.ratio(), "no"
		if ratio >= c.Goal {
			holds = "yes"
		}
		rows = append(rows, []string{name, fmt.Sprintf("%.2f", c.Ours.Best), fmt.Sprintf("%.2f", c.Peer.Best), fmt.Sprintf("%.2f×", ratio),
			fmt.Sprintf("%.1f×", c.Goal), holds})
		note = fmt.Sprintf("%s %s, %s, best of several alternating runs. If the lengths differ, the ratio is per token.\n\n", what, report.Plural(c.Ours.Threads, "thread"), c.Ours.CPU)
	}
	return note + report.MarkdownTable([]string{"case", "rltrain", "Python", "ratio", "goal", "holds"}, rows)
}

// latencyResults is the output of scripts/latency.py: milliseconds by setting.
type latencyResults map[string]struct {
	Threads int         `json:"threads"`
	Tokens  int         `json:"tokens"`
	Ours    latencySide `json:"ours"`
	Peer    latencySide `json:"peer"`
	Ratio   float64     `json:"ratio"`
	Load    float64     `json:"load1"`
	CPU     bool        `json:"cpu"` // milliseconds of CPU time
}

type latencySide struct {
	Best   float64 `json:"best_ms"`
	Median float64 `json:"median_ms"`
}

func (l latencyResults) markdown() string {
	settings := slices.SortedFunc(maps.Keys(l), func(a, b string) int {
		return cmp.Or(cmp.Compare(l[a].Threads, l[b].Threads), cmp.Compare(l[a].Tokens, l[b].Tokens))
	})
	var rows [][]string
	what := "ms"
	for _, name := range settings {
		c := l[name]
		if c.CPU {
			what = "ms of CPU time"
		}
		rows = append(rows, []string{fmt.Sprint(c.Threads), fmt.Sprint(c.Tokens), fmt.Sprintf("%.2f (%.2f)", c.Ours.Best, c.Ours.Median),
			fmt.Sprintf("%.2f (%.2f)", c.Peer.Best, c.Peer.Median), fmt.Sprintf("%.2f×", c.Ratio), fmt.Sprintf("%.0f", c.Load)})
	}
	return report.MarkdownTable([]string{"threads", "tokens", "rltrain, " + what + ": best (median)", "transformers", "ratio of best", "load"}, rows)
}
