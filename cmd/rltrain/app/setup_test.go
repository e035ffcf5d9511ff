package app

import (
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/libtorch"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/train"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/hub"
	"github.com/rltrain/rltrain/torch/transformers"
)

// packaged makes the native core one without a search path, as packages have it, on a machine without libtorch.
func packaged(t *testing.T) {
	t.Helper()
	core := must.Get(torch.Library())(t)
	file := must.Open(elf.Open(core))(t)
	_, dirs, err := libtorch.Dependencies(file, "$ORIGIN")
	must.Do(t, err)
	path := strings.Join(dirs, ":")
	data := strings.Replace(string(must.Get(os.ReadFile(core))(t)), path+"\x00", "$ORIGIN"+strings.Repeat("\x00", len(path)-len("$ORIGIN")+1), 1)
	own := must.File(t, filepath.Base(core), data)
	t.Setenv("RLTRAIN_LIB", own)
	t.Setenv("RLTRAIN_CACHE", t.TempDir())
	t.Setenv("LIBTORCH", "")
	t.Setenv("PATH", t.TempDir())
	t.Setenv("PIP_CONFIG_FILE", os.DevNull)
	t.Setenv("PIP_FIND_LINKS", "")
	t.Setenv("PIP_NO_INDEX", "1")
}

// TestCommandsNeedLibtorch: without libtorch a command says how to get it, before anything is written; --yes downloads it.
func TestCommandsNeedLibtorch(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	packaged(t)
	for _, args := range []string{
		"train --task sum_digits --model tiny --num-steps 1 --output-dir TMP/runs", "--task sum_digits --model tiny --dry-run --num-steps 1",
		"generate --model tiny",
	} {
		code, _, stderr := f.rltrain("", strings.Fields(args)...)
		expect.True(t, code == 1 && strings.Contains(stderr, "rltrain setup") && strings.Contains(stderr, "--yes") && strings.Count(stderr, "\n") == 1, "%s: exit %d, %q", args, code, stderr)
		f.refused(t, "no-index", append(strings.Fields(args), "--yes")...)
	}
	entries := must.Get(os.ReadDir(f.tmp))(t)
	expect.True(t, len(entries) == 0, "%v was written", entries)
	if code, out, stderr := f.rltrain("", "setup"); code != 1 || out != "" || !strings.Contains(stderr, "no-index") {
		t.Errorf("setup: exit %d, %q, %q", code, out, stderr)
	}
	f.refused(t, "torch- … --export", "setup", "--offline", f.tmp)
}

// TestSetup: with libtorch there is nothing to download.
func TestSetup(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	t.Setenv("PIP_NO_INDEX", "1")
	if _, err := libtorch.Find(must.Get(hub.CacheDir())(t)); err != nil {
		t.Skip("libtorch is known to the core alone")
	}
	out := f.must(t, "", "setup")
	expect.True(t, strings.Contains(out, "libtorch "+libtorch.Version) && strings.Contains(out, "rltrain is ready"), "setup prints %q", out)
	f.usages(t, "setup ", map[string]string{
		"--device tpu": `"tpu" is not one of cpu, cuda`, "--offline a --export b": "exclude each other", "--offline TMP/none": "is not a folder",
	})
}

// TestVersion: --json says what runs here.
func TestVersion(t *testing.T) {
	var f folders
	expect.Same(t, "rltrain version "+shared.Version+"\n", f.must(t, "", "version"), "must")
	b := must.Into[build](t, json.Unmarshal, []byte(f.must(t, "", "version", "--json")))
	expect.True(t, b.Version == shared.Version && b.ABI == torch.ABIVersion && b.Libtorch.Version == libtorch.Version && b.Libtorch.Folder != "" && b.Core != "", "got %+v", b)
	packaged(t)
	must.Do(t, json.Unmarshal([]byte(f.must(t, "", "version", "--json")), &b))
	expect.True(t, strings.Contains(b.Libtorch.Missing, "rltrain setup"), "without libtorch: %+v", b)
}

// TestManual: the page has every command and option, and troff understands it.
func TestManual(t *testing.T) {
	var f folders
	page := f.must(t, "", "man")
	expect.Contains(t, page, ".TH RLTRAIN 1", ".SS rltrain models pull NAME", ".B \\-\\-offline VALUE", ".B \\-\\-learning\\-rate X", "RLTRAIN_CACHE")
	man, err := exec.LookPath("man")
	if err != nil {
		t.Skip(err)
	}
	command := exec.Command(man, "--warnings=all", "-l", "-")
	command.Stdin, command.Env = strings.NewReader(page), append(os.Environ(), "LC_ALL=C.UTF-8", "MANWIDTH=80")
	var faults strings.Builder
	command.Stderr = &faults
	out, err := command.Output()
	expect.True(t, err == nil && faults.Len() <= 0 && strings.Contains(string(out), "--learning-rate X"), "%v: %s", err, faults.String())
}

// TestDoctorFirst: doctor works without libtorch and says how to get it.
func TestDoctorFirst(t *testing.T) {
	var f folders
	out := f.must(t, "", "doctor")
	expect.Contains(t, out, "System\n", "glibc 2.", "libtorch          "+libtorch.Version, "GB free", "Operators\n", "Sandbox for programs\n")
	packaged(t)
	code, out, stderr := f.rltrain("", "doctor")
	if code != 1 || !strings.Contains(out, "FAULT: libtorch "+libtorch.Version+" not found") || !strings.Contains(out, "fix: rltrain setup\n") ||
		!strings.Contains(out, "Sandbox for programs\n") || strings.Contains(out, "Operators\n") || !strings.Contains(stderr, "doctor says what to do") {
		t.Errorf("exit %d, %q\n%s", code, stderr, out)
	}
}

// sheetOf is doctor's output without the padding between names and texts.
func sheetOf(out string) string {
	lines := strings.Split(out, "\n")
	for i, line := range lines {
		lines[i] = strings.Join(strings.Fields(line), " ")
	}
	return strings.Join(lines, "\n")
}

func wantLines(t *testing.T, out string, want ...string) {
	t.Helper()
	for _, line := range want {
		expect.True(t, strings.Contains("\n"+out+"\n", "\n"+line+"\n"), "no line %q in\n%s", line, out)
	}
}

func TestDoctorOnALanguageModel(t *testing.T) {
	f := newLanguageModel(t)
	// Vocabulary 99, 2 layers of width 32: embedding and final norm; per layer two norms, attention, and an MLP of
	// width 128.
	wantLines(t, sheetOf(f.must(t, "", "doctor", "--model", "BASE")),
		f.expand("Language model BASE"),
		"family llama: 2 layers, hidden size 32, 1 heads of size 32 (1 KV heads), MLP size 128, vocabulary 99",
		"parameters 36,096 (tied embeddings)",
		"weights 0.1 MiB F32",
		"context 2,048 tokens in training; longer texts are possible",
		`end tokens "<eos>" (1)`,
		`special tokens eos_token 1 "<eos>", pad_token 0 "<pad>", unk_token 2 "<unk>"`,
		"chat template none: accepts plain text only, no messages",
		"First prompt of chat (plain text: no chat template)",
		"text What is 2 + 2?",
		"ids 59 76 69 88 4 77 87 4 22 4 15 4 22 35",
		"tokens 17, 3 trained on",
		`13 35 "?" no`, `14 4 " " yes`, `15 24 "4" yes`, `16 1 "<eos>" yes`,
		"KV cache 0.5 KiB per token, 0.5 MiB for 1,000 tokens, in fp32; half of it where a CPU multiplies in bf16", // 2 layers, a key and a value of 32 floats each
		"training LoRA of rank 16: 4,096 weights, 0.1 MiB with gradients and AdamW; about 4.9 MiB of activations per 1,000 tokens of a micro-batch",
	)
	f.edit(t, "BASE/config.json", `"hidden_act"`, `"favourite_colour": "red", "hidden_act"`)
	out := sheetOf(f.must(t, "", "doctor", "--model", "BASE", "--task", "sum_digits", "--eval-samples", "4", "--max-new-tokens", "3"))
	wantLines(t, out, `unknown field favourite_colour "red" of config.json is not read; it does not look as if it changed what the model computes`,
		"Signal for RL on sum_digits (4 problems, 8 samples each, temperature 1)", "pass@1 0.0 % (95 % CI 0.0–49.0)", "pass@8 0.0 % (95 % CI 0.0–49.0)",
		"truncated 100.0 % of the completions", "to learn 0 of 4 problems have correct and incorrect samples; the others teach nothing", "what helps "+train.SignalHelp)
	f.remove(t, "BASE/model.safetensors")
	code, out, _ := f.rltrain("", "doctor", "--model", "BASE", "--task", "sum_digits")
	expect.Same(t, 1, code, "exit code %d of a measurement without weights", code)
	wantLines(t, sheetOf(out),
		"weights missing: no model*.safetensors and no pytorch_model*.bin in the folder",
		"First prompt of sum_digits (plain text: no chat template)",
		"weights 0.1 MiB as fp32, 0.1 MiB as bf16",
	)
}

func TestDoctorOnAChatTemplate(t *testing.T) {
	f := newLanguageModel(t)
	const messages = "{% for m in messages %}{{ m.role }}: {{ m.content }}"
	f.write(t, "BASE/chat_template.jinja", messages+"{{ eos_token if m.role == 'assistant' }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}")
	wantLines(t, sheetOf(f.must(t, "", "doctor", "--model", "BASE")),
		"chat template default",
		"First prompt of chat (messages)",
		"text user: What is 2 + 2?",
		"assistant:",
		`32 24 "4" yes`, `33 1 "<eos>" yes`,
	)
	out := sheetOf(f.must(t, "", "doctor", "--model", "BASE", "--task", "reverse_digits"))
	wantLines(t, out, "First prompt of reverse_digits (messages)", "...")
	expect.True(t, !strings.Contains(out, "\nproblem "), "a problem where there is none:\n%s", out)

	f.write(t, "BASE/chat_template.jinja", messages+"\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}")
	wantLines(t, sheetOf(f.must(t, "", "doctor", "--model", "BASE")),
		"problem no stop token is trained on, so the model would not learn to stop")
	f.write(t, "BASE/chat_template.jinja", "{{ raise_exception('tools only') }}")
	if out := f.must(t, "", "doctor", "--model", "BASE"); !strings.Contains(out, "tools only") || !strings.Contains(out, "KV cache") {
		t.Errorf("the template's complaint is missing, or what follows it:\n%s", out)
	}
}

func TestDoctorOnAnAdapter(t *testing.T) {
	f := newLanguageModel(t)
	wantLines(t, sheetOf(f.must(t, "", "doctor", "--model", "MODEL")),
		f.expand("Adapter MODEL"), f.expand("base model BASE"), "r 4", "lora_alpha 8", `target_modules ["q_proj","v_proj"]`,
		"weights 1,024 in 8 tensors", "rltrain loads", "vLLM should load", f.expand("Language model BASE"),
		"training this adapter: 1,024 weights, 0.0 MiB with gradients and AdamW; about 4.9 MiB of activations per 1,000 tokens of a micro-batch",
	)
	f.edit(t, "MODEL/adapter_config.json", `"bias": "none"`, `"bias": "all", "use_qalora": true`)
	wantLines(t, sheetOf(f.must(t, "", "doctor", "--model", "MODEL")),
		`bias "all"`, "use_qalora true",
		f.expand(`rltrain cannot load: lora: MODEL/adapter_config.json: "use_qalora" is true, which is not supported`),
		`vLLM cannot load: bias "all" is not supported; merge the adapter`,
		"vLLM cannot load: use_qalora true is not supported; merge the adapter",
	)
	f.edit(t, "MODEL/adapter_config.json", `"bias": "all", "use_qalora": true`, `"bias": "none"`)
	f.edit(t, "BASE/config.json", `"num_hidden_layers": 2`, `"num_hidden_layers": 1`)
	code, stdout, stderr := f.rltrain("", "doctor", "--model", "MODEL")
	want := "rltrain cannot load: lora: the adapter has module model.layers.1.self_attn.q_proj, which the model lacks"
	expect.True(t, strings.Contains(sheetOf(stdout), want), "no %q in\n%s", want, stdout)
	expect.True(t, code == 1 && strings.Contains(stderr, "unknown tensors"), "exit code %d, error %q", code, stderr)
}

func TestDoctorOnAClassifier(t *testing.T) {
	f := newFolders(t, transformers.PoolFamily)
	wantLines(t, sheetOf(f.must(t, "", "doctor", "--model", "MODEL")),
		f.expand("Text classifier MODEL"), "labels 3: animals, law, physics", "pooling family", "max length 12 tokens", f.expand("base model BASE"))
	f.must(t, "", "merge", "--model", "MODEL", "--output", "TMP/merged")
	wantLines(t, sheetOf(f.must(t, "", "doctor", "--model", "TMP/merged")), "base model merged into the weights")
}

func TestDoctorRefuses(t *testing.T) {
	f := newFolders(t, transformers.PoolFamily)
	tiny := newLanguageModel(t)
	tiny.remove(t, "BASE/tokenizer.json")
	for _, test := range []struct {
		args string
		code int
		want string
	}{
		{"doctor --task sum_digits", 2, "--task: needs --model with a language model"},
		{"doctor --model MODEL --task chat", 2, "--task: does not apply; MODEL is a classifier"},
		{"doctor --model MODEL --task gsm9k", 2, `--task: "gsm9k" is none of chat, preference, code, reverse_digits, sum_digits, a_letter, agent, env, gsm8k, math, prompts`},
		{"doctor --model BASE", 1, "BASE is an encoder (bert), not a language model; use it for classification tasks"},
		{"doctor --model TMP", 1, "--model: model folder TMP has neither a config.json nor a GGUF file: it is not a model"},
		{"doctor --model TINY", 1, "transformers: open TINY/tokenizer.json: no such file or directory"},
	} {
		expand := strings.NewReplacer("TINY", tiny.base).Replace
		f.fails(t, test.code, expand(test.want), strings.Fields(expand(test.args))...)
	}

	// doctor describes an adapter even if its base model is unknown.
	f.remove(t, "MODEL/label_policy.json")
	code, stdout, stderr := f.rltrain("", "doctor", "--model", "MODEL")
	wantLines(t, sheetOf(stdout), f.expand("base model BASE"), "rltrain loads", `task_type "SEQ_CLS"`)
	expect.True(t, code == 1 && stderr == f.expand("rltrain: BASE is an encoder (bert), not a language model; use it for classification tasks\n"), "exit code %d, error %q", code, stderr)
	tiny.edit(t, "MODEL/adapter_config.json", `"base_model_name_or_path": "`+tiny.base+`"`, `"base_model_name_or_path": null`)
	code, stdout, stderr = tiny.rltrain("", "doctor", "--model", "MODEL")
	wantLines(t, sheetOf(stdout), "rltrain loads")
	if want := tiny.expand("rltrain: MODEL/adapter_config.json: base_model_name_or_path: "); code != 1 || !strings.HasPrefix(stderr, want) || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit code %d, error %q", code, stderr)
	}
}
