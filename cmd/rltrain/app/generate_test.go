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

func TestGenerateThenScore(t *testing.T) {
	f := tiny(t)
	f.rows(t, "TMP/in.jsonl", 40, func(i int) string {
		return fmt.Sprintf(`{"id":%d,"prompt":%q}`, i, strings.Repeat("ab ", 1+i%9))
	})
	code, _, stderr := f.rltrain("",
		strings.Fields("generate --model MODEL --input TMP/in.jsonl --output TMP/7.jsonl --max-new-tokens 12 -n 3 --batch-size 7")...)
	expect.Require(t, code == 0 && strings.Contains(stderr, `end tokens: "<eos>" (1)`), "exit code %d, %q", code, stderr)
	rows := lines[outputRow](t, f.expand("TMP/7.jsonl"))
	expect.Require(t, len(rows) == 120, "%d rows, want 120", len(rows))
	distinct := map[string]bool{}
	for i, r := range rows {
		distinct[r.Completion] = true
		expect.True(t, r.ID == i/3 && len(r.LogProbs) == len(r.CompletionIDs) && (r.FinishReason == "length" || r.FinishReason == "stop"), "row %d: %+v", i, r)
	}
	expect.True(t, len(distinct) >= 100, "%d different completions of 120", len(distinct))
	f.must(t, "", "score", "--model", "MODEL", "--input", "TMP/7.jsonl", "--output", "TMP/scored.jsonl")
	for i, r := range lines[outputRow](t, f.expand("TMP/scored.jsonl")) {
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
	f.rows(t, "TMP/in.jsonl", 300, func(i int) string {
		return fmt.Sprintf(`{"prompt":%q}`, strings.Repeat("ab:", 1+i%23)+fmt.Sprint(i))
	})
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
		{"generate --model MODEL --resume", "--resume needs --input FILE"},
		{"generate --model MODEL --input TMP/good.jsonl --resume", "--resume: needs --output FILE"},
		{"generate --model MODEL --bf16 --dtype fp32", "--dtype (fp32) and --bf16 (bf16) conflict"},
		{"score --model MODEL", "score needs --input FILE"},
		{"score --model MODEL --input TMP/empty.jsonl", "TMP/empty.jsonl:1: no completion or completion_ids"},
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
	f.rows(t, "TMP/rows.jsonl", 40, func(i int) string {
		return fmt.Sprintf(`{"prompt":"%d:","completion":"%d"}`, i%10, i%10)
	})
	const train = "--task chat --dataset TMP/rows.jsonl --epochs 2 --batch-size 4 --output-dir "
	f.says(t, "", strings.Fields(train+"TMP/out --tiny-layers 1 --tiny-hidden 32 --tuning lora")...)
	out := f.says(t, "3:", "generate", "--model", "TMP/out/chat_supervised", "--max-new-tokens", "3")
	expect.True(t, out != "", "nothing was generated")
	f.says(t, "", strings.Fields(train+"TMP/more --pretrained-model TMP/out/chat_supervised")...)
	logged := must.Read(t, f.expand("TMP/more/chat_supervised/logs/training_log.txt"))
	expect.True(t, strings.HasPrefix(logged, "chat: supervised fine-tuning with LoRA\n"),
		"the log of a continued adapter begins %.80q", logged)
	f.says(t, "", strings.Fields(train+"TMP/all --tiny-layers 1 --tiny-hidden 32 --validation-share 0")...)
	expect.Contains(t, must.Read(t, f.expand("TMP/all/chat_supervised/logs/training_log.txt")), "(train 40, validation 0)")
	f.refused(t, "is the folder that this run writes", strings.Fields(train+"TMP/out --pretrained-model TMP/out/chat_supervised")...)
}

// TestGenerateResumes stops a command after some rows. Resuming keeps them, and the file ends
// byte-identical to an uninterrupted one.
func TestGenerateResumes(t *testing.T) {
	f := tiny(t)
	f.rows(t, "TMP/in.jsonl", 60, func(i int) string {
		return fmt.Sprintf(`{"id":%d,"prompt":%q}`, i, strings.Repeat("ab ", 1+i%9))
	})
	args := func(output string, more ...string) []string {
		return append([]string{"generate", "--model", "MODEL", "--input", "TMP/in.jsonl", "--output", output, "--max-new-tokens", "40", "--n", "2", "--batch-size", "4"}, more...)
	}
	f.says(t, "", args("TMP/whole.jsonl")...)
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
	expect.Fails(os.Stat(f.expand("TMP/out.jsonl")))(t, "the output has its final name before it is complete")
	f.write(t, part, must.Read(t, part)+"{}\n{\"id\": 7, \"prom") // as after a kill
	f.usage(t, "pass --resume to continue, or remove it", args("TMP/out.jsonl")...)
	f.usage(t, "has a different input or options", args("TMP/out.jsonl", "--resume", "--seed", "7")...)
	f.says(t, "", args("TMP/out.jsonl", "--resume")...)
	expect.True(t, must.Read(t, f.expand("TMP/whole.jsonl")) == must.Read(t, f.expand("TMP/out.jsonl")), "the rows differ from those of a command that was never stopped")
	left, err := filepath.Glob(f.expand("TMP/*.partial*"))
	expect.True(t, err == nil && len(left) == 0, "left over: %v, %v", left, err)
}

// TestGenerateWritesToADevice: a link to a device stays a link, and no temporary file is written next to it.
func TestGenerateWritesToADevice(t *testing.T) {
	f := tiny(t)
	f.write(t, "TMP/in.jsonl", `{"prompt":"ab"}`+"\n")
	must.Do(t, os.Symlink("/dev/null", f.expand("TMP/out.jsonl")))
	f.says(t, "", strings.Fields("generate --max-new-tokens 3 --model MODEL --input TMP/in.jsonl --output TMP/out.jsonl")...)
	expect.Result(os.Readlink(f.expand("TMP/out.jsonl")))(t, "/dev/null", "the link leads to")
}

// TestGenerateKeepsNewlines: a prompt may end with its line's newline.
func TestGenerateKeepsNewlines(t *testing.T) {
	f := tiny(t)
	f.write(t, "TMP/in.jsonl", `{"prompt":"12 34\n"}`+"\n")
	options := []string{"--model", "MODEL", "--temperature", "0", "--max-new-tokens", "8"}
	f.says(t, "", append([]string{"generate", "--input", "TMP/in.jsonl", "--output", "TMP/out.jsonl"}, options...)...)
	want := lines[outputRow](t, f.expand("TMP/out.jsonl"))[0].Completion + "\n"
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
	answer := func(args ...string) string { return f.says(t, "ab\n", append(greedy, args...)...) }
	want := answer("MODEL")
	must.Do(t, os.CopyFS(f.expand("TMP/whole"), os.DirFS(f.base)))
	f.edit(t, "BASE/config.json", `{`, `{"quantization_config": {"quant_method": "hqq"},`)
	f.refused(t, "name the model that it was made of, with --model where an adapter names this one", append(greedy, "MODEL")...)
	expect.Same(t, want, answer("TMP/whole", "--adapter", "MODEL"), "answer")
}

// ggufModel returns the folder of a small GGUF model whose chat template writes "role: content" lines.
func ggufModel(t *testing.T) folders {
	t.Helper()
	torchtest.NoLeaks(t)
	tmp := t.TempDir()
	t.Setenv("RLTRAIN_CACHE", filepath.Join(tmp, "cache"))
	model := filepath.Join(tmp, "tiny.gguf")
	must.Write(t, model, must.Read(t, filepath.Join("..", "..", "..", "torch", "transformers", "testdata", "gguf", "llama-Q4_1.gguf")))
	return folders{model: model, tmp: tmp}
}

// A text prompt becomes a user message if the model has a chat template, unless --raw is given.
func TestTextPromptsGoThroughTheChatTemplate(t *testing.T) {
	f := ggufModel(t)
	f.write(t, "TMP/text.jsonl", `{"id":1,"prompt":"hi"}`+"\n")
	f.write(t, "TMP/messages.jsonl", `{"id":1,"messages":[{"role":"user","content":"hi"}]}`+"\n")
	f.write(t, "TMP/rendered.jsonl", `{"id":1,"prompt":"user: hi\n"}`+"\n")
	completion := func(args ...string) string {
		t.Helper()
		out := f.says(t, "", append([]string{"generate", "--model", "MODEL", "--temperature", "0", "--max-new-tokens", "12"}, args...)...)
		return must.Into[outputRow](t, json.Unmarshal, []byte(out)).Completion
	}
	text := completion("--input", "TMP/text.jsonl")
	for _, same := range [][]string{{"--input", "TMP/messages.jsonl"}, {"--raw", "--input", "TMP/rendered.jsonl"}} {
		expect.Same(t, text, completion(same...), "%q gives, the text prompt", same)
	}
	got := completion("--raw", "--input", "TMP/text.jsonl")
	expect.True(t, got != text, "--raw changes nothing: %q", got)
	if code, _, stderr := f.rltrain("hi\n", "generate", "--model", "MODEL", "--max-new-tokens", "1"); code != 0 || strings.Count(stderr, "--raw") != 1 {
		t.Errorf("exit code %d; want one note about the template: %q", code, stderr)
	}
}

func TestSamplingDefaultsOfTheModel(t *testing.T) {
	f := tiny(t)
	f.write(t, "MODEL/generation_config.json", `{"eos_token_id": 1, "temperature": 0, "top_p": 0.5}`)
	args := []string{"generate", "--model", "MODEL", "--max-new-tokens", "20"}
	_, greedy, _ := f.rltrain("ab\n", append(args, "--temperature", "0")...)
	_, got, stderr := f.rltrain("ab\n", args...)
	expect.True(t, got == greedy && strings.Contains(stderr, "temperature=0 top_p=0.5"), "got %q, want the greedy %q; stderr %q", got, greedy, stderr)
	for _, more := range [][]string{{"--ignore-generation-config"}, {"--temperature", "1", "--top-p", "0"}} {
		code, got, _ := f.rltrain("ab\n", append(args, more...)...)
		expect.True(t, code == 0 && got != greedy, "%q: the completion is greedy all the same", more)
	}
}

func TestChat(t *testing.T) {
	f := ggufModel(t)
	chat := func(input string, args ...string) (stdout, stderr string) {
		t.Helper()
		code, stdout, stderr := f.rltrain(input, append([]string{"chat", "--model", "MODEL", "--max-new-tokens", "8", "--temperature", "0"}, args...)...)
		expect.Require(t, code == 0, "exit code %d: %s", code, stderr)
		return stdout, stderr
	}
	once, _ := chat("hi\n")
	twice, _ := chat("hi\n\nhi\n")
	expect.True(t, strings.HasPrefix(twice, once) && twice != once+once, "two messages gave %q, one gave %q: the history has no effect", twice, once)
	for name, input := range map[string]string{"reset": "hi\n/reset\nhi\n", "system and back": "hi\n/reset\n/system be brief\n/system -\nhi\n"} {
		again, _ := chat(input)
		expect.True(t, again == once+once, "%s: got %q, want %q twice", name, again, once)
	}
	system, _ := chat("hi\n", "--system", "be brief")
	later, _ := chat("/system be brief\nhi\n")
	expect.True(t, later == system && system != once, "/system gives %q, --system %q, none %q", later, system, once)
	if short, stderr := chat("/set max_new_tokens 1\nhi\n"); len(short) >= len(once) || !strings.Contains(stderr, "[max_new_tokens 1]") {
		t.Errorf("/set has no effect: %q, %q", short, stderr)
	}
	for input, want := range map[string]string{
		"/help": "/adapter on|off", "/what": "/what", "/set": "temperature 0", "/set temperature x": `"x"`, "/set temperature -1": "temperature: -1",
		"/set nothing 1": "nothing", "/adapter off": "no adapter", "/system": "(none)", "/set top-k=5": "[top_k 5]",
	} {
		stdout, stderr := chat(input + "\n/quit\nhi\n")
		expect.True(t, stdout == "" && strings.Contains(stderr, want), "%s: got %q and %q, want %q", input, stdout, stderr, want)
	}
	f.usage(t, "--top-p: 2", "chat", "--model", "MODEL", "--top-p", "2")
}

// A conversation longer than the context drops its oldest turns; a message that is too long gets an error.
func TestChatForgets(t *testing.T) {
	f := ggufModel(t)
	input := strings.Repeat("the cat sat on the mat and the dog ran\n", 8)
	code, stdout, stderr := f.rltrain(input, "chat", "--model", "MODEL", "--max-new-tokens", "4")
	expect.True(t, code == 0 && strings.Contains(stderr, "forgotten") && strings.Count(stdout, "\n") >= 8, "exit code %d, %q, %q", code, stdout, stderr)
	code, _, stderr = f.rltrain(strings.Repeat("x", 500)+"\nhi\n", "chat", "--model", "MODEL", "--max-new-tokens", "4")
	expect.True(t, code == 0 && strings.Contains(stderr, "128 positions"), "exit code %d, %q", code, stderr)
}

func TestChatAdapter(t *testing.T) {
	f, adapter := trainedAdapter(t)
	args := []string{"chat", "--max-new-tokens", "8", "--temperature", "0", "--model"}
	_, base, _ := f.rltrain("hi\n", append(args, "MODEL")...)
	_, stdout, _ := f.rltrain("hi\n/reset\n/adapter off\nhi\n/reset\n/adapter on\nhi\n", append(args, adapter)...)
	with, _, _ := strings.Cut(stdout, "\n")
	expect.True(t, stdout == with+"\n"+base+with+"\n" && with+"\n" != base, "adapter on, off, on: %q; base model: %q", stdout, base)
}

// A hook receives interrupts until it is released.
func TestOnInterrupt(t *testing.T) {
	hook := &interruptHook{}
	ctx := context.WithValue(t.Context(), hookKey{}, hook)
	n := 0
	release := onInterrupt(ctx, func() { n++ })
	expect.True(t, hook.handled() && n == 1, "the hook was not called: %d", n)
	release()
	expect.True(t, !hook.handled() && n == 1, "the hook was called after its release: %d", n)
}

// TestChosenGGUF of a folder with several, in every command that takes a language model.
func TestChosenGGUF(t *testing.T) {
	f := ggufModel(t)
	f.write(t, "TMP/many/a.gguf", must.Read(t, f.model))
	f.write(t, "TMP/many/b.gguf", must.Read(t, f.model))
	f.write(t, "TMP/rows.jsonl", `{"prompt":"hi","completion":"yes"}`+"\n")
	for _, command := range []string{
		"generate --model TMP/many", "chat --model TMP/many", "export --model TMP/many --output TMP/out.gguf", "doctor --model TMP/many",
		"train --task chat --dataset TMP/rows.jsonl --model TMP/many --validation-share 0 --dry-run",
	} {
		f.refused(t, "--gguf-file a.gguf", strings.Fields(command)...)
		code, out, stderr := inProcess(t, f, strings.Fields(command+" --gguf-file b.gguf")...)
		expect.True(t, code == 0, "%s --gguf-file b.gguf: exit code %d, %q, %q", command, code, out, stderr)
	}
	f.usages(t, "", map[string]string{
		"generate --gguf-file b.gguf":                                    "--model",
		"generate --model TMP/many --gguf-file c.gguf":                   "c.gguf",
		"generate --model TMP/many/a.gguf --gguf-file b.gguf":            "a.gguf",
		"train --task sum_digits --gguf-file b.gguf":                     "--model",
		"train --task sum_digits --model TMP/many --gguf-file none.gguf": "none.gguf",
		"predict --model TMP/many --gguf-file b.gguf":                    "gguf-file",
	})
	_, out, _ := inProcess(t, f, strings.Fields("--task sum_digits --model TMP/many --gguf-file b.gguf --print-config")...)
	expect.True(t, strings.Contains(out, "many/b.gguf"), "--print-config does not name the file:\n%s", out)
}
