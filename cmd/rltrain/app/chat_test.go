package app

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// ggufModel returns the folder of a small GGUF model whose chat template writes "role: content" lines.
func ggufModel(t *testing.T) folders {
	t.Helper()
	torchtest.NoLeaks(t)
	tmp := t.TempDir()
	t.Setenv("RLTRAIN_CACHE", filepath.Join(tmp, "cache"))
	data := must.Get(os.ReadFile(filepath.Join("..", "..", "..", "torch", "transformers", "testdata", "gguf", "llama-Q4_1.gguf")))(t)
	model := filepath.Join(tmp, "tiny.gguf")
	must.Do(t, os.WriteFile(model, data, 0o644))
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
		code, out, stderr := f.rltrain("", append([]string{"generate", "--model", "MODEL", "--temperature", "0", "--max-new-tokens", "12"}, args...)...)
		expect.Require(t, code == 0, "%q: exit code %d, %s", args, code, stderr)
		var row outputRow
		must.Do(t, json.Unmarshal([]byte(out), &row))
		return row.Completion
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
	data := must.Get(os.ReadFile(f.model))(t)
	must.Do(t, os.Mkdir(f.expand("TMP/many"), 0o755))
	f.write(t, "TMP/many/a.gguf", string(data))
	f.write(t, "TMP/many/b.gguf", string(data))
	f.write(t, "TMP/rows.jsonl", `{"prompt":"hi","completion":"yes"}`+"\n")
	for _, command := range []string{
		"generate --model TMP/many", "chat --model TMP/many", "export --model TMP/many --output TMP/out.gguf", "doctor --model TMP/many",
		"train --task chat --dataset TMP/rows.jsonl --model TMP/many --validation-share 0 --dry-run",
	} {
		if code, _, stderr := f.rltrain("", strings.Fields(command)...); code == 0 || !strings.Contains(stderr, "--gguf-file a.gguf") {
			t.Errorf("%s: exit code %d, %q; want a word about --gguf-file", command, code, stderr)
		}
		if code, out, stderr := inProcess(t, f, strings.Fields(command+" --gguf-file b.gguf")...); code != 0 {
			t.Errorf("%s --gguf-file b.gguf: exit code %d, %q, %q", command, code, out, stderr)
		}
	}
	for command, want := range map[string]string{
		"generate --gguf-file b.gguf":                                    "--model",
		"generate --model TMP/many --gguf-file c.gguf":                   "c.gguf",
		"generate --model TMP/many/a.gguf --gguf-file b.gguf":            "a.gguf",
		"train --task sum_digits --gguf-file b.gguf":                     "--model",
		"train --task sum_digits --model TMP/many --gguf-file none.gguf": "none.gguf",
		"predict --model TMP/many --gguf-file b.gguf":                    "gguf-file",
	} {
		f.usage(t, want, strings.Fields(command)...)
	}
	_, out, _ := inProcess(t, f, strings.Fields("--task sum_digits --model TMP/many --gguf-file b.gguf --print-config")...)
	expect.True(t, strings.Contains(out, "many/b.gguf"), "--print-config does not name the file:\n%s", out)
}
