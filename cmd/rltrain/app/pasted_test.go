package app

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

// TestPastedCommands runs commands of other trainers with other paths, sizes and step counts. Package config tests what
// they set.
func TestPastedCommands(t *testing.T) {
	f := tiny(t)
	var problems, texts, prompts strings.Builder
	for i := range 8 {
		fmt.Fprintf(&problems, `{"problem": "What is %d+1?", "solution": "We add.\nThe answer is: %d"}`+"\n", i, i+1)
		fmt.Fprintf(&texts, `{"messages": [{"role": "user", "content": "%d?"}, {"role": "assistant", "content": "yes"}]}`+"\n", i)
		fmt.Fprintf(&prompts, `{"prompt": "%d+1=", "answer": "%d"}`+"\n", i, i+1)
	}
	f.write(t, "TMP/problems.jsonl", problems.String())
	f.write(t, "TMP/held.jsonl", strings.ReplaceAll(problems.String(), "What is", "How much is"))
	f.write(t, "TMP/texts.jsonl", texts.String())
	f.write(t, "TMP/prompts.jsonl", prompts.String())
	f.write(t, "TMP/system.txt", "Solve it.")
	for command, left := range map[string]string{
		// Math problems, one per line, from a replay buffer.
		`--task gsm8k --gsm8k_path TMP/problems.jsonl --train_data_file TMP/problems.jsonl --test_gsm8k_path TMP/held.jsonl --sys_prompt_path TMP/system.txt
			--model_name_or_path TMP/tiny --ref_model_name TMP/tiny --n_few_shot_examples 2 --num_iterations 1 --num_collection_episodes 2
			--max_trajectory_steps 2 --num_update_steps 4 --cache_buffer --evaluation_iterations 1 --n_eval_steps 2
			--buffer_cache_path TMP/buffer.jsonl --gradient_accumulation_steps 2 --save_path TMP/math --n_save_iterations 1 --kl_coeff 0.25 --sym_calc
			--evaluation_at_start --update_ref_iterations 2 --max_new_tokens 8`: "TMP/buffer.jsonl",
		// Digits with a small language model and its generators.
		`--task sum_digits --num-steps 1 --num-generators 2 --eval-samples 2 --verbose --mode rl_only --model TMP/tiny --prompts-per-step 2
			--samples-per-prompt 2 --max-new-tokens 4 --fresh-samples 0 --output-dir TMP/digits`: "TMP/digits/sum_digits_rl/run.json",
		// TRL's examples.
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
	logged := string(readFile(t, f.expand("TMP/chat_supervised/logs/training_log.txt")))
	for _, want := range []string{"train 2, validation 0", "1 row skipped: null instead of a text", "No validation rows: --validation-share 0.05 of 2 rows is less than one"} {
		expect.True(t, strings.Contains(logged, want), "the log has no %q:\n%s", want, logged)
	}
	if tried := string(readFile(t, f.expand("TMP/chat_supervised/logs/try.jsonl"))); strings.Count(tried, "\n") != 2 {
		t.Errorf("prompts to try: %s", tried)
	}
}

// The log says when training continues an adapter.
func TestContinuedAdapterIsAnnounced(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	f.write(t, "TMP/rows.jsonl", strings.Repeat(`{"text": "a b c d"}`+"\n", 4))
	train := strings.Fields("train --task chat --dataset TMP/rows.jsonl --epochs 1")
	f.must(t, "", append(train, strings.Fields("--model tiny --tiny-layers 1 --tiny-hidden 32 --tuning lora --output-dir TMP/one")...)...)
	f.must(t, "", append(train, strings.Fields("--pretrained-model TMP/one/chat_supervised --output-dir TMP/two")...)...)
	logged := string(readFile(t, f.expand("TMP/two/chat_supervised/logs/training_log.txt")))
	expect.True(t, strings.HasPrefix(logged, "chat: supervised fine-tuning with LoRA\n"), "the log begins %.80q", logged)
}
