package bench

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

func TestLoraBenchSequences(t *testing.T) {
	for layout, want := range map[string]int{"full": 4 * 256, "mixed": 32 + 106 + 181 + 256} {
		sequences, tokens := (&loraBench{Layout: layout, Batch: 4, Seq: 256}).sequences(64)
		expect.True(t, tokens == want && len(sequences) == 4,
			"%s: %d tokens in %d sequences, want %d in 4", layout, tokens, len(sequences), want)
		for _, q := range sequences {
			expect.True(t, len(q.Labels) == len(q.IDs) && !q.Labels[0] && q.Labels[1] && q.Labels[len(q.Labels)-1],
				"%s: labels %v", layout, q.Labels)
			for _, id := range q.IDs {
				expect.True(t, id >= firstWord && id < 64, "%s: token %d", layout, id)
			}
		}
	}
}

func TestLanguageBenchRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"lora_step --shape huge":             `--shape … huge … tiny`,
		"lora_step --layout padded":          `--layout … padded … full`,
		"lora_step --layout mixed --seq 31":  "--seq … 31 … 32",
		"lora_step --dtype fp16":             `--dtype … fp16 … bf16`,
		"lora_step --r 129":                  "--r … 129 … 128",
		"generate --prompt 2000 --new 100":   "--new … 100 … 48",
		"grpo_step --batch 30 --group 8":     "--batch … 30 … --group 8",
		"grpo_step --group 1":                "--group … 1 … 4096",
		"grpo_step --beta -1":                "--beta … -1 … at least 0",
		"startup --shape smol135 --dtype x":  `--dtype … "x" … bf16`,
		"startup --shape tiny --threads 0":   "--threads … 0 … 1024",
		"generate --device gpu":              `--device … gpu`,
		"lora_step --shape smol135 --reps 0": "--reps … 0 … 65536",
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
