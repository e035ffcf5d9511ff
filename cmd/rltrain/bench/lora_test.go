package bench

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v2"
)

func TestLoraBenchSequences(t *testing.T) {
	for layout, want := range map[string]int{"full": 4 * 256, "mixed": 32 + 106 + 181 + 256} {
		sequences, tokens := loraBench{layout: layout, batch: 4, seq: 256}.sequences(64)
		if tokens != want || len(sequences) != 4 {
			t.Errorf("%s: %d tokens in %d sequences, want %d in 4", layout, tokens, len(sequences), want)
		}
		for _, q := range sequences {
			if len(q.Labels) != len(q.IDs) || q.Labels[0] || !q.Labels[1] || !q.Labels[len(q.Labels)-1] {
				t.Errorf("%s: labels %v", layout, q.Labels)
			}
			for _, id := range q.IDs {
				if id < firstWord || id >= 64 {
					t.Errorf("%s: token %d", layout, id)
				}
			}
		}
	}
}

func TestLanguageBenchRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"lora_step --shape huge":             `bench lora_step: --shape: unknown shape "huge"; choose tiny, smol135 or qwen1.5b`,
		"lora_step --layout padded":          `bench lora_step: --layout "padded" is not full or mixed`,
		"lora_step --layout mixed --seq 31":  "bench lora_step: --seq 31 is below 32, the shortest length of --layout mixed",
		"lora_step --dtype fp16":             `bench lora_step: --dtype: "fp16" is not fp32 or bf16`,
		"lora_step --r 129":                  "bench lora_step: --r: 129 is out of range; it must be 1 to 128",
		"generate --prompt 2000 --new 100":   "bench generate: --new: 100 is out of range; it must be 2 to 48",
		"grpo_step --batch 30 --group 8":     "bench grpo_step: --batch: 30 is not a multiple of --group 8",
		"grpo_step --group 1":                "bench grpo_step: --group: 1 is out of range; it must be 2 to 4096",
		"grpo_step --beta -1":                "bench grpo_step: --beta: must be at least 0",
		"startup --shape smol135 --dtype x":  `bench startup: --dtype: "x" is not fp32 or bf16`,
		"startup --shape tiny --threads 0":   "bench startup: --threads: 0 is out of range; it must be 1 to 1024",
		"generate --device gpu":              `bench generate: --device: unknown device "gpu"; use auto, cpu, cuda or cuda:NUMBER`,
		"lora_step --shape smol135 --reps 0": "bench lora_step: --reps: 0 is out of range; it must be 1 to 65536",
	} {
		app := &cli.App{Commands: []*cli.Command{Command()}, Writer: io.Discard, ExitErrHandler: func(*cli.Context, error) {}}
		err := app.RunContext(t.Context(), append([]string{"rltrain", "bench"}, strings.Fields(args)...))
		if err == nil {
			t.Errorf("bench %s: no error", args)
			continue
		}
		if diff := cmp.Diff(want, err.Error()); diff != "" {
			t.Errorf("bench %s (-want +got):\n%s", args, diff)
		}
	}
}

// TestDPOBenchPrecompute: the JSON line reports --precompute.
func TestDPOBenchPrecompute(t *testing.T) {
	for _, more := range [][]string{nil, {"--precompute"}} {
		var out bytes.Buffer
		app := &cli.App{Commands: []*cli.Command{Command()}, Writer: &out, ExitErrHandler: func(*cli.Context, error) {}}
		args := append(strings.Fields("rltrain bench dpo_step --pairs 1 --prompt 2 --seq 4 --r 1 --threads 1 --reps 1 --json"), more...)
		if err := app.RunContext(t.Context(), args); err != nil {
			t.Fatal(err)
		}
		var line struct{ Precompute bool }
		if err := json.Unmarshal(out.Bytes(), &line); err != nil {
			t.Fatalf("%v: %s", err, out.String())
		}
		if line.Precompute != (more != nil) {
			t.Errorf("%v: %s", more, out.String())
		}
	}
}
