package app

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// tiny creates a small language model next to a folder for other files; arguments call them MODEL and TMP.
func tiny(t *testing.T) folders {
	t.Helper()
	torchtest.NoLeaks(t)
	tmp := t.TempDir()
	model := filepath.Join(tmp, "tiny")
	must.Do(t, policy.TinyModel(model, 2, 32, 5))
	return folders{model: model, tmp: tmp}
}

type outputRow struct {
	ID            int       `json:"id"`
	Completion    string    `json:"completion"`
	CompletionIDs []int32   `json:"completion_ids"`
	LogProbs      []float64 `json:"logprobs"`
	FinishReason  string    `json:"finish_reason"`
	Entropy       []float64 `json:"entropy"`
	Rank          []int     `json:"rank"`
	SumLogProb    float64   `json:"sum_logprob"`
}

func readOutput(t *testing.T, path string) []outputRow {
	t.Helper()
	data := must.Get(os.ReadFile(path))(t)
	var rows []outputRow
	for line := range bytes.Lines(data) {
		var r outputRow
		must.Do(t, json.Unmarshal(line, &r))
		rows = append(rows, r)
	}
	return rows
}

func TestGenerateThenScore(t *testing.T) {
	f := tiny(t)
	var prompts strings.Builder
	for i := range 40 {
		fmt.Fprintf(&prompts, `{"id":%d,"prompt":%q}`+"\n", i, strings.Repeat("ab ", 1+i%9))
	}
	f.write(t, "TMP/in.jsonl", prompts.String())
	outputs := map[string]string{}
	for _, batch := range []string{"1", "7", "32"} {
		code, _, stderr := f.rltrain("", "generate", "--model", "MODEL", "--input", "TMP/in.jsonl", "--output", "TMP/"+batch+".jsonl",
			"--max-new-tokens", "12", "-n", "3", "--batch-size", batch)
		expect.Require(t, code == 0 && strings.Contains(stderr, `end tokens: "<eos>" (1)`), "exit code %d, %q", code, stderr)
		data := must.Get(os.ReadFile(f.expand("TMP/" + batch + ".jsonl")))(t)
		outputs[batch] = string(data)
	}
	expect.True(t, outputs["1"] == outputs["7"] && outputs["1"] == outputs["32"], "completions depend on --batch-size")
	rows := readOutput(t, f.expand("TMP/7.jsonl"))
	expect.Require(t, len(rows) == 120, "%d rows, want 120", len(rows))
	distinct := map[string]bool{}
	for i, r := range rows {
		distinct[r.Completion] = true
		expect.True(t, r.ID == i/3 && len(r.LogProbs) == len(r.CompletionIDs) && (r.FinishReason == "length" || r.FinishReason == "stop"), "row %d: %+v", i, r)
	}
	expect.True(t, len(distinct) >= 100, "%d different completions of 120", len(distinct))
	f.must(t, "", "score", "--model", "MODEL", "--input", "TMP/7.jsonl", "--output", "TMP/scored.jsonl")
	for i, r := range readOutput(t, f.expand("TMP/scored.jsonl")) {
		sum := 0.0
		for j, p := range r.LogProbs {
			sum += p
			expect.True(t, math.Abs(p-rows[i].LogProbs[j]) <= 1e-4, "row %d, token %d: scored %v, generated with %v", i, j, p, rows[i].LogProbs[j])
		}
		expect.True(t, math.Abs(sum-r.SumLogProb) <= 1e-4 && len(r.Entropy) == len(r.LogProbs) && len(r.Rank) == len(r.LogProbs), "row %d: %+v", i, r)
	}
}

// TestCompletionsDoNotDependOnBatch: a file too large for memory gives byte-identical rows for any batch size and
// number of threads.
func TestCompletionsDoNotDependOnBatch(t *testing.T) {
	f := newLanguageModel(t)
	var prompts strings.Builder
	for i := range 300 {
		fmt.Fprintf(&prompts, `{"prompt":%q}`+"\n", strings.Repeat("ab:", 1+i%23)+fmt.Sprint(i))
	}
	f.write(t, "TMP/in.jsonl", prompts.String())
	program := must.Get(os.Executable())(t)
	for name, how := range map[string][]string{
		"sampled": {"--model", "BASE"}, "sampled with an adapter": {"--model", "MODEL"},
		"greedy": {"--model", "BASE", "--temperature", "0"}, "of bfloat16": {"--model", "BASE", "--dtype", "bf16"},
	} {
		var first string
		for _, c := range []struct{ batch, threads string }{{"7", "1"}, {"64", "2"}, {"256", "1"}} {
			args := append([]string{"generate", "--input", "TMP/in.jsonl", "--output", "TMP/out.jsonl", "--max-new-tokens", "6", "--batch-size", c.batch, "--threads", c.threads}, how...)
			for i := range args {
				args[i] = f.expand(args[i])
			}
			process := exec.CommandContext(t.Context(), program, args...)
			process.Env = append(os.Environ(), asProgram+"=1")
			said, err := process.CombinedOutput()
			expect.Require(t, err == nil, "%v: %v, %s", args, err, said)
			rows := must.Read(t, f.expand("TMP/out.jsonl"))
			first = cmp.Or(first, rows)
			expect.True(t, rows == first, "%s: other bytes with --batch-size %s --threads %s", name, c.batch, c.threads)
		}
	}
}

func TestLanguageCommandsRefuse(t *testing.T) {
	f := tiny(t)
	f.write(t, "TMP/good.jsonl", `{"prompt":"a","completion":"b"}`+"\n")
	f.write(t, "TMP/empty.jsonl", `{"prompt":"a"}`+"\n"+`{"prompt":""}`+"\n")
	f.write(t, "TMP/ids.jsonl", `{"prompt_ids":[1,99]}`+"\n")
	f.write(t, "TMP/long.jsonl", fmt.Sprintf(`{"prompt":%q}`+"\n", strings.Repeat("a", 2040)))
	f.write(t, "TMP/longer.jsonl", fmt.Sprintf(`{"prompt":%q,"completion":"b"}`+"\n", strings.Repeat("a", 2050)))
	f.write(t, "TMP/huge.jsonl", `{"prompt":"a","completion":"b"}`+"\n"+fmt.Sprintf(`{"prompt":%q,"completion":"b"}`+"\n", strings.Repeat("a", 1<<22+1)))
	f.write(t, "TMP/messages.jsonl", `{"messages":[{"role":"user","content":"a"}]}`+"\n")
	f.write(t, "TMP/nothing.jsonl", `{"text":"a"}`+"\n")
	for _, c := range []struct{ args, want string }{
		{"generate --input TMP/good.jsonl", "generate needs --model"},
		{"generate --model MODEL --input TMP/empty.jsonl", "TMP/empty.jsonl:2: column \"prompt\" is empty"},
		{"generate --model MODEL --input TMP/ids.jsonl", "TMP/ids.jsonl:1: prompt_ids[1]: 99 is not a token id between 0 and 98"},
		{"generate --model MODEL --input TMP/long.jsonl --max-new-tokens 9", "TMP/long.jsonl:1: prompt has 2040 tokens; at most 2039 fit into the context of 2048 tokens; shorten it, lower --max-new-tokens, or pass --truncate-prompts\n"},
		{"generate --model MODEL --input TMP/huge.jsonl", "TMP/huge.jsonl:2: transformers: the text has 4194305 bytes, more than the "},
		{"generate --model MODEL --input TMP/good.jsonl --max-new-tokens 4000", "--max-new-tokens: 4000 leaves no room"},
		{"generate --model MODEL --input TMP/messages.jsonl", "no chat template"},
		{"generate --model MODEL --input TMP/nothing.jsonl", "TMP/nothing.jsonl:1"},
		{"generate --model MODEL --input TMP/good.jsonl --temperature -1", "--temperature: -1 is out of range"},
		{"generate --model MODEL --input TMP/good.jsonl --max-new-tokens 0", "--max-new-tokens: 0 is out of range; it must be 1 to 1048576"},
		{"generate --model MODEL --resume", "--resume needs --input FILE"},
		{"generate --model MODEL --input TMP/good.jsonl --resume", "--resume: needs --output FILE"},
		{"generate --model MODEL --bf16 --dtype fp32", "--dtype (fp32) and --bf16 (bf16) conflict"},
		{"score --model MODEL", "score needs --input FILE"},
		{"score --model MODEL --input TMP/empty.jsonl", "TMP/empty.jsonl:1: no completion or completion_ids"},
		{"score --model MODEL --input TMP/long.jsonl", "no completion or completion_ids"},
		{"score --model MODEL --input TMP/huge.jsonl", "TMP/huge.jsonl:2: transformers: the text has 4194305 bytes, more than the "},
		{"score --model MODEL --input TMP/longer.jsonl", "TMP/longer.jsonl:1: prompt has 2050 tokens; at most 2047 fit into the context of 2048 tokens\n"},
	} {
		code, out, stderr := f.rltrain("", strings.Fields(c.args)...)
		expect.True(t, code != 0 && out == "" && strings.Contains(stderr, f.expand(c.want)), "%s: exit code %d, error %q, want %q", c.args, code, stderr, c.want)
	}
	code, _, stderr := f.rltrain("", "generate", "--model", "MODEL", "--input", "TMP/long.jsonl", "--max-new-tokens", "9", "--truncate-prompts", "--output", "TMP/cut.jsonl")
	expect.True(t, code == 0 && strings.Contains(stderr, "truncated 1 of 1 prompts at the start"), "truncating: exit code %d, %q", code, stderr)
}

func TestChatTrainingLeavesAFolderToGenerateWith(t *testing.T) {
	f := tiny(t)
	var rows strings.Builder
	for i := range 40 {
		fmt.Fprintf(&rows, `{"prompt":"%d:","completion":"%d"}`+"\n", i%10, i%10)
	}
	f.write(t, "TMP/rows.jsonl", rows.String())
	train := func(output string, args ...string) (int, string) {
		code, _, stderr := f.rltrain("", append([]string{"--task", "chat", "--dataset", "TMP/rows.jsonl", "--output-dir", output,
			"--epochs", "2", "--batch-size", "4"}, args...)...)
		return code, stderr
	}
	if code, stderr := train("TMP/out", "--tiny-layers", "1", "--tiny-hidden", "32"); code != 0 {
		t.Fatalf("exit code %d, %q", code, stderr)
	}
	code, out, _ := f.rltrain("3:", "generate", "--model", "TMP/out/chat_supervised", "--max-new-tokens", "3")
	expect.True(t, code == 0 && out != "", "generating: exit code %d, %q", code, out)
	if code, stderr := train("TMP/more", "--pretrained-model", "TMP/out/chat_supervised"); code != 0 {
		t.Errorf("going on: exit code %d, %q", code, stderr)
	}
	if code, stderr := train("TMP/all", "--tiny-layers", "1", "--tiny-hidden", "32", "--validation-share", "0"); code != 0 || !strings.Contains(must.Read(t, f.expand("TMP/all/chat_supervised/logs/training_log.txt")), "(train 40, validation 0)") {
		t.Errorf("no rows for validation: exit code %d, %q", code, stderr)
	}
	code, stderr := train("TMP/out", "--pretrained-model", "TMP/out/chat_supervised")
	expect.True(t, code != 0 && strings.Contains(stderr, "is the folder that this run writes"), "going on in place: exit code %d, %q", code, stderr)
}

// TestGenerateResumes stops a command after some rows. Resuming keeps them, and the file ends
// byte-identical to an uninterrupted one.
func TestGenerateResumes(t *testing.T) {
	f := tiny(t)
	var prompts strings.Builder
	for i := range 60 {
		fmt.Fprintf(&prompts, `{"id":%d,"prompt":%q}`+"\n", i, strings.Repeat("ab ", 1+i%9))
	}
	f.write(t, "TMP/in.jsonl", prompts.String())
	args := func(output string, more ...string) []string {
		return append([]string{"generate", "--model", "MODEL", "--input", "TMP/in.jsonl", "--output", output, "--max-new-tokens", "40", "--n", "2", "--batch-size", "4"}, more...)
	}
	if code, _, stderr := f.rltrain("", args("TMP/whole.jsonl")...); code != 0 {
		t.Fatalf("exit code %d, %q", code, stderr)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	part := f.expand("TMP/out.jsonl.partial")
	go func() {
		for ctx.Err() == nil {
			if data, err := os.ReadFile(part); err == nil && bytes.Count(data, []byte("\n")) >= 4 {
				cancel(interrupted{syscall.SIGTERM})
			}
		}
	}()
	argv := []string{"rltrain"}
	for _, a := range args("TMP/out.jsonl") {
		argv = append(argv, f.expand(a))
	}
	var stderr strings.Builder
	code := Run(ctx, argv, nil, strings.NewReader(""), io.Discard, &stderr)
	cancel(nil)
	if want := "prompts; run the same command with --resume to continue\n"; code != 143 || !strings.HasSuffix(stderr.String(), want) || !strings.Contains(stderr.String(), part) {
		t.Fatalf("exit code %d, %q, want an end of %q", code, stderr.String(), want)
	}
	_, err := os.Stat(f.expand("TMP/out.jsonl"))
	expect.True(t, err != nil, "the output has its final name before it is complete")
	half := must.Get(os.OpenFile(part, os.O_APPEND|os.O_WRONLY, 0))(t)
	if _, err := half.WriteString("{}\n{\"id\": 7, \"prom"); err != nil { // as after a kill
		t.Fatal(err)
	}
	half.Close()
	for _, c := range []struct {
		args []string
		want string
	}{
		{args("TMP/out.jsonl"), "pass --resume to continue, or remove it"},
		{args("TMP/out.jsonl", "--resume", "--seed", "7"), "has a different input or options"},
	} {
		f.usage(t, c.want, c.args...)
	}
	if code, _, stderr := f.rltrain("", args("TMP/out.jsonl", "--resume")...); code != 0 {
		t.Fatalf("exit code %d, %q", code, stderr)
	}
	expect.True(t, must.Read(t, f.expand("TMP/whole.jsonl")) == must.Read(t, f.expand("TMP/out.jsonl")), "the rows differ from those of a command that was never stopped")
	left, err := filepath.Glob(f.expand("TMP/*.partial*"))
	expect.True(t, err == nil && len(left) == 0, "left over: %v, %v", left, err)
}

// TestGenerateWritesToADevice: a link to a device stays a link, and no temporary file is written next to it.
func TestGenerateWritesToADevice(t *testing.T) {
	f := tiny(t)
	f.write(t, "TMP/in.jsonl", `{"prompt":"ab"}`+"\n")
	must.Do(t, os.Symlink("/dev/null", f.expand("TMP/out.jsonl")))
	for _, command := range []string{"generate --max-new-tokens 3", "generate --max-new-tokens 3"} {
		args := append(strings.Fields(command), "--model", "MODEL", "--input", "TMP/in.jsonl", "--output", "TMP/out.jsonl")
		f.says(t, "", args...)
	}
	expect.Result(os.Readlink(f.expand("TMP/out.jsonl")))(t, "/dev/null", "the link leads to")
}

// TestGenerateKeepsNewlines: a prompt may end with its line's newline.
func TestGenerateKeepsNewlines(t *testing.T) {
	f := tiny(t)
	f.write(t, "TMP/in.jsonl", `{"prompt":"12 34\n"}`+"\n")
	options := []string{"--model", "MODEL", "--temperature", "0", "--max-new-tokens", "8"}
	f.says(t, "", append([]string{"generate", "--input", "TMP/in.jsonl", "--output", "TMP/out.jsonl"}, options...)...)
	want := readOutput(t, f.expand("TMP/out.jsonl"))[0].Completion + "\n"
	_, got, _ := f.rltrain("12 34\n", append([]string{"generate", "--keep-newlines"}, options...)...)
	expect.True(t, got == want, "got %q, want %q", got, want)
}

// TestInvalidEndToken: if the model names an end token outside its vocabulary (transformers accepts this), the
// tokenizer's end token is used, with a note.
func TestInvalidEndToken(t *testing.T) {
	f := tiny(t)
	for _, name := range []string{"MODEL/config.json", "MODEL/generation_config.json"} {
		f.edit(t, name, `"eos_token_id": 1`, `"eos_token_id": 5000`)
	}
	code, out, stderr := f.rltrain("a\n", "generate", "--model", "MODEL", "--max-new-tokens", "9")
	expect.True(t, code == 0 && out != "" && stderr == "rltrain: end tokens: \"<eos>\" (1)\n", "exit code %d, printed %q, %q", code, out, stderr)
}

// TestAdapterOfQuantisedWeights: an adapter whose base has 4-bit weights gets an error with a fix, and the fix works.
func TestAdapterOfQuantisedWeights(t *testing.T) {
	f := newLanguageModel(t)
	greedy := []string{"generate", "--temperature", "0", "--max-new-tokens", "9", "--model"}
	answer := func(args ...string) string {
		code, out, stderr := f.rltrain("ab\n", append(greedy, args...)...)
		expect.Same(t, 0, code, "%v: exit code %d, %q", args, code, stderr)
		return out
	}
	want := answer("MODEL")
	must.Do(t, os.CopyFS(f.expand("TMP/whole"), os.DirFS(f.base)))
	f.edit(t, "BASE/config.json", `{`, `{"quantization_config": {"quant_method": "hqq"},`)
	code, _, stderr := f.rltrain("ab\n", append(greedy, "MODEL")...)
	advice := "name the model that it was made of, with --model where an adapter names this one"
	expect.True(t, code == 1 && strings.Contains(stderr, advice), "exit code %d, %q", code, stderr)
	expect.Same(t, want, answer("TMP/whole", "--adapter", "MODEL"), "answer")
}
