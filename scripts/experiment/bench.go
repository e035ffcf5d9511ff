package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"

	"rltrain/rl/report"
)

// benchResults is what scripts/bench_peers.py writes, as far as the table shows it: by case.
type benchResults map[string]struct {
	Ours         benchSide  `json:"ours"`
	Peer         benchSide  `json:"peer"`
	Tuned        *benchSide `json:"peer_tuned"`
	RatioToPeer  float64    `json:"ratio_to_peer"`
	RatioToTuned float64    `json:"ratio_to_peer_tuned"`
	Memory       float64    `json:"memory_of_peer"`
}

type benchSide struct {
	Best    float64 `json:"best_s"`
	CPU     string  `json:"cpu_capability"`
	Threads int     `json:"threads"`
}

// readJSON reads a file that another program wrote, with fields that are of no use here.
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

func (b benchResults) markdown() string {
	var rows [][]string
	note := ""
	for _, name := range slices.Sorted(maps.Keys(b)) {
		c := b[name]
		tuned := "not measured"
		if c.Tuned != nil {
			tuned = fmt.Sprintf("%.2f (%.2f×)", c.Tuned.Best, c.RatioToTuned)
		}
		rows = append(rows, []string{name, fmt.Sprintf("%.2f", c.Ours.Best), fmt.Sprintf("%.2f (%.2f×)", c.Peer.Best, c.RatioToPeer), tuned, fmt.Sprintf("%.2f×", c.Memory)})
		note = fmt.Sprintf("Seconds a step in fp32 on %d threads, %s, best of several in turns; in brackets how many times as long as ours.\n\n", c.Ours.Threads, c.Ours.CPU)
	}
	return note + report.MarkdownTable([]string{"case", "rltrain", "transformers + PEFT", "the same, MKL's AVX512 path forced", "memory, ours to theirs"}, rows)
}
