package config

import "strings"

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
	"load_best_model_at_end":    {"true", "rltrain always saves the best weights; use true"},
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
	"eos_token":                     "completions end with the end token of the model's files",
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
	"chat_template_kwargs":          "templates get no extra variables",
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
