package config

import (
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl/train"
)

// alias is another name of a key.
type alias struct {
	name, key string
	replay    string            // the key where turns are replayed, if it is another
	pairs     string            // the key where pairs are learnt from, if it is another
	oneStage  string            // the key where a run has one stage, if it is another
	also      string            // a second key that gets the value, unless that has one of its own
	values    map[string]string // what its values are called here; with true and false alone it is a switch
	inert     string            // why it changes nothing
}

const noGradient = "the reference's log-likelihood has no gradient; algorithm reinforce_replay_nll reports it"

// replayLosses leaves algorithm=reinforce out of a layer that names a loss of it: the loss says which algorithm it is.
func replayLosses(layers [][]entry) [][]entry {
	all := slices.Clone(layers)
	for i, entries := range all {
		if slices.ContainsFunc(entries, func(e entry) bool { return e.name == "reinforce_loss" }) {
			all[i] = slices.DeleteFunc(slices.Clone(entries), func(e entry) bool { return e.name == "algorithm" && e.value.Text == reinforce })
		}
	}
	return all
}

func (a *alias) isSwitch() bool { return len(a.values) == 2 && a.values["true"] != "" }

func onOff(on, off string) map[string]string { return map[string]string{"true": on, "false": off} }

// routerSection is where a semantic router's configuration file keeps the settings of RL training.
const routerSection = "classifier.rl_training."

// aliases holds the names of the semantic router's trainer, of TRL and transformers, and of the trainers of mathematics
// and of label policies that mean the same.
var aliases = []alias{
	{name: "reward_metric", key: "reward"},
	{name: "lora_rank", key: "lora_r"},
	{name: "enable_feature_alignment", key: "feature_alignment", values: onOff("0.1", "0")},
	{name: routerSection + "enabled", key: "mode", values: onOff(envs.SupervisedThenRL, envs.Supervised)},
	{name: routerSection + "algorithm", key: "algorithm"},
	{name: routerSection + "learning_rate", key: "rl_learning_rate"},
	{name: routerSection + "gamma", key: "gamma"},
	{name: routerSection + "batch_size", key: "rl_batch_size"},
	{name: routerSection + "update_epochs", key: "update_epochs"},
	{name: routerSection + "reward_metric", key: "reward"},

	{name: "base_model", key: "model"},
	{name: "chat_template_path", key: "chat_template"},
	{name: "eval_problems", key: "eval_samples"},
	{name: "limit", key: "max_samples"},
	{name: "test_case_rewards_only", key: "reward", values: onOff("tests", "")},

	{name: "wandb", key: "report_to", values: onOff("wandb", "none")},
	{name: "wandb_run_name", key: "run_name"},
	{name: "experiment_name", key: "run_name"},

	{name: "lr", oneStage: "learning_rate"},
	{name: "model_name_or_path", key: "model"},
	{name: "model_name", key: "model"},
	{name: "dataset_name", key: "dataset"},
	{name: "dataset_text_field", key: "text_column"},
	{name: "dataset_prompt_column", key: "prompt_column"},
	{name: "num_train_epochs", key: "epochs"},
	{name: perDevice, key: "batch_size"},
	{name: perGeneration},
	{name: perRollout},
	{name: "max_seq_length", key: "max_length"},
	{name: "load_best_model_at_end", key: "keep", values: onOff("best", "last")},
	{name: "bf16", key: "dtype", values: onOff("bf16", "auto")},
	{name: "fp16", key: "dtype", values: onOff("fp16", "auto")},
	{name: "torch_dtype", key: "dtype"},
	{name: "load_in_4bit", key: "quantize", values: onOff("nf4", "none")},
	{name: "load_in_8bit", key: "quantize", values: onOff("int8", "none")},
	{name: "use_qlora", key: "quantize", values: onOff("nf4", "none")},
	{name: "use_lora", key: "tuning", values: onOff("lora", "full")},
	{name: "use_peft", key: "tuning", values: onOff("lora", "full")},
	{name: "r", key: "lora_r"},
	{name: "target_modules", key: "lora_target_modules"},
	{name: "use_gradient_checkpointing", key: "gradient_checkpointing", values: map[string]string{"true": "true", "false": "false", "unsloth": "true"}},
	{name: "activation_checkpointing", key: "gradient_checkpointing"},
	{name: "use_cpu", key: "device", values: onOff("cpu", "auto")},
	{name: "no_cuda", key: "device", values: onOff("cpu", "auto")},
	{name: "test_split_size", key: "validation_share"},
	{name: "num_ppo_epochs", key: "update_epochs"},
	{name: "num_iterations", key: "update_epochs", replay: "num_steps"},
	{name: "num_mini_batches", key: "minibatches"},
	{name: "num_generations", key: "samples_per_prompt"},
	{name: "max_completion_length", key: "max_new_tokens"},
	{name: "response_length", key: "max_new_tokens"},
	{name: "ddp_timeout", key: "dist_timeout"},
	{name: "mask_truncated_completions", key: "mask_overlong"},
	{name: "log_completions", key: "verbose"},
	{name: "eval_steps", key: "eval_every"},
	{name: "beta", key: "kl_coef", pairs: "dpo_beta"},
	{name: "epsilon", key: "clip_low", also: "clip_high"},
	{name: "epsilon_high", key: "clip_high"},
	{name: "lam", key: "gae_lambda"},
	{name: "cliprange_value", key: "value_clip"},
	{name: "vf_coef", key: "value_coef"},
	{name: "loss_type", key: "reduction", pairs: "dpo_loss", values: map[string]string{"grpo": "sequence", "bnpo": "token", "dapo": "token", "dr_grpo": "dr_grpo"}},
	{name: "scale_rewards", key: "advantage_scale", values: map[string]string{
		"true": "group", "false": "none", "group": "group", "batch": "batch", "none": "none"}},

	{name: "use_dpo", key: "algorithm", values: onOff(pairwise, reinforce)},
	{name: "data_path", key: "dataset"},
	{name: "precompute_ref_log_probs", key: "precompute_ref"},
	{name: "gsm8k_path", key: "dataset"},
	{name: "test_gsm8k_path", key: "eval_dataset"},
	{name: "train_data_file", key: "few_shot_dataset"},
	{name: "sys_prompt_path", key: "system_prompt"},
	{name: "n_few_shot", key: "few_shot"},
	{name: "n_few_shot_examples", key: "few_shot"},
	{name: "num_collection_episodes", key: "prompts_per_step"},
	{name: accumulation, replay: "rl_batch_size"},
	{name: "n_eval_steps", key: "eval_samples"},
	{name: "evaluation_iterations", key: "eval_every"},
	{name: "stepwise_eval", key: "eval_stepwise"},
	{name: "n_save_iterations", key: "save_steps"},
	{name: "save_path", key: "output_dir"},
	{name: "kl_coeff", key: "kl_coef"},
	{name: "reinforce_loss", key: "algorithm", values: map[string]string{
		"on_policy": reinforce, "reinforce": "reinforce_replay", "stable": "reinforce_replay_kl", "distiller": "reinforce_replay_nll"}},
	{name: "nll_coef", inert: noGradient},
	{name: "nll_coeff", inert: noGradient},
	{name: "update_ref_iterations", key: "ref_update_every"},
	{name: "ref_model_name", key: "reference_model"},
	{name: "buffer_cache_path", key: "buffer_cache"},
	{name: "load_buffer_from_cache_at_start", key: "load_buffer"},
	{name: "reward_model_name", key: "judge"},
	{name: "teacher_model_name_or_path", key: "teacher"},
	{name: "project", key: "wandb_project"},
	{name: "judge_reward", key: "reward"},

	{name: "episodes", key: "num_steps"},
	{name: "generation_temp", key: "temperature"},
	{name: "save_dir", key: "output_dir"},
	{name: "eval_interval", key: "eval_every"},
	{name: "group_size", key: "samples_per_prompt"},
	{name: "clip_ratio", key: "clip_low", also: "clip_high"},
}

// ofTheStage are settings of the supervised stage that mean those of the RL stage where it is the only one.
var ofTheStage = map[string][]string{
	"learning_rate": {"rl_learning_rate"}, "max_grad_norm": {"rl_max_grad_norm"}, "weight_decay": {"rl_weight_decay"},
	"lr_scheduler_type": {"rl_lr_scheduler_type"}, "warmup_ratio": {"rl_warmup_ratio"}, "warmup_steps": {"rl_warmup_steps"},
	"max_steps": {"num_steps", "rl_episodes"}, "epochs": {"rl_epochs"},
	"optim": {"rl_optim"}, "adam_beta1": {"rl_adam_beta1"}, "adam_beta2": {"rl_adam_beta2"}, "adam_epsilon": {"rl_adam_epsilon"}, "min_lr_rate": {"rl_min_lr_rate"}, "early_stopping_patience": {"rl_early_stopping_patience"},
	"early_stopping_threshold": {"rl_early_stopping_threshold"}, "metric_for_best_model": {"rl_metric_for_best"},
}

// otherValues are what other programs call the values of a key.
var otherValues = map[string]map[string]string{
	"dtype": {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "none": "auto"},
	"top_k": {"-1": "0"},
	"optim": optimisers, "rl_optim": optimisers,
}

// optimisers are the names of transformers. Nothing is paged here.
var optimisers = map[string]string{
	"adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_hf": "adamw", "paged_adamw_32bit": "adamw", "paged_adamw": "adamw",
	"adamw_bnb_8bit": train.OptimAdamW8, "paged_adamw_8bit": train.OptimAdamW8,
}

// unset are the values that null stands for. Elsewhere it leaves the default.
var unset = map[string]string{"max_length": "0", "save_total_limit": "0"}

var aliasByName = func() map[string]*alias {
	m := make(map[string]*alias, len(aliases))
	for i := range aliases {
		m[aliases[i].name] = &aliases[i]
	}
	return m
}()

// target is the key that a name stands for in a run, "" where it stands for none.
func (ch choice) target(c *Config, name string) string {
	if a := aliasByName[name]; a != nil {
		switch name = a.key; {
		case ch.replays() && a.replay != "":
			name = a.replay
		case ch.algorithm.Name == pairwise && a.pairs != "":
			name = a.pairs
		case ch.mode != envs.SupervisedThenRL && a.oneStage != "":
			name = a.oneStage
		}
	}
	if name == "num_steps" && c.set.Find(name) == nil && c.set.Find("rl_episodes") != nil {
		return "rl_episodes"
	}
	if ch.mode == envs.RLOnly && c.set.Find(name) == nil {
		for _, other := range ofTheStage[name] {
			if c.set.Find(other) != nil {
				return other
			}
		}
	}
	return name
}

// plainAlias tells an alias that is an option's name, and not one of a section.
func plainAlias(name string) bool { return aliasByName[name] != nil && !strings.Contains(name, ".") }
