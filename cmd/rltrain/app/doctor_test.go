package app

import (
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/rl/train"
	"github.com/rltrain/rltrain/torch/transformers"
)

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
		expand := func(text string) string { return f.expand(strings.ReplaceAll(text, "TINY", tiny.base)) }
		code, stdout, stderr := f.rltrain("", strings.Fields(expand(test.args))...)
		want := "rltrain: " + expand(test.want) + "\n"
		expect.True(t, code == test.code && stderr == want && stdout == "", "%s: exit code %d, printed %q\n got %swant %s", test.args, code, stdout, stderr, want)
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
