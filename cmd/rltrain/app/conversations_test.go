package app

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/run"
)

// turns is a chat template that ends each turn with a token that is no end of the model, and tells the day.
const turns = "{{ strftime_now('%d') }}{% for m in messages %}{{ m.role + ': ' + m.content + '<unk>\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"

// TestTrainOnConversations trains a model whose files do not say where a turn ends.
func TestTrainOnConversations(t *testing.T) {
	f := tiny(t)
	f.write(t, "MODEL/chat_template.jinja", turns)
	rows := strings.Repeat(`{"messages":[{"role":"system","content":"be"},{"role":"user","content":"hi"},{"role":"assistant","content":"yo"}]}`+"\n", 32)
	f.write(t, "TMP/bad.jsonl", rows+`{"messages":[{"role":"user","content":"hi"}]}`+"\n"+`{"messages":[{"role":"user","content":5}]}`+"\n")
	train := strings.Fields("--task chat --model MODEL --tuning full --learning-rate 0.02 --threads 1 --validation-share 0 --output-dir TMP/out --dataset")

	f.refused(t, "--on-bad-row skip … bad.jsonl:34: … bad.jsonl:33: no message is the assistant's",
		append(train, "TMP/bad.jsonl")...)
	code, _, stderr := f.rltrain("",
		append(train, "TMP/bad.jsonl", "--on-bad-row", "skip", "--epochs", "20", "--template-date", "2026-02-03")...)
	log := must.Read(t, f.expand("TMP/out/chat_supervised/logs/training_log.txt"))
	expect.Contains(t, log,
		"2 rows skipped", "Trained tokens: 128 of 1248 in 32 examples; the assistant's messages only (TRL: all messages",
		`warning: "<unk>" (2) is no end of a text in the model's files`,
	)
	expect.Require(t, code == 0, "%v", stderr)
	f.write(t, "TMP/ask.jsonl", `{"messages":[{"role":"system","content":"be"},{"role":"user","content":"hi"}]}`)
	f.write(t, "TMP/parts.jsonl", `{"prompt":[{"role":"system","content":"be"},{"role":"user","content":[{"type":"text","text":"hi"}]}]}`)
	for _, ask := range []string{"TMP/ask.jsonl", "TMP/parts.jsonl"} {
		code, stdout, stderr := f.rltrain("", "generate", "--model", "TMP/out/chat_supervised", "--template-date", "2026-02-03", "--temperature", "0", "--max-new-tokens", "20", "--input", ask)
		var row outputRow
		expect.True(t, code == 0 && json.Unmarshal([]byte(stdout), &row) == nil && row.Completion == "yo" && row.FinishReason == "stop", "%s: %d, %s%s", ask, code, stdout, stderr)
	}
	var generation struct {
		EOS []int `json:"eos_token_id"`
	}
	data, err := os.ReadFile(f.expand("TMP/out/chat_supervised/generation_config.json"))
	expect.True(t, err == nil && json.Unmarshal(data, &generation) == nil && len(generation.EOS) == 2 && generation.EOS[1] == 2, "%s, %v", data, err)
}

// A resumed run renders conversations as on the day that it began, and goes on for longer.
func TestResumedConversations(t *testing.T) {
	f := tiny(t)
	f.write(t, "MODEL/chat_template.jinja", turns+`{% if strftime_now('%Y') == '1999' %}{{ raise_exception('it is 1999') }}{% endif %}`)
	f.write(t, "TMP/rows.jsonl", strings.Repeat(`{"prompt":[{"role":"user","content":"q"}],"chosen":[{"role":"assistant","content":"good"}],"rejected":[{"role":"assistant","content":"bad"}]}`+"\n", 8))
	for stage, options := range map[string]string{"preference_rl": "--algorithm dpo", "preference_reward": "--mode reward_model"} {
		train := func(more string) (int, string) {
			code, _, stderr := f.rltrain("", strings.Fields("--task preference --model MODEL --threads 1 --validation-share 0 --output-dir TMP/"+stage+" --dataset TMP/rows.jsonl "+options+" --epochs "+more)...)
			return code, stderr
		}
		if code, stderr := train("1"); code != 0 {
			t.Fatal(stderr)
		}
		folder := filepath.Join(f.expand("TMP/"+stage), stage)
		began := func(day string) {
			record, err := run.ReadRun(folder)
			expect.Require(t, err == nil && record.TemplateDate != "", "%s: date %q, %v", stage, record.TemplateDate, err)
			path := filepath.Join(folder, "run.json")
			must.Do(t, os.WriteFile(path, []byte(strings.Replace(must.Read(t, path), record.TemplateDate, day, 1)), 0o644))
		}
		began("2020-01-02")
		code, stderr := train("2 --resume")
		log := must.Read(t, filepath.Join(folder, "logs", "training_log.txt"))
		record, err := run.ReadRun(folder)
		expect.True(t, code == 0 && err == nil && record.TemplateDate == "2020-01-02" && strings.Contains(log, "2/2"),
			"%s: %d, date %q, %v\n%s%s", stage, code, record.TemplateDate, err, log, stderr)
		began("1999-01-02")
		code, stderr = train("3 --resume")
		expect.True(t, code != 0 && strings.Contains(stderr, "it is 1999"), "%s: %d, %s", stage, code, stderr)
	}
}

// TestErrorsOfData: what is wrong with the data or the model is said once, with what to do.
func TestErrorsOfData(t *testing.T) {
	f := tiny(t)
	f.write(t, "TMP/talk.jsonl", strings.Repeat(`{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"yo"}]}`+"\n", 4))
	labelled := "id,text,label\n"
	for i := range 20 {
		labelled += strings.Repeat("x", i+1) + ",some text " + strings.Repeat("y", i+1) + "," + []string{"a", "b"}[i%2] + "\n"
	}
	f.write(t, "TMP/labelled.csv", labelled)
	for args, want := range map[string][]string{
		"--task intent --dataset TMP/talk.jsonl":                                   {"talk.jsonl:1", `no columns "text", "label"`, "--task chat"},
		"--task preference --algorithm dpo --model MODEL --dataset TMP/talk.jsonl": {"talk.jsonl:1", "--task chat"},
		"--task gsm8k --model MODEL --dataset TMP/talk.jsonl":                      {"talk.jsonl:1", "--task chat"},
		"--task prompts --mode rl_only --model MODEL --dataset TMP/labelled.csv":   {"labelled.csv:2", "--task intent"},
		"--task intent --dataset TMP/labelled.csv --label-column id":               {"--label-column", `"id"`, "20 different values"},
		"--task chat --model MODEL --dataset TMP/talk.jsonl":                       {"talk.jsonl:1", "no chat template", "choose a chat model"},
		"predict --model MODEL":                                                    {"is a language model", "rltrain generate"},
		"generate --model MODEL --input TMP/labelled.csv":                          {"labelled.csv:2", `"id", "text", "label"`, "prompt_ids"},
	} {
		code, _, stderr := f.rltrain("", strings.Fields(args+" --threads 1")...)
		expect.True(t, code != 0, "%s: exit code 0", args)
		for _, part := range want {
			expect.True(t, strings.Count(stderr, part) == 1 || strings.HasPrefix(part, "--"), "%s: %q is %d times in %s", args, part, strings.Count(stderr, part), stderr)
			expect.True(t, strings.Contains(stderr, part), "%s: no %q in %s", args, part, stderr)
		}
	}
}

// TestPastedCommands runs examples of TRL with other paths, sizes and step counts. Package config tests what
// they set.
func TestPastedCommands(t *testing.T) {
	f := tiny(t)
	var texts, prompts strings.Builder
	for i := range 8 {
		fmt.Fprintf(&texts, `{"messages": [{"role": "user", "content": "%d?"}, {"role": "assistant", "content": "yes"}]}`+"\n", i)
		fmt.Fprintf(&prompts, `{"prompt": "%d+1=", "answer": "%d"}`+"\n", i, i+1)
	}
	f.write(t, "TMP/texts.jsonl", texts.String())
	f.write(t, "TMP/prompts.jsonl", prompts.String())
	for command, left := range map[string]string{
		`--task chat --model_name_or_path tiny --tiny-layers 1 --tiny-hidden 32 --dataset_name TMP/texts.jsonl --learning_rate 2.0e-4 --num_train_epochs 1 --packing
			--per_device_train_batch_size 2 --gradient_accumulation_steps 2 --gradient_checkpointing --use_peft --lora_r 4 --lora_alpha 16
			--output_dir TMP/SFT`: "TMP/SFT/chat_supervised/adapter_config.json",
		`--task prompts --algorithm grpo --dataset TMP/prompts.jsonl --model_name_or_path TMP/tiny --output_dir TMP/GRPO --learning_rate 1e-5
			--torch_dtype bfloat16 --max_completion_length 4 --use_peft --lora_target_modules q_proj, v_proj --log_completions --per_device_train_batch_size 4
			--num_generations 4 --importance_sampling_level token --epsilon 3e-4 --epsilon_high 4e-4 --beta 0.0 --loss_type grpo
			--gradient_accumulation_steps 2 --steps_per_generation 4 --max_steps 2 --eval_samples 2 --fresh_samples 0`: "TMP/GRPO/prompts_rl/run.json",
	} {
		f.must(t, "", append([]string{"train"}, strings.Fields(command)...)...)
		_, err := os.Stat(f.expand(left))
		expect.True(t, err == nil, "%s: %v", command, err)
	}
}

// Rows with null are skipped in training and evaluation; rltrain notes that no prompts are held out.
func TestTextsOfNullRows(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	f.write(t, "TMP/rows.jsonl", `{"text": null}`+"\n"+`{"text": "a b c d"}`+"\n"+`{"text": "e f g h"}`+"\n")
	f.must(t, "", strings.Fields("train --task chat --dataset TMP/rows.jsonl --model tiny --tiny-layers 1 --tiny-hidden 32 --epochs 1 --output-dir TMP")...)
	logged := must.Read(t, f.expand("TMP/chat_supervised/logs/training_log.txt"))
	expect.Contains(t, logged, "train 2, validation 0", "1 row skipped: null instead of a text", "No validation rows: --validation-share 0.05 of 2 rows is less than one")
	tried := must.Read(t, f.expand("TMP/chat_supervised/logs/try.jsonl"))
	expect.True(t, strings.Count(tried, "\n") == 2, "prompts to try: %s", tried)
}
