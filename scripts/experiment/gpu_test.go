package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// TestGPUTables compares measurements with the device's peak, and marks missing ones.
func TestGPUTables(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gpu.json")
	must.Do(t, os.WriteFile(path, []byte(`{"gpu": {"name": "Card", "driver_version": "580.1", "memory.total": "81559 MiB"}, "cases": {
 "device": {"ours": {"case": "device", "copy_gb_s": 3000, "tflop_s": 800, "product": 8192}},
 "generate smol135 b32": {"ours": {"case": "generate", "shape": "smol135", "batch": 32, "decode_step_ms": 0.5, "gb_s": 600}, "peer": {"decode_step_ms": 25, "versions": {"torch": "2.11.0"}}, "ratio_to_peer": 50, "goal": 5},
 "generate smol135 b1": {"ours": {"case": "generate", "shape": "smol135", "batch": 1, "decode_step_ms": 0.25, "gb_s": 1200}, "peer": {"error": "over 5 s"}, "goal": 5},
 "lora_step qwen1.5b b16": {"ours": {"case": "lora_step", "shape": "qwen1.5b", "batch": 16, "best_s": 0.2, "tflop_s": 200, "gpu": {"extra_mb": 6000}},
   "peer": {"best_s": 0.3, "gpu": {"extra_mb": 10000}}, "ratio_to_peer": 1.5, "memory_of_peer": 0.6, "goal": 2, "memory_goal": 0.5}}}`), 0o644))
	var g gpuResults
	must.Do(t, readJSON(path, &g))
	text := g.markdown()
	expect.Contains(t, text,
		"Card, 81559 MiB, driver 580.1. A large copy moves 3000 GB/s there, read and written; a product of bf16 matrices of 8192 rows does 800 TFLOP/s. Python: torch 2.11.0.",
		"| generate smol135 b1  |        0.25 | 1200 |        40 % | not measured | not measured           | not measured |   5× |       |",
		"| generate smol135 b32 |        0.50 |  600 |        20 % | 25.00        | not measured           | 50.0×        |   5× | yes   |",
		"| lora_step qwen1.5b b16 |       200.0 |   200.0 |           25 % |      300.0 |  1.5× |   2× | no    | 6000 |       10000 |  0.60 |  0.5 | no    |",
	)
	expect.True(t, strings.Index(text, "smol135 b1 ") <= strings.Index(text, "smol135 b32 "),
		"batches are not in their order:\n%s", text)
}
