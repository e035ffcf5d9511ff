package config

import (
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs"
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
	{name: "eval_problems", key: "eval_samples"},
	{name: "test_case_rewards_only", key: "reward", values: onOff("tests", "")},

	{name: "wandb", key: "report_to", values: onOff("wandb", "none")},
	{name: "wandb_run_name", key: "run_name"},
	{name: "experiment_name", key: "run_name"},

	{name: "lr", oneStage: "learning_rate"},
	{name: "model_name_or_path", key: "model"},
	{name: "dataset_name", key: "dataset"},
	{name: "dataset_text_field", key: "text_column"},
	{name: "num_train_epochs", key: "epochs"},
	{name: perDevice, key: "batch_size"},
	{name: perGeneration},
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
	"max_steps": {"num_steps", "rl_episodes"}, "early_stopping_patience": {"rl_early_stopping_patience"},
	"early_stopping_threshold": {"rl_early_stopping_threshold"}, "metric_for_best_model": {"rl_metric_for_best"},
}

// otherValues are what other programs call the values of a key.
var otherValues = map[string]map[string]string{
	"dtype":                {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"},
	"lr_scheduler_type":    {"constant_with_warmup": "constant"},
	"rl_lr_scheduler_type": {"constant_with_warmup": "constant"},
}

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

// Reasons that more than one name has.
const (
	everyEvaluation = "rltrain evaluates every epoch and every eval_every steps"
	optionOfEval    = "is an option of the command eval: --n"
	unpadded        = "sequences are never padded"
	evaluatesAlike  = "evaluation uses the type of training; use false, and dtype for both"
	ownEngine       = "rltrain generates with its own engine"
	otherReductions = "reduction offers sequence, token and dr_grpo"
	undivided       = "weights are not sharded; for data parallel training " + startProcesses
	startProcesses  = "start several processes with torchrun"
)

// fixed holds names of other trainers that have one possible value here.
var fixed = map[string]struct{ value, why string }{
	"push_to_hub":               {"false", "rltrain uploads nothing; use false"},
	"use_vllm":                  {"false", "is not supported yet: rltrain starts no vLLM; use false, or rollout_url=http://HOST:8000 of a running server"},
	"optim":                     {"adamw_torch", "the optimiser is AdamW; use adamw_torch"},
	"trust_remote_code":         {"false", "rltrain runs no code of models; use false"},
	"importance_sampling_level": {"token", "ratios are per token; use token"},
	"adam_beta1":                {"0.9", "beta1 of AdamW is 0.9"},
	"adam_beta2":                {"0.999", "beta2 of AdamW is 0.999"},
	"evaluation_at_start":       {"true", "rltrain always evaluates before training; use true"},
	"do_train":                  {"true", "the command train trains; use true, or the command eval"},
	"do_eval":                   {"true", "rltrain always evaluates; use true"},
	"eval_on_start":             {"true", "rltrain always evaluates before training; use true"},
	"padding_free":              {"true", "sequences are never padded; use true"},
	"dataloader_drop_last":      {"false", "rltrain uses every row; use false"},
	"group_by_length":           {"false", "sequences are never padded, so grouping saves nothing; use false"},
	"auto_find_batch_size":      {"false", "micro-batches are sized automatically and change no result; use false"},
	"remove_unused_columns":     {"true", "rltrain ignores unused columns; use true"},
	"fp16_full_eval":            {"false", evaluatesAlike},
	"bf16_full_eval":            {"false", evaluatesAlike},
	"sync_ref_model":            {"false", "the reference is the starting policy or reference_model; use false"},
	"save_only_model":           {"false", "checkpoints hold everything needed to resume; use false"},
	"ignore_data_skip":          {"false", "a resumed run continues at the row where it stopped; use false"},
	"full_determinism":          {"true", "the same seed gives byte-identical results; use true"},
	"torch_compile":             {"false", "rltrain compiles nothing at run time; use false"},
	"use_liger_kernel":          {"false", "losses never hold logits of the whole vocabulary for every token; use false"},
	"use_cache":                 {"true", "generation always uses the KV cache; use true"},
	"save_best_model":           {"true", "rltrain always saves the best weights; use true"},
}

// refused holds names without an equivalent here, and what to do.
var refused = map[string]string{
	"lr":                            "use learning_rate (supervised stage) or rl_learning_rate",
	"cliprange":                     "use clip_low and clip_high",
	"delta":                         "only clip_high limits the ratio from above",
	"use_cpu":                       "use device=cpu",
	"use_rslora":                    "adapters are scaled by lora_alpha / lora_r; write lora_alpha",
	"use_dora":                      "rltrain loads DoRA adapters, but trains only LoRA",
	"neftune_noise_alpha":           "rltrain adds no noise to embeddings",
	"save_strategy":                 "use save_steps",
	"eval_strategy":                 everyEvaluation,
	"cache_dir":                     "set the variables HF_HOME or HF_HUB_CACHE",
	"eval_k":                        optionOfEval,
	"repeat_eval_problems":          optionOfEval,
	"simple_eval_problems":          "use eval_samples",
	"use_reward_model":              "use reward=tests,model:DIR",
	"use_dpo":                       "use task=preference",
	"qlora":                         "there are no 4-bit weights; write dtype=bf16 and tuning=lora to save memory",
	"process_supervision":           "use step_mode=line and a judge",
	"local_test":                    "use model=tiny for a test without a download",
	"reward_model_sys_prompt_path":  "the judge's prompt is built in; choose one with reward",
	"judge_scale":                   "set a weight in reward, such as reward=score=0.2",
	perGeneration:                   "use minibatches, with an algorithm that samples new completions",
	"max_prompt_length":             "prompts are never truncated; those without room for a completion are skipped",
	"reward_funcs":                  "use reward: accuracy, or expr:'...' or cmd:PROGRAM for your own",
	"attn_implementation":           "rltrain has one attention implementation, without padding",
	"dataset_train_split":           "rltrain trains on the split train; for another one use its file as dataset",
	"dataset_test_split":            "rltrain evaluates on the split validation; for another one use its file as eval_dataset",
	"model_revision":                "use model=NAME@REVISION",
	"deepspeed":                     undivided,
	"accelerate_config":             startProcesses,
	"accelerator_config":            startProcesses,
	"activation_checkpointing":      "use gradient_checkpointing",
	"activation_offloading":         "use gradient_checkpointing, or tokens_per_micro_batch, to save memory",
	"adam_epsilon":                  "epsilon of AdamW is 1e-8",
	"average_tokens_across_devices": "losses always count the tokens of all processes",
	"cache_implementation":          "rltrain has one KV cache, in pages",
	"cast_lm_head_to_fp32":          "log-probabilities are always fp32",
	"chat_template_path":            "put chat_template.jinja into the model's folder",
	"data_seed":                     "seed also sets the order of rows",
	"dataset_kwargs":                "columns are found by name; see text_column",
	"dataset_num_proc":              "one thread reads rows",
	"dataset_streaming":             "rows are held in memory; use max_samples",
	"disable_dropout":               "only adapters have dropout; use lora_dropout=0",
	"disable_tqdm":                  "progress bars appear only on a terminal",
	"do_predict":                    "use the command predict",
	"eval_delay":                    everyEvaluation,
	"eval_packing":                  "sequences are never padded",
	"f_divergence_type":             "only the reverse KL of the DPO paper is available",
	"generation_batch_size":         "use prompts_per_step and samples_per_prompt",
	"generation_kwargs":             "use temperature, top_p, top_k, min_p or repetition_penalty by name",
	"gradient_checkpointing_kwargs": "gradient_checkpointing has no settings",
	"greater_is_better":             "rltrain knows it for each metric; see metric_for_best_model",
	"is_encoder_decoder":            "encoder-decoder models are not supported",
	"label_smoothing_factor":        "only preferences have label_smoothing",
	"ld_alpha":                      "log-probabilities are sums over completions",
	"lmbda":                         "distillation always uses the student's own completions",
	"local_rank":                    "torchrun sets the variable LOCAL_RANK",
	"log_level":                     "use verbose for more output",
	"logging_first_step":            "rltrain always logs the first step",
	"logging_strategy":              "use logging_steps",
	"lora_modules_to_save":          "rltrain trains adapters and the head of a classifier",
	"lora_task_type":                "the task decides",
	"max_tool_calling_iterations":   "tools are not supported; max_turns gives programs several turns",
	"missing_eos_penalty":           "use overlong_buffer, or mask_overlong",
	"model_init_kwargs":             "use dtype, or model=NAME@REVISION",
	"multi_objective_aggregation":   "rewards are summed with their weights",
	"normalize_advantages":          "use whiten_advantages, or advantage_scale",
	"num_completions_to_print":      "use keep_completions",
	"num_generations_eval":          optionOfEval,
	"off_policy_mask_threshold":     "completions of older policies get importance weights; see max_staleness",
	"pad_to_multiple_of":            unpadded,
	"pad_token":                     unpadded,
	"packing_strategy":              "packing uses best fit with complete examples",
	"padding_value":                 unpadded,
	"per_device_eval_batch_size":    "evaluation sizes its batches automatically",
	"precompute_ref_batch_size":     "micro-batches are sized automatically; see tokens_per_micro_batch",
	"ref_model_mixup_alpha":         "the reference is the starting policy or reference_model",
	"ref_model_sync_steps":          "the reference is the starting policy or reference_model; with a replay buffer use ref_update_every",
	"reward_clip_range":             "use expr:'...' in reward to clip rewards",
	"reward_model_path":             "use reward=model:DIR",
	"reward_weights":                "set weights in reward, such as reward=accuracy,format=0.2",
	"router_aux_loss_coef":          "rltrain does not train routers of mixtures of experts",
	"seq_kd":                        "use task=chat on the teacher's texts",
	"shuffle_dataset":               "rows are always shuffled, by seed",
	"tf32":                          "use dtype",
	"truncation_mode":               "rltrain reports truncated rows; see max_length",
	"use_weighting":                 "all pairs have the same weight",
	"top_entropy_quantile":          "all tokens of a completion are trained on",
	"use_bias_correction_kl":        "kl_type offers the estimators k1, k2 and k3",
	"entropy_target":                "use entropy_coef",
	"use_adaptive_entropy":          "use entropy_coef",
}

// refusedFamilies are beginnings of names that are refused with the same words.
var refusedFamilies = []struct{ prefix, why string }{
	{"vllm_", "rltrain starts no vLLM; use rollout_url=http://HOST:8000 of a running server"},
	{"use_transformers_", ownEngine},
	{"transformers_", ownEngine},
	{"bnb_4bit_", "4-bit weights are nf4 with float32 scales and multiply as bfloat16; write quantize=nf4"},
	{"fsdp", undivided},
	{"ddp_", "use torchrun; the only setting is dist_timeout"},
	{"dataloader_", "rows are prefetched; there is nothing to set"},
	{"hub_", "rltrain uploads nothing"},
	{"trackio_", "use report_to=tensorboard or report_to=wandb"},
	{"torch_compile_", "rltrain compiles nothing at run time"},
	{"sapo_", otherReductions},
	{"vespo_", otherReductions},
	{"entropy_coef_", "use entropy_coef, which is constant"},
	{"optim_", "the optimiser is AdamW; its only setting is weight_decay"},
	{"liger_kernel_", "rltrain loads no other kernels"},
}

// whyRefused says what to use in place of a name, "" if nothing is known of it.
func whyRefused(name string) string {
	if why := refused[name]; why != "" {
		return why
	}
	for _, family := range refusedFamilies {
		if strings.HasPrefix(name, family.prefix) {
			return family.why
		}
	}
	return ""
}
