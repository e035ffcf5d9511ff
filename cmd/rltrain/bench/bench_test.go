package bench

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/transformers"
)

func TestLoraBenchSequences(t *testing.T) {
	for layout, want := range map[string]int{"full": 4 * 256, "mixed": 32 + 106 + 181 + 256} {
		sequences, tokens := (&loraBench{Layout: layout, Batch: 4, Seq: 256}).sequences(64)
		expect.True(t, tokens == want && len(sequences) == 4, "%s: %d tokens in %d sequences, want %d in 4", layout, tokens, len(sequences), want)
		for _, q := range sequences {
			expect.True(t, len(q.Labels) == len(q.IDs) && !q.Labels[0] && q.Labels[1] && q.Labels[len(q.Labels)-1], "%s: labels %v", layout, q.Labels)
			for _, id := range q.IDs {
				expect.True(t, id >= firstWord && id < 64, "%s: token %d", layout, id)
			}
		}
	}
}

func TestLanguageBenchRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"lora_step --shape huge":                  `--shape … huge … tiny`,
		"lora_step --layout padded":               `--layout … padded … full`,
		"lora_step --layout mixed --seq 31":       "--seq … 31 … 32",
		"lora_step --dtype fp16":                  `--dtype … fp16 … bf16`,
		"lora_step --r 129":                       "--r … 129 … 128",
		"generate --prompt 2000 --new 100":        "--new … 100 … 48",
		"generate --batch 40 --prompt 40 --new 2": "--new 2 … 40",
		"lora_step --quantize q4_k":               `--quantize … q4_k … nf4`,
		"grpo_step --batch 30 --group 8":          "--batch … 30 … --group 8",
		"grpo_step --group 1":                     "--group … 1 … 4096",
		"grpo_step --beta -1":                     "--beta … -1 … at least 0",
		"startup --shape smol135 --dtype x":       `--dtype … "x" … bf16`,
		"startup --shape tiny --threads 0":        "--threads … 0 … 1024",
		"generate --device gpu":                   `--device … gpu`,
		"lora_step --shape smol135 --reps 0":      "--reps … 0 … 65536",
	} {
		app := &cli.App{Commands: []*cli.Command{Command()}, Writer: io.Discard, ExitErrHandler: func(*cli.Context, error) {}}
		err := app.RunContext(t.Context(), append([]string{"rltrain", "bench"}, strings.Fields(args)...))
		expect.True(t, expect.Names(err, want), "bench %s: %v, want %s", args, err, want)
	}
}

// TestDPOBenchPrecompute: the JSON line reports --precompute.
func TestDPOBenchPrecompute(t *testing.T) {
	for _, more := range [][]string{nil, {"--precompute"}} {
		var out bytes.Buffer
		app := &cli.App{Commands: []*cli.Command{Command()}, Writer: &out, ExitErrHandler: func(*cli.Context, error) {}}
		args := append(strings.Fields("rltrain bench dpo_step --pairs 1 --prompt 2 --seq 4 --r 1 --threads 1 --reps 1 --json"), more...)
		must.Do(t, app.RunContext(t.Context(), args))
		var line struct{ Precompute bool }
		err := json.Unmarshal(out.Bytes(), &line)
		expect.Require(t, err == nil, "%v: %s", err, out.String())
		expect.Same(t, more != nil, line.Precompute, "%v: %s", more, out.String())
	}
}

// small has 2 layers, two query heads of width 4, and one key/value head.
var small = transformers.LlamaShape{Vocab: 10, Hidden: 8, Layers: 2, Heads: 2, KVHeads: 1, Intermediate: 16}

func TestStepBytes(t *testing.T) {
	const (
		layer = 8*8 + 2*8*4 + 8*8 + 3*8*16 // queries, keys and values, output, MLP
		cache = 2 * 4                      // per token and layer
	)
	got, want := stepBytes(small, 2, 2, torch.BF16, 3, 5), 2.0*(2*layer+10*8+2*cache*3*5)
	expect.True(t, got == want, "got %v bytes, want %v", got, want)
	expect.Same(t, 2*stepBytes(small, 2, 2, torch.BF16, 1, 1), stepBytes(small, 4, 4, torch.F32, 1, 1), "in four bytes")
	expect.Same(t, 1.5*2*layer, stepBytes(small, 2, 2, torch.BF16, 1, 1)-stepBytes(small, 0.5, 2, torch.BF16, 1, 1), "bytes that layers in four bits save")
}

func TestStepFLOPs(t *testing.T) {
	layers := 2.0 * (8*8 + 2*8*4 + 8*8 + 3*8*16)
	q := []policy.Sequence{{IDs: make([]int32, 3), Labels: []bool{false, true, true}}}
	attention := 6.0 * 2 * 2 * 8 * (1 + 2 + 3) // six products of 8 features per token pair and layer
	expect.Same(t, 4*layers*3+6*7*3+4*80*2+attention, stepFLOPs(small, 7, q), "stepFLOPs")
	// Twice the length takes more than twice the work: attention is quadratic.
	long := []policy.Sequence{{IDs: make([]int32, 6), Labels: []bool{false, true, true, false, true, true}}}
	got, most := stepFLOPs(small, 7, long), 2*stepFLOPs(small, 7, q)
	expect.True(t, got > most, "got %v for twice the length, want more than %v", got, most)
}

// TestDeviceBenchCounts: rates are work divided by time.
func TestDeviceBenchCounts(t *testing.T) {
	r := must.Get(measureDevice(t.Context(), 1, 1<<12, 32, "fp32"))(t)
	want := inARow * 2 * 32.0 * 32 * 32 / r.Best / 1e12
	expect.True(t, math.Abs(r.more["tflop_s"].(float64)/want-1) <= 1e-9, "%v TFLOP/s in %v s, want %v", r.more["tflop_s"], r.Best, want)
	expect.True(t, r.more["copy_gb_s"].(float64) > 0 && r.Device == "cpu" && r.more["product"] == 32 && r.DType == "fp32", "got %+v", r)
}

func TestProductType(t *testing.T) {
	for set, want := range map[string]string{"avx2": "fp32", "avx512_bf16": "bf16"} {
		got := productType(torch.Kernels{Set: set, Speeds: []torch.KernelSpeed{{Set: "avx2", F32: 100, BF16: 105}, {Set: "avx512_bf16", F32: 100, BF16: 190}}})
		expect.Same(t, want, got, "%s", set)
	}
}
