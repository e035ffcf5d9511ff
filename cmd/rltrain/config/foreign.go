package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/internal/options"
)

// rule says what becomes of a name of other trainers that sets nothing here.
type rule struct {
	name   string   // or the beginning of names, with … at its end
	values []string // that say what rltrain does anyway; other values are refused
	near   []string // that say nearly that; accepted with a note of why
	any    bool     // every value is accepted, because only the other trainer's runtime needs one
	why    string   // what rltrain does, or what to use instead
}

// Reasons that more than one name has.
const (
	evaluatesItself  = "evaluation sizes its batches automatically and changes no result"
	inOneStage       = "evaluation uses the type of training"
	unpadded         = "sequences are never padded"
	ownEngine        = "rltrain generates with its own engine; --rollout-url uses a running server"
	undivided        = "weights are not sharded; for data parallel training start several processes with torchrun"
	compilesNothing  = "rltrain compiles nothing at run time and loads no other kernels"
	uploadsNothing   = "rltrain uploads nothing; run hf upload after training"
	savesEverything  = "checkpoints come every save_steps and hold everything needed to resume"
	rowsAreInMemory  = "rows are held in memory and prefetched"
	otherLoss        = "only a loss that rltrain refuses reads it"
	ownTokenizer     = "rltrain reads the tokenizer and the template in the model's folder"
	noOutlet         = "rltrain has its own log files; see report_to"
	optionOfEval     = "is an option of the command eval: --n"
	acceleratesAlone = "rltrain needs no launcher; for data parallel training use torchrun"
	microBatches     = "micro-batches are sized automatically and change no result; see tokens_per_micro_batch"
)

// rules are the names of TRL, transformers, accelerate, alignment-handbook, open-r1, Unsloth and label trainers that set
// nothing here. An exact name comes before a beginning.
var rules = slices.Concat(
	// Only their runtime needs these.
	needless("sequences are packed without padding, with one attention implementation", "attn_implementation", "use_flash_attention_2", "padding_free"),
	needless(unpadded, "pad_to_multiple_of", "pad_token", "padding_value", "label_pad_token_id", "length_column_name"),
	needless(microBatches, "auto_find_batch_size", "activation_offloading", "precompute_ref_batch_size", "torch_empty_cache_steps"),
	needless("gradient_checkpointing has no settings", "gradient_checkpointing_kwargs", "activation_checkpointing_kwargs", "gradient_checkpointing_use_reentrant"),
	needless(rowsAreInMemory, "dataset_num_proc", "preprocessing_num_workers", "dataset_batch_size", "dataloader_…"),
	needless(undivided, "deepspeed", "deepspeed_config", "fsdp…", "parallelism_config", "accelerator_config", "accelerate_config", "ds3_gather_for_generation", "zero…", "offload_…"),
	needless(acceleratesAlone, "local_rank", "ddp_…", "ignore_bias_buffers", "compute_environment", "debug", "distributed_type", "downcast_bf16",
		"dynamo_…", "enable_cpu_affinity", "gpu_ids", "machine_rank", "main_process_ip", "main_process_port", "main_training_function", "mixed_precision",
		"num_machines", "num_processes", "rdzv_backend", "same_network", "tpu_…", "megatron_lm_config", "config_file", "train_batch_size",
		"train_micro_batch_size_per_gpu", "steps_per_print", "wall_clock_breakdown", "half_precision_backend", "fp16_opt_level"),
	needless(compilesNothing, "torch_compile…", "use_liger_kernel", "liger_kernel_config", "enable_jit_checkpoint", "jit_mode_eval", "use_cache", "cache_implementation"),
	needless(ownEngine, "use_vllm", "vllm_…", "use_transformers_…", "transformers_…", "fast_inference", "gpu_memory_utilization", "max_lora_rank"),
	needless("rltrain runs no code of models", "trust_remote_code"),
	needless("log-probabilities are always fp32", "cast_lm_head_to_fp32"),
	needless("the same seed always gives byte-identical results", "full_determinism"),
	needless("4-bit weights are nf4 with float32 scales", "bnb_4bit_quant_storage", "bnb_4bit_compute_dtype"),
	needless("seed sets the adapter's first weights too", "random_state"),
	needless("the task decides", "lora_task_type"),
	needless(noOutlet, "disable_tqdm", "log_level", "log_level_replica", "log_on_each_node", "logging_first_step", "logging_nan_inf_filter", "logging_strategy",
		"logging_dir", "log_unique_prompts", "log_multimodal", "num_completions_to_print", "skip_memory_metrics", "include_for_metrics",
		"include_num_input_tokens_seen", "trackio_…"),
	needless(savesEverything, "save_strategy", "save_only_model", "save_on_each_node", "save_safetensors", "restore_callback_states_from_checkpoint", "save_best_model"),
	needless("earlier runs of a folder are kept as FOLDER.1, FOLDER.2, ...", "overwrite_output_dir"),
	needless("only push_to_hub reads it", "hub_…", "overwrite_hub_revision"),
	needless("the command train trains, and always evaluates before, during and after it", "do_train", "do_eval", "eval_on_start", "evaluation_at_start"),
	needless(evaluatesItself, "eval_accumulation_steps", "eval_packing", "eval_do_concat_batches",
		"eval_use_gather_object", "per_device_eval_batch_size", "batch_eval_metrics", "prediction_loss_only", "label_names", "num_generations_eval"),
	needless("unused columns are ignored, and rewards get all columns", "remove_unused_columns"),
	needless(otherLoss, "discopop_tau", "f_alpha_divergence_coef"),
	needless("prompts are never truncated, as in TRL 1.16; those without room for a completion are skipped", "max_prompt_length"),
	needless("a run's folder has the model in any case; see export for other formats", "save_model", "save_method", "quantization", "quantization_method"),

	// These have one value here.
	only(uploadsNothing, "push_to_hub", "false"),
	only(uploadsNothing, "push_to_hub_revision", "false"),
	only(uploadsNothing, "push_model", "false"),
	[]rule{{name: "importance_sampling_level", why: "sequence is algorithm gspo", values: []string{"token", "sequence", "sequence_token"}}},
	only("losses always count the tokens of all processes", "average_tokens_across_devices", "true"),
	only("4-bit weights are nf4", "bnb_4bit_quant_type", "nf4"),
	only("scales of 4-bit weights are float32", "use_bnb_nested_quant", "false"),
	only("rows are held in memory; see max_samples", "dataset_streaming", "false"),
	only("rows are held in memory; see max_samples", "streaming", "false"),
	only("use the command predict", "do_predict", "false"),
	only("rltrain evaluates from the start", "eval_delay", "0"),
	only("only the reverse KL of the DPO paper is available", "f_divergence_type", "reverse_kl"),
	only(inOneStage, "fp16_full_eval", "false"),
	only(inOneStage, "bf16_full_eval", "false"),
	only("a resumed run continues at the row where it stopped", "ignore_data_skip", "false"),
	only("log-probabilities are sums over completions", "ld_alpha", "1"),
	only("rewards are summed with their weights", "multi_objective_aggregation", "sum_then_normalize"),
	only("use advantage_scale, with algorithm grpo", "normalize_advantages", "false"),
	only("packing uses best fit with complete examples", "packing_strategy", "bfd"),
	only("matrix products of fp32 are never rounded to TF32; see dtype", "tf32", "false"),
	only("rows are shuffled, by seed", "train_sampling_strategy", "random"),
	only("rows are shuffled, by seed; nothing is padded, so grouping saves nothing", "group_by_length", "false"),
	only("texts are cut at their end", "truncation_mode", "keep_start"),
	only("all pairs have the same weight", "use_weighting", "false"),
	only("LoRA trains no biases", "bias", "none"),
	only("encoder-decoder models are not supported", "is_encoder_decoder", "false"),
	only("use the command generate", "generate_during_eval", "false"),
	only("use dpo_loss=cpo", "reference_free", "false"),

	// These have no equivalent.
	refuse("use learning_rate (supervised stage) or rl_learning_rate", "lr"),
	refuse("use clip_low and clip_high", "cliprange"),
	refuse("use minibatches, with an algorithm that samples new completions", perGeneration),
	refuse("use prompts_per_step and samples_per_prompt", perRollout),
	refuse("use task=preference", "use_dpo"),
	refuse("seed also sets the order of rows", "data_seed"),
	refuse("columns are found by name; see text_column", "dataset_kwargs"),
	refuse("name one data set as dataset and others in dataset_mix; a file of settings may list them", "datasets", "dataset_mixture", "dataset_mixer"),
	refuse("use train_split and eval_split; a file of settings may list both", "dataset_splits"),
	refuse("adapters start at zero", "loftq_config"),
	refuse(uploadsNothing, "log_completions_hub_repo"),
	refuse("max_turns limits the model's messages, those that call tools included; tools lists the tools", "max_tool_calling_iterations"),
	refuse("use overlong_buffer, or mask_overlong", "missing_eos_penalty"),
	refuse("completions of older policies get importance weights; see max_staleness", "off_policy_mask_threshold"),
	refuse("AdamW has the options weight_decay, adam_beta1, adam_beta2 and adam_epsilon", "optim_args"),
	refuse("AdamW trains all weights with the same settings", "optim_target_modules"),
	refuse("use expr:'...' in reward to clip rewards", "reward_clip_range"),
	refuse("use reward=model:DIR", "reward_model_path"),
	refuse("completions are sampled without a grammar", "vllm_structured_outputs_regex"),
	refuse("use dpo_loss=sigmoid,sft with loss_weights=1,ALPHA", "rpo_alpha"),
	refuse("rltrain calls no Python", "callbacks"),
	refuse("use the command eval after training", "benchmarks"),
	refuse("use min_lr_rate, a fraction of the peak learning rate", "min_lr"),
	refuse("set the variables HF_HOME or HF_HUB_CACHE", "cache_dir"),
	refuse(optionOfEval, "eval_k", "repeat_eval_problems"),
	refuse("use eval_samples", "simple_eval_problems"),
	refuse("use num_steps: steps of prompts_per_step times samples_per_prompt completions", "total_episodes"),
	refuse("use reward=tests,model:DIR", "use_reward_model"),
	refuse("write quantize=nf4 and tuning=lora", "qlora"),
	refuse("use model=tiny for a test without a download", "local_test"),
	refuse("the judge's prompt is built in; choose one with reward", "reward_model_sys_prompt_path"),
	refuse("set a weight in reward, such as reward=score=0.2", "judge_scale"),
	refuse("distillation always uses the student's own completions", "lmbda"),
	refuse("use task=chat on the teacher's texts", "seq_kd"),

	// Those of TRL's experimental trainers SDFT and SDPO.
	only("the loss has no term of rewards", "distillation_weight", "1"),
	only("the ratio of algorithm distill has no clip", "distillation_is_clip", "none"),
	only("divergences are over all tokens; use divergence", "distillation_add_tail", "false"),
	only("all tokens of a completion count", "num_loss_tokens_to_skip", "0"),
	only("completions are those of the policy's prompt", "generate_from_teacher", "false"),
	only("the teacher is in this process", "use_teacher_server", "false"),
	only("use teacher_context=demonstration for another context", "use_successful_as_teacher", "true"),
	only("a completion does not teach itself", "dont_reprompt_on_self_success", "true"),
	only("the teacher reads the solution and the feedback", "environment_feedback_only_without_solution", "false"),
	only("the teacher reads thoughts too", "remove_thinking_from_demonstration", "false"),
	refuse("divergences are over all tokens; use divergence", "distillation_topk"),
	refuse("a prompt of the teacher that is too long is not cut; its completion is not learned from", "max_reprompt_len"),
	refuse("use teacher_prompt", "solution_template", "feedback_template"),
	needless("rltrain warns of steps without anything to learn", "diagnostics_…"),
)

// needless accepts every value of the names.
func needless(why string, names ...string) []rule {
	var all []rule
	for _, name := range names {
		all = append(all, rule{name: name, any: true, why: why})
	}
	return all
}

// only accepts the given values of a name.
func only(why, name string, values ...string) []rule {
	return []rule{{name: name, values: values, why: why}}
}

// refuse refuses every value of the names.
func refuse(why string, names ...string) []rule {
	var all []rule
	for _, name := range names {
		all = append(all, rule{name: name, why: why})
	}
	return all
}

// ruleOf is the rule for a name; nil if nothing is known of it.
func ruleOf(name string) *rule {
	for i := range rules {
		if rules[i].name == name {
			return &rules[i]
		}
	}
	for i := range rules {
		if begin, ok := strings.CutSuffix(rules[i].name, "…"); ok && strings.HasPrefix(name, begin) {
			return &rules[i]
		}
	}
	return nil
}

// check returns an error for a value that would ask for something else than rltrain does.
func (r *rule) check(v options.Value) error {
	if r.any || v.Syntax == options.Null || v.Syntax == options.List && len(v.List) == 0 {
		return nil
	}
	for _, value := range slices.Concat(r.values, r.near) {
		if v.Syntax != options.List && (sameValue(value, v.Text) || sameValue(value, switched(v))) {
			return nil
		}
	}
	switch {
	case r.values == nil:
		return fmt.Errorf("%s", r.why)
	case v.Syntax == options.List:
		return fmt.Errorf("%v: %s; remove it or use %s", v, r.why, strings.Join(r.values, " or "))
	}
	return fmt.Errorf("%q: %s; remove it or use %s", v.Text, r.why, strings.Join(r.values, " or "))
}

// sameValue compares numbers by value, and text without regard to case.
func sameValue(a, b string) bool {
	x, err := strconv.ParseFloat(a, 64)
	y, other := strconv.ParseFloat(b, 64)
	if err == nil && other == nil {
		return x == y
	}
	return strings.EqualFold(a, b)
}
