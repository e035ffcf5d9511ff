package main

import (
	"fmt"

	"github.com/rltrain/rltrain/rl/report"
)

// quantizedResults is what scripts/quantized.py writes: quantized.json by CPU time of a thread, quantized_zen.json and quantized_avx2.json
// by the clock.
type quantizedResults struct {
	CPU   map[string]quantizedSpeed `json:"cpu"`
	Clock map[string]quantizedSpeed `json:"speed"`
	QLoRA map[string]qloraRun       `json:"qlora"`
}

// quantizedSpeed is the speed of a type of weights, of bf16 measured beside it, and of llama.cpp.
type quantizedSpeed struct {
	Ours struct {
		Prompt float64 `json:"prompt_s"`
		Step   float64 `json:"step_s"`
		Bytes  float64 `json:"step_bytes"`
	} `json:"ours"`
	BF16, Peer struct {
		Prompt float64 `json:"prompt_s"`
		Step   float64 `json:"step_s"`
	}
}

// mean of the losses.
func (q qloraRun) mean() (sum float64) {
	for _, loss := range q.Losses {
		sum += loss / float64(len(q.Losses))
	}
	return sum
}

// qloraRun is a run of SFT with one type of base weights.
type qloraRun struct {
	Losses []float64 `json:"losses"`
	Peak   float64   `json:"peak_bytes"`
	Least  float64   `json:"peak_without_activations_bytes"`
	Own    float64   `json:"peak_own_without_activations_bytes"` // without the pages of files
}

func (r quantizedResults) markdown() string {
	times := func(a, b float64) string {
		if a == 0 {
			return ""
		}
		return fmt.Sprintf("%.2f×", a/b)
	}
	speeds := r.CPU
	if speeds == nil {
		speeds = r.Clock
	}
	var rows [][]string
	for _, name := range []string{"f32", "bf16", "q8_0", "q4_0", "q4_1", "int8", "nf4"} {
		if s, measured := speeds[name]; measured {
			rows = append(rows, []string{name, fmt.Sprintf("%.0f", s.Ours.Bytes/1e6), fmt.Sprintf("%.1f", 1e3*s.Ours.Step), times(s.BF16.Step, s.Ours.Step), times(s.Peer.Step, s.Ours.Step), times(s.Peer.Prompt, s.Ours.Prompt)})
		}
	}
	text := report.MarkdownTable([]string{"weights", "MB per token", "ms per token", "bf16 / it", "llama.cpp / it", "llama.cpp / it, prompt of 512"}, rows)
	rows = nil
	for _, name := range []string{"none", "nf4"} {
		if q, measured := r.QLoRA[name]; measured {
			rows = append(rows, []string{map[string]string{"none": "bf16", "nf4": "nf4"}[name], fmt.Sprintf("%.3f", q.mean()), fmt.Sprintf("%.0f", q.Peak/(1<<20)), fmt.Sprintf("%.0f", q.Least/(1<<20)), fmt.Sprintf("%.0f", q.Own/(1<<20))})
		}
	}
	if rows == nil {
		return text
	}
	return text + "\n" + report.MarkdownTable([]string{"base weights", "mean loss of 20 steps", "peak MiB", "with one short row", "of that, its own"}, rows)
}
