package config

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// TestForeignNames reads names of other trainers, each with what it sets.
func TestForeignNames(t *testing.T) {
	const grpo = "--task prompts --algorithm grpo --dataset d --model m "
	for _, test := range []struct{ command, yaml, want string }{
		// Lists by spaces, switches, values that are true here.
		{"--task chat --dataset d --model m --lora_target_modules q_proj v_proj --report_to tensorboard wandb --packing", "", "lora_target_modules=[q_proj,_SPACE_v_proj] report_to=[tensorboard,_SPACE_wandb] packing=true"},
		{"--task preference --dataset d --model m --loss_type sigmoid sft --loss_weights 1.0 0.4 --no_remove_unused_columns", "", `dpo_loss=[sigmoid,_SPACE_sft] loss_weights=["1.0",_SPACE_"0.4"]`},
		{"--task chat --dataset d --model m --adam_epsilon 1e-8 --bf16 False --attn_implementation sdpa --eval_strategy no --lora_task_type CAUSAL_LM --use_cpu --disable_tqdm True --overwrite_output_dir --optim ADAMW_TORCH_FUSED --max_steps -1 --neftune_noise_alpha 0.0",
			"", "validation_share=0 device=cpu"},
		{"--task chat --dataset d --model m --no-packing --use_cpu False --do_eval --fsdp full_shard auto_wrap", "", ""},
		{"--task chat --dataset d --model m --use_gradient_checkpointing unsloth --r 8 --target_modules q_proj --model_revision abc", "", "gradient_checkpointing=true lora_r=8 lora_target_modules=[q_proj] model=\"m@abc\""},
		{"--task chat --dataset d --model m --dataset_train_split train_sft --dataset_test_split test_sft --warmup_steps 0.1 --metric_for_best_model eval_loss --greater_is_better False", "",
			"train_split=train_sft eval_split=test_sft warmup_ratio=0.1"},
		{"--task chat --dataset d --model m --lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs {\"min_lr_rate\":0.2}", "", "lr_scheduler_type=cosine_with_min_lr min_lr_rate=0.2"},
		// Files: null is not set, sections.
		{"--task chat --dataset d --model m --config c.yaml", "hub_model_id: null\nmax_length: null\nreport_to: []\nlora_target_modules: null\ngradient_checkpointing_kwargs: {use_reentrant: false}\nmodel_init_kwargs:\n  torch_dtype: bfloat16\n  attn_implementation: eager\ncallbacks: []\n",
			"max_length=0 dtype=bf16"},
		{"--task prompts --algorithm grpo --dataset d --model m --config c.yaml", "generation_kwargs: {top_p: 0.9}\nchat_template_kwargs:\n  enable_thinking: false\n", `top_p=0.9 chat_template_kwargs="{\"enable_thinking\":_SPACE_false}"`},
		// Data sets of handbooks' files.
		{"--task chat --model m --config c.yaml", "dataset_mixer:\n  org/rows: 1.0\ndataset_splits: [train_sft, test_sft]\n", `dataset=org/rows train_split=train_sft eval_split=test_sft`},
		{"--task chat --model m --config c.yaml", "dataset_mixture:\n  datasets:\n  - id: org/rows\n    config: default\n    split: train_sft\n    columns: [messages]\n    weight: 1.0\n  seed: 0\n  test_split_size: 0.1\n", "dataset=org/rows dataset_config=default train_split=train_sft validation_share=0.1"},
		{"--task chat --model m --config c.yaml", "datasets:\n- path: rows\n", "dataset=rows"},
		{"--task chat --model m --config c.yaml", "datasets:\n- path: a\n- path: b\n- id: c\n  weight: 0.5\n", `dataset=a dataset_mix=["b=1",_SPACE_"c=0.5"]`},
		{"--task prompts --model m --config c.yaml", "dataset_mixer:\n  a: 1.0\n  b: 2\n", `dataset=a dataset_mix=["b=2"]`},
		{"--task chat --dataset d --model m --push_to_hub False --config c.yaml", "push_to_hub: true\nhub_model_id: a\n", ""},
		{"--task chat --dataset d --model m --load_in_4bit --torch_dtype bfloat16 --optim adamw_8bit --use_rslora --output_dir o --save_path p --save_model", "", "quantize=nf4 optim=adamw_8bit use_rslora=true output_dir=o"},
		{"--task chat --dataset d --model m --config c.yaml", "init_lora_weights: true\nr: 4\n", "lora_r=4 init_lora_weights=kaiming"},
		{"--task prompts --dataset d --model m --algorithm rft --update-epochs 2 --minibatches 3", "", "algorithm=rft update_epochs=2 minibatches=3"},
		{"--task chat --dataset d --model m --config c.yaml", "use_adaptive_entropy: false\nentropy_coef: 0.0\nentropy_target: 0.2\ntop_entropy_quantile: 1.0\nsync_ref_model: false\n", ""},
		{"--task preference --dataset d --model m --config c.yaml", "use_adaptive_entropy: false\nentropy_coef_delta: 0.005\ntop_entropy_quantile: 1.0\n", ""},
		{"--task chat --dataset d --model m --label_smoothing_factor 0.1", "", "label_smoothing_factor=0.1"},
		{grpo + "--label_smoothing_factor 0.0", "", ""},
		{grpo + "--dataset_prompt_column problem", "", "prompt_column=problem"},
		// Rewards.
		{grpo + "--reward_funcs accuracy_reward", "", "reward=accuracy"},
		{grpo + "--reward_funcs accuracy answer --reward_weights 1.0 0.5", "", `reward="accuracy=1.0,answer=0.5"`},
		{grpo + "--reward_model_name_or_path judge --reward_funcs accuracy --reward_weights 2 1", "", `reward="model:judge=2,accuracy=1"`},
		// Steps are updates in TRL: a rollout has num_iterations × steps_per_generation / gradient_accumulation_steps of them.
		{grpo + "--max_steps 12 --num_iterations 2 --steps_per_generation 6 --gradient_accumulation_steps 2 --per_device_train_batch_size 4 --num_generations 4", "",
			"num_steps=2 update_epochs=2 minibatches=3 prompts_per_step=6 samples_per_prompt=4"},
		{grpo + "--max_steps 5 --num_train_epochs 3", "", "num_steps=5"},
		{grpo + "--num_train_epochs 2", "", "rl_epochs=2"},
		{grpo + "--generation_batch_size 16 --per_device_train_batch_size 4 --num_generations 8", "", "prompts_per_step=2 minibatches=4"},
		{grpo + "--generation_batch_size 16 --num_generations 8", "", "prompts_per_step=2"},
		// Objectives by other names.
		{grpo + "--loss_type cispo --epsilon_high 4 --sapo_temperature_neg 1.05", "", "algorithm=cispo ratio_cap=4"},
		{grpo + "--loss_type cispo --epsilon 0.3", "", "algorithm=cispo ratio_cap=0.3"},
		{grpo + "--loss_type grpo --importance_sampling_level sequence --epsilon 2e-4 --epsilon_high 5e-4", "", "algorithm=gspo reduction=sequence clip_low=0.0002 clip_high=0.0005"},
		{grpo + "--loss_type luspo --importance_sampling_level sequence", "", "algorithm=gspo reduction=sum"},
		{grpo + "--loss_type sapo --sapo_temperature_neg 1.2", "", "algorithm=sapo sapo_temperature_neg=1.2"},
		{grpo + "--config c.yaml", "loss_type: vespo\nvespo_k_pos: 1\n", "algorithm=vespo vespo_k_pos=1"},
		{grpo + "--delta 2", "", "algorithm=grpo delta=2"},
		{grpo + "--async --vllm_importance_sampling_mode token_mask --vllm_importance_sampling_clip_max 2 --vllm_importance_sampling_clip_min 0.5", "", "async=true importance_sampling=token_mask importance_sampling_max=2 importance_sampling_min=0.5"},
		{grpo + "--async --vllm_importance_sampling_correction False", "", "async=true importance_sampling=none"},
		{grpo + "--vllm_importance_sampling_mode token_mask", "", "algorithm=grpo"},
		{"--task chat --dataset d --model m --loss_type dft", "", "sft_loss=dft"},
		{"--task chat --dataset d --model m --loss_type chunked_nll", "", ""},
		{"--task prompts --dataset d --model m --algorithm gmpo --epsilon 0.3 --epsilon_high 0.5", "", "algorithm=gmpo log_clip_low=0.3 log_clip_high=0.5"},
		{"--task prompts --dataset d --model m --algorithm dppo_kl", "", "algorithm=dppo trust_region=kl"},
		{"--task prompts --dataset d --model m --algorithm opo", "", "algorithm=reinforce baseline=length"},
		{"--task prompts --dataset d --model m --algorithm maxrl", "", "algorithm=grpo advantage_scale=mean"},
		{"--task prompts --dataset d --model m --algorithm reinforce_plus_plus_baseline", "", `algorithm="reinforce++" plus_baseline=group`},
		{"--task prompts --dataset d --model m --algorithm sdft --distillation_mode full_logits --distillation_alpha 0.3 --teacher_model_kind base --teacher_prompt_template {prompt}:{privileged_context}", "", "algorithm=distill teacher=self teacher_context=demonstration divergence=jsd jsd_beta=0.3 teacher_model_kind=base teacher_prompt=\"{prompt}:{solution}\""},
		{"--task prompts --dataset d --model m --algorithm sdpo --distillation_mode sampled_token --distillation_alpha 1 --teacher_update_rate 0.1 --distillation_weight 1", "", "algorithm=distill teacher=self teacher_context=sibling divergence=sampled teacher_update_rate=0.1"},
		// RLOO subtracts the KL from the reward.
		{"--task prompts --algorithm rloo --dataset d --model m --beta 0.05", "", "algorithm=rloo kl_coef=0.05 kl_in_reward=true kl_type=k1"},
		{"--task prompts --algorithm rloo --dataset d --model m --beta 0", "", "algorithm=rloo"},
		{"--mode reward_model --dataset d --model m --use_peft --eval_strategy epoch", "", "mode=reward_model"},
	} {
		t.Run(test.command, func(t *testing.T) {
			inFolder(t, test.yaml)
			c := must.Get(Load(strings.Fields(test.command), nil))(t)
			want, got := pairs(test.want), changes(t, c)
			for _, name := range []string{"task", "dataset", "model", "config", "defaults"} {
				if want[name] == "" {
					delete(got, name)
				}
			}
			for name, value := range want { // a value that is the default
				if got[name] == "" && yamlValue(c.set.Find(name).Get()) == value {
					delete(want, name)
				}
			}
			expect.Equal(t, want, got)
		})
	}
}

func TestForeignErrors(t *testing.T) {
	const grpo = "--task prompts --algorithm grpo --dataset d --model m "
	for _, test := range []struct{ command, yaml, want string }{
		{"--task chat --dataset d --config c.yaml", "epohcs: 1\nmodel_init_kwargs: {dtipe: fp32}\nuse_dora: true\nlearning_rate: fast\n", "c.yaml:1:1: unknown key epohcs; … epochs (Supervised stage) … c.yaml:2:21: unknown key model_init_kwargs.dtipe; … dtype … c.yaml:4:1: learning_rate: … c.yaml:3:1: use_dora: "},
		{"--task chat --dataset d --config c.yaml", "datasets:\n- path: a\n  weight: 0.5\n- path: b\n", "c.yaml:1:1: datasets: … the first"},
		{"--task chat --dataset d --config c.yaml", "datasets:\n- path: a\n- path: b\n  config: c\n", "c.yaml:1:1: datasets: … config"},
		{"--task chat --dataset d --model m --label_smoothing_factor 0.1 --sft-loss dft", "", "--label_smoothing_factor: … --sft-loss"},
		{grpo + "--label_smoothing_factor 0.1", "", "label_smoothing_factor"},
		{"--task chat --dataset d --model m --dataset-mix a,b=2", "", "--dataset-mix: … NAME=WEIGHT"},
		{"--task chat --dataset d --config c.yaml", "epochs: null\n", "c.yaml:1:1: epochs: has no value; add one or remove the key"},
		{grpo + "--max_steps 3 --num_iterations 2", "", "--max_steps: … a rollout has 2 of them here: make 3 a multiple of 2"},
		{grpo + "--reward_funcs my.module.reward", "", "--reward_funcs: my.module.reward is Python code: … reward=cmd:PROGRAM"},
		{grpo + "--reward_funcs accuracy --reward_weights 1 2", "", "--reward_weights: 2 weights for 1 rewards"},
		{grpo + "--reward_funcs accuracy accuracy_reward", "", "--reward_funcs: accuracy_reward is what another"},
		{grpo + "--reward_weights 1", "", "--reward_weights: needs reward_funcs … "},
		{grpo + "--generation_batch_size 10 --num_generations 8", "", "--generation_batch_size: 10 completions per step are not a multiple of 8"},
		{grpo + "--loss_type dapo --importance_sampling_level sequence", "", "--loss_type: the reduction token … length"},
		{grpo + "--loss_type cispp", "", `--loss_type: "cispp" is not one of bnpo, cispo, dapo, … did you mean cispo?`},
		{grpo + "--async --importance-sampling geometric_mask --importance-sampling-min 1 --importance-sampling-max 1", "", "--importance-sampling-max: 1 must be above importance_sampling_min, 1"},
		{"--task prompts --algorithm dpo --dataset d --model m --async --importance-sampling token_mask", "", "--importance-sampling: … --algorithm"},
		{grpo + "--delta 1.1", "", "--delta: 1.1 … above 1 + clip_high"},
		{grpo + "--sapo_temperature_neg 1.2", "", "--sapo_temperature_neg: … --algorithm sapo"},
		{"--task prompts --dataset d --model m --algorithm sdpo --distillation_mode topk_logits --distillation_alpha 2 --distillation_topk 20", "", `--distillation_mode: "topk_logits" is not one of full_logits, sampled_token … --distillation_alpha: "2" must … distillation_topk: … over all tokens`},
		{"--task prompts --dataset d --model m --algorithm sdpo --distillation_mode sampled_token --distillation_alpha 0.5", "", `--distillation_alpha: "0.5": … reverse KL`},
		{grpo + "--shuffle_dataset False", "", "--shuffle_dataset: false: "},
		{"--task chat --dataset d --loss_type dtf", "", `--loss_type: "dtf": SFT has the losses nll and dft`},
		{"--task chat --dataset d --greater_is_better True", "", "--greater_is_better: metric loss is better if it is less"},
		{"--task chat --dataset d --model m@a --model_revision b", "", "--model_revision: model m@a has a revision already"},
		{"--task chat --dataset d --lr_scheduler_type constant --warmup_steps 3", "", "--warmup_steps: applies only with another --lr-scheduler-type than constant"},
		{"--task sum_digits --defaults trl", "", "--defaults: TRL has no trainer for this run"},
		{"--mode reward_model --dataset d --model m --use_peft False", "", "--use_peft: false: … use true"},
		{"--task preference --dataset d --model m --disable_dropout False", "", "--disable_dropout: false: only SFT has dropout"},
		{"--task chat --dataset d --eval_strategy sometimes", "", `--eval_strategy: "sometimes" is not one of no, steps, epoch`},
	} {
		t.Run(test.want, func(t *testing.T) {
			inFolder(t, test.yaml)
			_, err := Load(strings.Fields(test.command), nil)
			expect.True(t, expect.Names(err, test.want), "\n got %v\nwant %s", err, test.want)
		})
	}
}

// TestTRLDefaults: --defaults trl takes each default of TRL's trainer that an option has, and what is given goes before it.
// A command with TRL's names notes where its defaults differ.
func TestTRLDefaults(t *testing.T) {
	load := func(command string) *Config {
		t.Helper()
		c, err := Load(strings.Fields(command), nil)
		expect.Require(t, err == nil, "%s: %v", command, err)
		return c
	}
	for command, want := range map[string]string{
		"--task chat --dataset d --model m":                                                                  "tuning=full learning_rate=2.0e-05 lr_scheduler_type=linear warmup_ratio=0 epochs=3 batch_size=8 max_length=1024 validation_share=0 keep=last packing=false weight_decay=0 max_grad_norm=1",
		"--task chat --dataset d --model m --use_peft --epochs 1":                                            "tuning=lora lora_r=16 lora_alpha=32 lora_dropout=0.05 lora_target_modules=[] epochs=1",
		"--task preference --dataset d --model m":                                                            "rl_learning_rate=1.0e-06 dpo_beta=0.1 epochs=3 batch_size=8 rl_lr_scheduler_type=linear rl_warmup_ratio=0",
		"--task prompts --algorithm grpo --dataset d --model m":                                              "prompts_per_step=1 samples_per_prompt=8 rl_epochs=3 max_new_tokens=512 kl_coef=0 reduction=token advantage_scale=group rl_learning_rate=1.0e-06",
		"--task prompts --algorithm grpo --dataset d --model m --beta 0.1 --num-generations 4 --num-steps 7": "use_bias_correction_kl=true prompts_per_step=2 num_steps=7 rl_epochs=0",
		"--task prompts --importance_sampling_level sequence --dataset d --model m":                          "algorithm=gspo reduction=auto clip_low=0.2",
		"--task prompts --algorithm rloo --dataset d --model m":                                              "samples_per_prompt=2 prompts_per_step=4 kl_coef=0.05 kl_in_reward=true kl_type=k1",
		"--mode reward_model --dataset d --model m":                                                          "learning_rate=0.0001 epochs=3",
	} {
		c := load(command + " --defaults trl")
		for name, value := range pairs(want) {
			expect.Same(t, value, yamlValue(c.set.Find(name).Get()), "%s: %s", command, name)
		}
		inFolder(t, string(c.YAML()))
		diff := Diff(c, load("--config c.yaml"))
		expect.True(t, diff == nil, "%s: read again: %v", command, diff)
	}
	for command, want := range map[string][]string{
		"--task chat --dataset_name d --model m":                                                            {"differs from TRL's SFTConfig: ", "learning_rate 0.0002 (2.0e-05)", "tuning lora (full)", "lr_scheduler_type cosine (linear)", "--defaults trl takes theirs"},
		"--task prompts --algorithm grpo --dataset d --model_name_or_path m --num_generations 4":            {"GRPOConfig", "prompts_per_step 8 (2)", "num_steps 100 (3 epochs)"},
		"--task chat --dataset d --model m":                                                                 nil,
		"--task chat --dataset d --model m --dataset_num_proc 3 --attn_implementation eager --defaults trl": {"not needed here: dataset_num_proc, attn_implementation"},
	} {
		notes := strings.Join(load(command).Notes(), "\n")
		expect.Contains(t, notes, want...)
		expect.True(t, want != nil || notes == "", "%s: notes %q", command, notes)
		for _, wrong := range []string{"reduction auto", "advantage_scale auto", "defaults rltrain"} {
			expect.True(t, !strings.Contains(notes, wrong), "%s: %q in the notes %q", command, wrong, notes)
		}
	}
}

// TestRewardFunctionsAreRewards reads each reward that stands for another trainer's function.
func TestRewardFunctionsAreRewards(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(rewardFunctions)) {
		_, err := Load([]string{"--task", "prompts", "--algorithm", "grpo", "--dataset", "d", "--reward_funcs", name}, nil)
		expect.Same(t, rewardFunctions[name] != "", err == nil, "%s: %v", name, err)
	}
}

// Any arguments are read or refused with a one-line error.
func FuzzArguments(f *testing.F) {
	for _, seed := range []string{
		"--task chat --dataset d --lora_target_modules a b --no_packing", "--lr_scheduler_kwargs {\"min_lr_rate\":1}", "--reward_funcs a b --reward_weights 1",
		"--a=b --", "-n 3 -x", "--max_steps -1 --warmup_steps .5", "--model_init_kwargs {a:", "--generation_kwargs [1]", "--no_no_x --fsdp", "--eval_strategy",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		args := slices.DeleteFunc(strings.Fields(line), func(a string) bool { return strings.Contains(a, "config") })
		_, err := Load(args, nil)
		expect.True(t, err == nil || !strings.ContainsAny(err.Error(), "\n\r"), "error of several lines: %q", err)
	})
}

// TestTableOfTRL: the table is complete, and each line has every column.
func TestTableOfTRL(t *testing.T) {
	lines := strings.Split(strings.TrimSpace(must.Read(t, "trl.tsv")), "\n")
	got := strings.Split(lines[0], "\t")[2:]
	expect.True(t, slices.Equal(got, trlColumns), "columns %v, want %v", got, trlColumns)
	for _, line := range lines {
		n := strings.Count(line, "\t")
		expect.Same(t, len(trlColumns)+1, n, "%d cells: %s", n+1, line)
	}
}

// TestEveryDefaultOfTRLIsAccepted gives each option of each trainer its default, as a flag, or null in a file.
func TestEveryDefaultOfTRLIsAccepted(t *testing.T) {
	list, _ := trlOptions()
	commands := map[string][]string{
		"sft": {"--task=chat", "--dataset=d"}, "dpo": {"--task=preference", "--dataset=d"}, "kto": {"--task=preference", "--dataset=d", "--dpo-loss=kto"},
		"reward": {"--mode=reward_model", "--dataset=d"}, "grpo": {"--task=prompts", "--algorithm=grpo", "--dataset=d"}, "rloo": {"--task=prompts", "--algorithm=rloo", "--dataset=d"},
	}
	refused := []string{"reward use_peft", "reward lora_dropout", "kto train_sampling_strategy"}
	for trainer, command := range commands {
		for _, o := range list {
			value, ok := o.defaults[trainer]
			for _, other := range []string{"model", "script"} {
				if !ok {
					value, ok = o.defaults[other]
				}
			}
			if !ok || o.name == "model_name_or_path" || o.name == "dataset_name" {
				continue
			}
			args := slices.Clone(command)
			if value == "null" || value == "[]" {
				inFolder(t, o.name+": "+value+"\n")
				args = append(args, "--config=c.yaml")
			} else {
				args = append(args, "--"+o.name, strings.Trim(value, `[]"`))
			}
			if trainer != "reward" || o.name != "use_peft" {
				args = append(args, "--model=m")
			}
			if strings.HasPrefix(o.name, "lora_") && trainer != "reward" {
				args = append(args, "--use_peft")
			}
			_, err := Load(args, nil)
			expect.True(t, (err != nil) == slices.Contains(refused, trainer+" "+o.name), "%s %s=%s: %v", trainer, o.name, value, err)
		}
	}
}

// TestSystems pastes commands of other trainers.
func TestSystems(t *testing.T) {
	command, tested := "", 0
	for line := range strings.Lines(must.Read(t, "testdata/systems.txt")) {
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, "$ "); ok {
			command = rest
		}
		if command == "" || !strings.HasPrefix(line, "=") && !strings.HasPrefix(line, "!") {
			continue
		}
		tested++
		c, err := Load(strings.Fields(command), nil)
		if want, ok := strings.CutPrefix(line, "! "); ok {
			expect.True(t, err != nil && err.Error() == want, "%s\n got %v\nwant %s", command, err, want)
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", command, err)
			continue
		}
		want := pairs(strings.TrimPrefix(line, "="))
		got := changes(t, c)
		for name, value := range want {
			if got[name] == "" && c.Text(name) == strings.Trim(value, `"`) && c.set.Applies(c.set.Find(name)) {
				delete(want, name) // explicit, but the default
			}
		}
		expect.Equal(t, want, got, command)
	}
	expect.True(t, tested >= 25, "%d commands were tested, want all", tested)
}
