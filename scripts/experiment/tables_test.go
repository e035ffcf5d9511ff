package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
)

func TestReplaceBlock(t *testing.T) {
	page := "a\n<!-- x -->\nold\n<!-- /x -->\nb\n"
	expect.Equal(t, "a\n<!-- x -->\nnew\n<!-- /x -->\nb\n", must.Get(replaceBlock(page, "x", "new\n"))(t))
	expect.Failure(replaceBlock(page, "y", ""))(t, "<!-- y -->")
}

func TestIntentTable(t *testing.T) {
	r := intentResults{Data: "Questions", Rows: map[string]int{"train": 6, "val": 2, "test": 2}, Chosen: "lr 1", Runs: []intentRun{
		{Setting: "tune lr 1", Test: figures{Accuracy: 0.1}},
		{Setting: supervised, Test: figures{Accuracy: 0.5, Brier: 0.25}, CPUSeconds: 10},
		{Setting: supervised, Seed: 1, Test: figures{Accuracy: 0.7, Brier: 0.35}, CPUSeconds: 20},
		{Setting: "rl accuracy", Updates: 9, Against: &rl.Comparison{Accuracy: rl.Difference{Difference: 0.012, Interval: rl.Interval{-0.01, 0.03}}}},
	}}
	text := r.markdown()
	for _, want := range []string{"60.0 ± 14.1", "0.3000 ± 0.0707", "+1.2 [-1.0, +3.0]", "6 training, 2 validation and 2 test rows", "checkpoint + PPO on the other 1/4, reward accuracy"} {
		expect.True(t, strings.Contains(text, want), "the table lacks %q:\n%s", want, text)
	}
	expect.True(t, !strings.Contains(text, "10.0 "), "the table shows the tuning runs:\n%s", text)
}

func TestGoals(t *testing.T) {
	step := benchSide{Best: 2, CPU: "AVX512", Threads: 1}
	text := benchResults{
		"short": {Ours: step, Peer: benchSide{Best: 3}, RatioToPeer: 1.5, Goal: 1.8},
		"mixed": {Ours: step, Peer: benchSide{Best: 3}, RatioToPeer: 1.5, TokensRatio: 2.25, Goal: 2.2},
	}.goals("CPU seconds per step on")
	for _, want := range []string{"on 1 thread, AVX512", "| mixed |    2.00 |   3.00 | 2.25× | 2.2× | yes   |", "| short |    2.00 |   3.00 | 1.50× | 1.8× | no    |"} {
		expect.True(t, strings.Contains(text, want), "the table lacks %q:\n%s", want, text)
	}
}

func TestLimits(t *testing.T) {
	var p productResults
	p.Loop.AVX512 = 100
	half := benchCase{RatioToPeer: 2, Goal: 2.5, Ours: benchSide{Best: products["sft b32 s32"] / 50e9, Threads: 1}} // half the loop's speed
	holds := half
	holds.Goal = 1.9
	text := limits(p, benchResults{"sft b32 s32": half, "startup": half, "lora_step fp32": holds}, benchResults{})
	want := "| sft b32 s32 | 353.3 | 2.5× | 3.60× | 62 % |"
	expect.True(t, strings.Contains(strings.Join(strings.Fields(text), " "), want), "the table lacks %q:\n%s", want, text)
	for _, not := range []string{"startup", "lora_step"} {
		expect.True(t, !strings.Contains(text, not), "the table has %s:\n%s", not, text)
	}
}

// A decode step is limited by reading, other cases by multiply-adds.
func TestAMXLimits(t *testing.T) {
	l := amxLimits{Loop: 100, Read: 10, Goals: map[string]float64{"decode": 3, "sft b32 s32": 2}}
	text := l.markdown(benchResults{
		"decode":      {Ours: benchSide{Step: 20, Bytes: 1e8}, Peer: benchSide{Step: 40}},
		"sft b32 s32": {RatioToPeer: 1.5, Ours: benchSide{Best: products["sft b32 s32"] / 30e9}},
	})
	for _, want := range []string{"| decode | 3.0× | 2.00× | reading | 50 % | 75 % |", "| sft b32 s32 | 2.0× | 1.50× | multiply-adds | 30 % | 40 % |"} {
		expect.True(t, strings.Contains(strings.Join(strings.Fields(text), " "), want), "the table lacks %q:\n%s", want, text)
	}
}

// bench counts the same operations.
func TestProductsAreThoseOfBench(t *testing.T) {
	var measured map[string]struct {
		Ours struct {
			FLOPs float64 `json:"step_flops"`
		} `json:"ours"`
	}
	must.Do(t, readJSON(filepath.Join("..", "..", "docs", "results", "bench_clock.json"), &measured))
	for _, name := range []string{"lora_step fp32", "lora_step fp32 mixed, peer padded"} {
		got, want := products[name], measured[name].Ours.FLOPs
		expect.True(t, got == want, "%s: %v, bench says %v", name, got, want)
	}
}

func TestBenchTable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bench.json")
	must.Do(t, os.WriteFile(path, []byte(`{
 "step": {"ours": {"best_s": 2, "cpu_capability": "AVX2", "threads": 2, "more": 1}, "peer": {"best_s": 5, "threads": 2},
          "peer_tuned": {"best_s": 3, "threads": 2}, "ratio_to_peer": 2.5, "ratio_to_peer_tuned": 1.5, "memory_of_peer": 0.25, "disturbed": false},
 "mixed": {"ours": {"best_s": 1, "cpu_capability": "AVX2", "threads": 2}, "peer": {"best_s": 2}, "ratio_to_peer": 2, "tokens_ratio_to_peer": 2.2,
           "memory_of_peer": 0.5, "disturbed": true}}`), 0o644))
	var b benchResults
	must.Do(t, readJSON(path, &b))
	var cells [][]string
	for line := range strings.Lines(b.markdown("Seconds per step")) {
		if strings.HasPrefix(line, "| mixed") || strings.HasPrefix(line, "| step") {
			fields := strings.Split(strings.Trim(line, "|\n"), "|")
			for i := range fields {
				fields[i] = strings.TrimSpace(fields[i])
			}
			cells = append(cells, fields)
		}
	}
	want := [][]string{{"mixed, disturbed", "1.00", "2.00 (2.00×; 2.20× per token)", "not measured", "0.50×"}, {"step", "2.00", "5.00 (2.50×)", "3.00 (1.50×)", "0.25×"}}
	expect.Equal(t, want, cells)
}

func TestQuantizedTable(t *testing.T) {
	var r quantizedResults
	must.Do(t, json.Unmarshal([]byte(`{"cpu": {"nf4": {"ours": {"step_s": 0.01, "prompt_s": 0.2, "step_bytes": 1.2e8}, "bf16": {"step_s": 0.016}, "peer": {}}},
 "qlora": {"nf4": {"losses": [3, 2], "peak_bytes": 1073741824, "peak_without_activations_bytes": 536870912,
 "peak_own_without_activations_bytes": 268435456}}}`), &r))
	text := strings.Join(strings.Fields(r.markdown()), " ")
	expect.Contains(t, text, "| nf4 | 120 | 10.0 | 1.60× | | |", "| nf4 | 2.500 | 1024 | 512 | 256 |")
}
