package main

import (
	"encoding/json"
	"math"
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
	expect.Contains(t, text, "60.0 ± 14.1", "0.3000 ± 0.0707", "+1.2 [-1.0, +3.0]", "6 training, 2 validation and 2 test rows", "checkpoint + PPO on the other 1/4, reward accuracy")
	expect.True(t, !strings.Contains(text, "10.0 "), "the table shows the tuning runs:\n%s", text)
}

func TestGoals(t *testing.T) {
	step := benchSide{Best: 2, CPU: "AVX512", Threads: 1}
	text := benchResults{
		"short": {Ours: step, Peer: benchSide{Best: 3}, RatioToPeer: 1.5, Goal: 1.8},
		"mixed": {Ours: step, Peer: benchSide{Best: 3}, RatioToPeer: 1.5, TokensRatio: 2.25, Goal: 2.2},
	}.goals("CPU seconds per step on")
	expect.Contains(t, text, "on 1 thread, AVX512", "| mixed |    2.00 |   3.00 | 2.25× | 2.2× | yes   |", "| short |    2.00 |   3.00 | 1.50× | 1.8× | no    |")
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
	expect.Contains(t, strings.Join(strings.Fields(text), " "), "| decode | 3.0× | 2.00× | reading | 50 % | 75 % |", "| sft b32 s32 | 2.0× | 1.50× | multiply-adds | 30 % | 40 % |")
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
	b := must.Into[benchResults](t, json.Unmarshal, []byte(`{
 "step": {"ours": {"best_s": 2, "cpu_capability": "AVX2", "threads": 2, "more": 1}, "peer": {"best_s": 5, "threads": 2},
          "peer_tuned": {"best_s": 3, "threads": 2}, "ratio_to_peer": 2.5, "ratio_to_peer_tuned": 1.5, "memory_of_peer": 0.25, "disturbed": false},
 "mixed": {"ours": {"best_s": 1, "cpu_capability": "AVX2", "threads": 2}, "peer": {"best_s": 2}, "ratio_to_peer": 2, "tokens_ratio_to_peer": 2.2,
           "memory_of_peer": 0.5, "disturbed": true}}`))
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
	expect.Contains(t, strings.Join(strings.Fields(r.markdown()), " "), "| nf4 | 120 | 10.0 | 1.60× | | |", "| nf4 | 2.500 | 1024 | 512 | 256 |")
}

// TestGPUTables compares measurements with the device's peak, and marks missing ones.
func TestGPUTables(t *testing.T) {
	g := must.Into[gpuResults](t, json.Unmarshal, []byte(`{"gpu": {"name": "Card", "driver_version": "580.1", "memory.total": "81559 MiB"}, "cases": {
 "device": {"ours": {"case": "device", "copy_gb_s": 3000, "tflop_s": 800, "product": 8192}},
 "generate smol135 b32": {"ours": {"case": "generate", "shape": "smol135", "batch": 32, "decode_step_ms": 0.5, "gb_s": 600}, "peer": {"decode_step_ms": 25, "versions": {"torch": "2.11.0"}}, "ratio_to_peer": 50, "goal": 5},
 "generate smol135 b1": {"ours": {"case": "generate", "shape": "smol135", "batch": 1, "decode_step_ms": 0.25, "gb_s": 1200}, "peer": {"error": "over 5 s"}, "goal": 5},
 "lora_step qwen1.5b b16": {"ours": {"case": "lora_step", "shape": "qwen1.5b", "batch": 16, "best_s": 0.2, "tflop_s": 200, "gpu": {"extra_mb": 6000}},
   "peer": {"best_s": 0.3, "gpu": {"extra_mb": 10000}}, "ratio_to_peer": 1.5, "memory_of_peer": 0.6, "goal": 2, "memory_goal": 0.5}}}`))
	text := g.markdown()
	expect.Contains(t, text,
		"Card, 81559 MiB, driver 580.1. A large copy moves 3000 GB/s there, read and written; a product of bf16 matrices of 8192 rows does 800 TFLOP/s. Python: torch 2.11.0.",
		"| generate smol135 b1  |        0.25 | 1200 |        40 % | not measured | not measured           | not measured |   5× |       |",
		"| generate smol135 b32 |        0.50 |  600 |        20 % | 25.00        | not measured           | 50.0×        |   5× | yes   |",
		"| lora_step qwen1.5b b16 |       200.0 |   200.0 |           25 % |      300.0 |  1.5× |   2× | no    | 6000 |       10000 |  0.60 |  0.5 | no    |",
	)
	expect.True(t, strings.Index(text, "smol135 b1 ") <= strings.Index(text, "smol135 b32 "), "batches are not in their order:\n%s", text)
}

func TestSumRows(t *testing.T) {
	seen := map[string]bool{}
	for _, row := range sumRows() {
		expect.True(t, !seen[row.name], "two rows %q", row.name)
		seen[row.name] = true
		for _, c := range row.commands {
			expect.True(t, !strings.Contains(c.options, "RATE") && !strings.Contains(c.options, "STEPS") && !strings.Contains(c.options, "TOKENS"),
				"%s: a placeholder is left in %s", row.name, c.options)
		}
	}
	expect.Equal(t, 5+13+13, len(seen))
}

func TestSumTable(t *testing.T) {
	r := realResults{Runs: []realRun{{Row: "objectives: dapo", Seed: 1, Figures: []realFigure{
		{When: atStart, N: 300, Value: 0.1, Interval: rl.Interval{0.05, 0.15}}, {When: afterRL, N: 300, Value: 0.5, Interval: rl.Interval{0.4, 0.6}}}}}}
	expect.Contains(t, r.sumTable(sumObjectives), "dapo", "10.0 [5.0, 15.0]", "50.0 [40.0, 60.0]")
	expect.True(t, !strings.Contains(r.sumTable(sumGRPO), "dapo"), "a table shows another group's runs")
}

// TestStepOnPaper: some times grow with the number of GPUs, others shrink.
func TestStepOnPaper(t *testing.T) {
	c := cluster{parameters: 100, trained: 10, samples: 64, prompt: 2, answer: 8, updates: 3, peak: 1000, used: 0.5, memory: 400, memoryUsed: 0.5, network: 40, networkUsed: 0.5}
	m := measuredParts{exchanges: 5, token: 2, hop: 0.1, load: 0.01}
	one, two := c.step(1, m), c.step(2, m)
	// 8 steps that read 200 bytes at 200 bytes/s, and for each of 64 samples 10 tokens of 200 operations at 500
	// operations/s.
	want := 8.0 + 64*10*0.4
	expect.True(t, math.Abs(one.generate-want) <= 1e-9, "one GPU generates for %v s, want %v", one.generate, want)
	if want := 64 * 10 * 3 * 0.4; math.Abs(one.train-want) > 1e-9 || one.gradients+one.samples+one.waiting != 0 {
		t.Errorf("one GPU trains for %v s, want %v, and exchanges nothing: %+v", one.train, want, one)
	}
	for name, pair := range map[string][2]float64{
		"train":     {two.train, one.train / 2},
		"gradients": {two.gradients, 3 * 40 / 20},      // 2·½ of 40 bytes, three times, at 20 a second
		"samples":   {two.samples, 0.5 * 640 * 2 / 20}, // half of 640 tokens of 2 bytes
		"waiting":   {two.waiting, 0.5},
		"weights":   {two.weights, 0.4},
	} {
		expect.True(t, math.Abs(pair[0]-pair[1]) <= 1e-9, "%s: %v s, want %v", name, pair[0], pair[1])
	}
}

func TestDistributedTable(t *testing.T) {
	setting := distributedSettings[1].name
	r := distributedResults{Cores: 2, Runs: []ranksRun{
		{Setting: setting, Ranks: 1, Seed: 1, Step: 2, CPU: 2, Trained: 1e6, Tokens: 100},
		{Setting: setting, Ranks: 2, Seed: 1, Step: 1, Exchange: 0.25, CPU: 2.5, Exchanges: 6, Sent: 4e6 + 5000, Gradients: 4e6, Trained: 1e6, Tokens: 100},
		{Setting: setting, Ranks: 2, Seed: 2, Step: 3, Exchange: 0.75, CPU: 2.5, Exchanges: 6, Sent: 4e6 + 5000, Gradients: 4e6, Trained: 1e6, Tokens: 100},
	}, Links: []link{{Ranks: 3, Latency: 0.002, Rate: 1e9}}, Load: &weightLoad{Bytes: 2e6, Seconds: []float64{0.3, 0.2}}}
	m := r.measured()
	expect.True(t, m.exchanges == 6 && m.token == 100 && m.hop == 0.001 && math.Abs(m.load-1e-7) <= 1e-15, "measured %+v", m)
	expect.Contains(t, r.markdown(), "2 cores", "2.00 ± 1.41", "0.50 ± 0.35", "4.00", "1.000 ms more", "100 bytes", "2.00 MB in 200.0 ms", "|  512 | ")
}

// A family with half of a Llama's weights that takes as long is twice as slow.
func TestFamiliesTable(t *testing.T) {
	s := must.Into[familySpeed](t, json.Unmarshal, []byte(`{"weights": 2e6, "beside_weights": 4e6, "rounds": [{"own": [3, 0.5], "beside": [3, 1], "transformers": [9, 2]}]}`))
	expect.Contains(t, familiesResults{"x": s}.markdown(), "3.000", "2.00×", "3.00×", "0.500", "1.00×", "4.00×")
}

// Ratios of times have a geometric mean: twice and half as long is as long.
func TestEngineTable(t *testing.T) {
	expect.Contains(t, engineResults{"x": {Processor: "p", Pairs: [][2]float64{{1, 2}, {4, 2}}}}.markdown(), "| x ", "4.000", "2.000", " 1.00 ", "69.3 %")
	expect.Contains(t, must.Into[engineMemory](t, json.Unmarshal, []byte(`{"x": {"Private": {"middle": 71, "most": 90}}}`)).markdown(), "| x ", "71, 90")
	gaps := must.Into[skyrlResults](t, json.Unmarshal, []byte(`{"x": {"objectives": {"sft": {"loss": 2e-5, "norm": 0.001}}}, "learn": {"after": 3}}`))
	expect.Contains(t, gaps.markdown(), "| x ", "sft", "2e-05", "0.1 %")
}
