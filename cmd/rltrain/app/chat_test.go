package app

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/policy/policytest"
	"github.com/rltrain/rltrain/rl/report"
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
	f.says(t, "", append(train, "TMP/bad.jsonl", "--on-bad-row", "skip", "--epochs", "20", "--template-date", "2026-02-03")...)
	log := must.Read(t, f.expand("TMP/out/chat_supervised/logs/training_log.txt"))
	expect.Contains(t, log,
		"2 rows skipped", "Trained tokens: 128 of 1248 in 32 examples; the assistant's messages only (TRL: all messages",
		`warning: "<unk>" (2) is no end of a text in the model's files`,
	)
	f.write(t, "TMP/ask.jsonl", `{"messages":[{"role":"system","content":"be"},{"role":"user","content":"hi"}]}`)
	f.write(t, "TMP/parts.jsonl", `{"prompt":[{"role":"system","content":"be"},{"role":"user","content":[{"type":"text","text":"hi"}]}]}`)
	for _, ask := range []string{"TMP/ask.jsonl", "TMP/parts.jsonl"} {
		stdout := f.says(t, "", "generate", "--model", "TMP/out/chat_supervised", "--template-date", "2026-02-03", "--temperature", "0", "--max-new-tokens", "20", "--input", ask)
		row := must.Into[outputRow](t, json.Unmarshal, []byte(stdout))
		expect.True(t, row.Completion == "yo" && row.FinishReason == "stop", "%s: %s", ask, stdout)
	}
	generation := must.JSON[struct {
		EOS []int `json:"eos_token_id"`
	}](t, f.expand("TMP/out/chat_supervised/generation_config.json"))
	expect.True(t, len(generation.EOS) == 2 && generation.EOS[1] == 2, "%+v", generation)
}

// A resumed run renders conversations as on the day that it began, and goes on for longer.
func TestResumedConversations(t *testing.T) {
	f := tiny(t)
	f.write(t, "MODEL/chat_template.jinja", turns+`{% if strftime_now('%Y') == '1999' %}{{ raise_exception('it is 1999') }}{% endif %}`)
	f.write(t, "TMP/rows.jsonl", strings.Repeat(`{"prompt":[{"role":"user","content":"q"}],"chosen":[{"role":"assistant","content":"good"}],"rejected":[{"role":"assistant","content":"bad"}]}`+"\n", 8))
	for stage, options := range map[string]string{"preference_rl": "--algorithm dpo", "preference_reward": "--mode reward_model"} {
		train := func(more string) []string {
			return strings.Fields("--task preference --model MODEL --threads 1 --validation-share 0 --output-dir TMP/" + stage + " --dataset TMP/rows.jsonl " + options + " --epochs " + more)
		}
		f.says(t, "", train("1")...)
		folder := filepath.Join(f.expand("TMP/"+stage), stage)
		began := func(day string) {
			record, err := run.ReadRun(folder)
			expect.Require(t, err == nil && record.TemplateDate != "", "%s: date %q, %v", stage, record.TemplateDate, err)
			f.edit(t, filepath.Join(folder, "run.json"), record.TemplateDate, day)
		}
		began("2020-01-02")
		f.says(t, "", train("2 --resume")...)
		log := must.Read(t, filepath.Join(folder, "logs", "training_log.txt"))
		record, err := run.ReadRun(folder)
		expect.True(t, err == nil && record.TemplateDate == "2020-01-02" && strings.Contains(log, "2/2"), "%s: date %q, %v\n%s", stage, record.TemplateDate, err, log)
		began("1999-01-02")
		f.refused(t, "it is 1999", train("3 --resume")...)
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
			n := strings.Count(stderr, part)
			expect.True(t, n == 1 || n > 1 && strings.HasPrefix(part, "--"), "%s: %q is %d times in %s", args, part, n, stderr)
		}
	}
}

// TestPastedCommands runs examples of TRL with other paths, sizes and step counts. Package config tests what
// they set.
func TestPastedCommands(t *testing.T) {
	f := tiny(t)
	f.rows(t, "TMP/texts.jsonl", 8, func(i int) string {
		return fmt.Sprintf(`{"messages": [{"role": "user", "content": "%d?"}, {"role": "assistant", "content": "yes"}]}`, i)
	})
	f.rows(t, "TMP/prompts.jsonl", 8, func(i int) string { return fmt.Sprintf(`{"prompt": "%d+1=", "answer": "%d"}`, i, i+1) })
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

// pairsOfLetters returns n rows whose chosen answer has small letters.
func pairsOfLetters(n int) string {
	var b strings.Builder
	for i := range n {
		letters := "abcdefgh"[i%8 : i%8+1]
		fmt.Fprintf(&b, `{"prompt": "%d: say it! ", "chosen": "%s", "rejected": "%s"}`+"\n", i, letters, strings.ToUpper(letters))
	}
	return b.String()
}

const tinyPreference = ` --dataset TMP/p.jsonl --model tiny --tiny-layers 1 --tiny-hidden 32 --output-dir TMP --logging-steps 5 --validation-share 0.25 --threads 1`

// TestPreferencesEndToEnd trains a policy on pairs, and on single answers.
func TestPreferencesEndToEnd(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	f.write(t, "TMP/p.jsonl", pairsOfLetters(40))
	for _, loss := range []string{"sigmoid,sft --loss-weights 1,0.1 --precompute-ref", "kto"} {
		f.must(t, "", strings.Fields("train --task preference --algorithm dpo --epochs 4 --learning-rate 0.01 --beta 0.5 --loss-type "+loss+tinyPreference)...)
		v := must.Into[struct {
			Before, Best evaluate.PreferenceScores
			Step         int `json:"best_step"`
		}](t, files.LoadJSON, f.expand("TMP/preference_rl/logs/eval_results.json"))
		expect.True(t, math.Abs(v.Before.Margin.Value) <= 1e-6 && v.Best.Accuracy.Value >= 0.9 && v.Best.Loss < v.Before.Loss, "%s: %s, then %s", loss, v.Before, v.Best)
		f.reports(t, "TMP/preference_rl", v.Before.Loss, v.Best.Loss, v.Best.Accuracy.Value, v.Best.Accuracy.Interval[0], v.Best.Margin.Value, v.Best.Chosen.Value)
	}
	evaluate := "eval --task preference --threads 1 --dataset TMP/p.jsonl --output TMP/e.json --beta 0.5 --model "
	f.must(t, "", strings.Fields(evaluate+"TMP/preference_rl --reference TMP/tiny-chat-1x32-seed42 --max-samples 3 --output-rows TMP/three.jsonl")...)
	three := lines[pairRow](t, f.expand("TMP/three.jsonl"))
	if len(three) != 3 || three[0].Row != f.expand("TMP/p.jsonl:1") || three[0].Prompt != "0: say it! " || !strings.HasPrefix(*three[0].Chosen, "a") || !strings.HasPrefix(*three[0].Rejected, "A") ||
		math.Abs(*three[0].RewardChosen-*three[0].RewardRejected-three[0].Margin) > 1e-9 || *three[0].LogPChosen >= 0 || three[0].Correct != (three[0].Margin > 0) {
		t.Errorf("%+v", three)
	}
	f.must(t, "", strings.Fields(evaluate+"TMP/preference_rl --reference TMP/tiny-chat-1x32-seed42")...)
	v := must.Into[preferenceResults](t, files.LoadJSON, f.expand("TMP/e.json"))
	expect.True(t, v.N == 40 && v.Accuracy.Value >= 0.9 && v.Margin.Value > 0 && v.Chosen.Value > v.Rejected.Value && v.PreferenceScores.Loss <= 0.5, "%+v", v)
	// Pairs split into single rows, which the trained model should tell apart.
	f.must(t, "", strings.Fields(evaluate+"TMP/preference_rl --reference TMP/tiny-chat-1x32-seed42 --loss-type kto --output-rows TMP/single.jsonl")...)
	single := lines[pairRow](t, f.expand("TMP/single.jsonl"))
	expect.True(t, len(single) == 80 && single[0].Rejected == nil && single[1].Chosen == nil && *single[1].RewardRejected == -single[1].Margin, "%+v", single[:2])
	must.Do(t, files.LoadJSON(f.expand("TMP/e.json"), &v))
	expect.True(t, v.N == 80 && v.Accuracy.Value >= 0.9 && v.Margin.Value > 0 && v.PreferenceScores.Loss <= 0.45, "%+v", v)
	f.usages(t, "", map[string]string{
		evaluate + "TMP/preference_rl":                                 "is not an adapter; pass --reference DIR, which loss sigmoid needs",
		evaluate + "TMP/preference_rl --loss-type ppo":                 `--loss-type: "ppo" is not one of`,
		evaluate + "TMP/preference_rl --loss-type simpo --reference x": "--reference: loss simpo uses no reference policy",
		evaluate + "TMP/preference_rl --n 3":                           "--n: does not apply to task preference",
		"eval --task preference --model TMP/preference_rl":             "needs --model DIR and --dataset FILE",
	})
	stdout := f.says(t, "", strings.Fields("generate --model TMP/preference_rl --input TMP/preference_rl/logs/try.jsonl --max-new-tokens 2")...)
	expect.True(t, stdout != "", "nothing was generated")
}

// TestMovingReferenceOfPairs: a reference that is the policy itself leaves every pair at log 2.
func TestMovingReferenceOfPairs(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	f.write(t, "TMP/p.jsonl", pairsOfLetters(40))
	f.must(t, "", strings.Fields("train --task preference --algorithm dpo --epochs 2 --batch-size 8 --learning-rate 0.01 --sync-ref-model --ref-model-mixup-alpha 1 --ref-model-sync-steps 1"+tinyPreference)...)
	rows := must.Get(report.ReadMetrics(f.expand("TMP/preference_rl/logs/metrics.jsonl")))(t)
	losses := 0
	for _, row := range rows {
		if loss, ok := row["loss"].(float64); ok {
			losses++
			expect.True(t, math.Abs(loss-math.Ln2) <= 1e-6, "loss %v, want log 2", loss)
		}
	}
	expect.True(t, losses >= 2, "%d losses: %v", losses, rows)
	f.usage(t, "--precompute-ref: applies only with --sync-ref-model=false",
		strings.Fields("train --task preference --algorithm dpo --sync-ref-model --precompute-ref"+tinyPreference)...)
}

// TestNothingGained: a run that did not beat its start saves no adapter, and says where the trained one is.
func TestNothingGained(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	f.write(t, "TMP/p.jsonl", pairsOfLetters(40))
	f.must(t, "", strings.Fields("train --task preference --algorithm dpo --epochs 1 --learning-rate 1e-12 --tuning lora"+tinyPreference)...)
	last := f.expand("TMP/preference_rl/checkpoints/checkpoint-4")
	code, _, stderr := f.rltrain("", "generate", "--model", "TMP/preference_rl", "--input", "TMP/preference_rl/logs/try.jsonl")
	expect.Same(t, 1, code, "exit code")
	expect.Contains(t, stderr, "its run ended: Training did not improve on the start on 10 held-out rows", "no adapter was saved", last)
	f.says(t, "", "generate", "--model", last, "--input", "TMP/preference_rl/logs/try.jsonl", "--max-new-tokens", "2")
}

// reports writes a run's report, which must show the figures.
func (f folders) reports(t *testing.T, dir string, figures ...float64) {
	t.Helper()
	f.must(t, "", "report", dir)
	page := must.Read(t, f.expand(dir+"/report.html"))
	for _, v := range figures {
		expect.Contains(t, page, fmt.Sprintf("%.4f", v))
	}
}

// TestRewardModelEndToEnd trains a reward model and uses it as the reward of a policy.
func TestRewardModelEndToEnd(t *testing.T) {
	f := folders{tmp: t.TempDir(), base: policytest.Encoder(t)}
	f.rows(t, "TMP/p.jsonl", 60, func(i int) string {
		return fmt.Sprintf(`{"prompt": "is the %s a ?", "chosen": "law", "rejected": "wave", "margin": %d}`, []string{"cat", "dog", "horse"}[i%3], i%2)
	})
	f.must(t, "", strings.Fields("train --mode reward_model --data_path TMP/p.jsonl --model BASE --learning_rate 0.01 --epochs 2 --batch-size 8 --validation-share 0.3 --threads 1 --center-rewards-coefficient 0.01 --output-dir TMP")...)
	v := must.Into[struct {
		Before, Best evaluate.RewardScores
		Step         int                 `json:"best_step"`
		Rule         evaluate.LengthRule `json:"length_rule"`
	}](t, files.LoadJSON, f.expand("TMP/preference_reward/logs/eval_results.json"))
	expect.True(t, v.Best.Accuracy >= 0.95 && v.Best.N == 18 && v.Rule.Accuracy.Value == 0.5, "%s, %s", v.Best, v.Rule)
	f.reports(t, "TMP/preference_reward", v.Before.Loss, v.Best.Loss, v.Best.Accuracy, v.Best.Interval[0], v.Best.Margin.Value, v.Best.MeanReward)
	f.must(t, "", strings.Fields("eval --task preference --threads 1 --model TMP/preference_reward --dataset TMP/p.jsonl --output TMP/e.json --output-rows TMP/rows.jsonl")...)
	rows := lines[pairRow](t, f.expand("TMP/rows.jsonl"))
	expect.True(t, len(rows) == 60 && strings.Contains(*rows[0].Chosen, "law") && strings.Contains(*rows[0].Rejected, "wave") && rows[0].LogPChosen == nil && rows[0].Margin == *rows[0].RewardChosen-*rows[0].RewardRejected, "%+v", rows)
	f.must(t, "", "merge", "--model", "TMP/preference_reward", "--output-dir", "TMP/merged")
	f.must(t, "", strings.Fields("eval --task preference --threads 1 --model TMP/merged --dataset TMP/p.jsonl --output TMP/m.json")...)
	for _, name := range []string{"TMP/m.json", "TMP/e.json"} {
		all := must.JSON[rewardResults](t, f.expand(name))
		expect.True(t, all.N == 60 && all.Accuracy >= 0.95, "%s: %+v", name, all)
	}
	f.questions(t, "TMP/q.jsonl", 20)
	f.must(t, "", strings.Fields(`train --task prompts --dataset TMP/q.jsonl --model tiny --tiny-layers 1 --tiny-hidden 32 --max-new-tokens 2 --output-dir TMP
		--eval-samples 4 --fresh-samples 0 --num-steps 2 --eval-every 2 --prompts-per-step 2 --samples-per-prompt 4 --threads 1 --algorithm dpo --beta 0.3 --reward model:TMP/preference_reward,expr:'length'`)...)
}

func TestPreferencesThatTeachNothing(t *testing.T) {
	f := folders{tmp: t.TempDir(), base: policytest.Encoder(t)}
	dpo := "train --task preference --algorithm dpo" + tinyPreference
	for _, test := range []struct{ name, rows, args, want string }{
		{"equal", `{"prompt": "a", "chosen": "b", "rejected": "b"}`, dpo, "p.jsonl:1: 0 have no token of a response within 1024 tokens (raise max_length), 1 have the same response twice"},
		{"too long", `{"prompt": "a long prompt", "chosen": "b", "rejected": "c"}`, dpo + " --max-length 5", "1 have no token of a response within 5 tokens"},
		{"one class", `{"prompt": "a", "completion": "b", "label": true}`, dpo + " --loss-type kto", "1 of 1 responses are good; the loss needs good and bad ones"},
		{"other prompts", `{"chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "rejected": [{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]}`, dpo, "start with different messages"},
		{"margin", `{"prompt": "a", "chosen": "law", "rejected": "cat", "margin": "much"}`, "train --mode reward_model --dataset TMP/p.jsonl --model BASE --output-dir TMP", `p.jsonl:1: column "margin": much is not a number`},
		{"long for an encoder", `{"prompt": "the cat is a dog the cat is a dog", "chosen": "law", "rejected": "cat"}`, "train --mode reward_model --dataset TMP/p.jsonl --model BASE --output-dir TMP", "1 are longer than 12 tokens"},
		{"one ranked", `{"prompt": "a", "ranked": ["law"]}`, "train --mode reward_model --dataset TMP/p.jsonl --model BASE --output-dir TMP", "1 responses; want at least two"},
		{"no reference", `{"prompt": "a", "chosen": "b", "rejected": "c"}` + "\n" + `{"prompt": "a", "chosen": "b", "rejected": "d"}`, dpo + " --loss-type simpo --precompute-ref", "loss simpo has no reference"},
	} {
		f.write(t, "TMP/p.jsonl", test.rows+"\n")
		f.usage(t, test.want, strings.Fields(test.args)...)
	}
}
