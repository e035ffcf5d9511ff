package config

import "strings"

// Reasons that more than one name has.
const (
	everyEvaluation = "every epoch and every eval_every steps are evaluated"
	optionOfEval    = "is an option of the command eval, as --n"
	unpadded        = "sequences are never padded"
	evaluatesAlike  = "evaluation computes as training does; use false, and dtype for both"
	ownEngine       = "texts are written by the engine of this program alone"
	otherReductions = "the losses are those of reduction: sequence, token and dr_grpo"
	undivided       = "weights are not divided; " + startProcesses + ", each learns from a part of the rows"
	startProcesses  = "start several processes with torchrun"
)

// fixed holds names of other trainers with one possible value: what is always so here.
var fixed = map[string]struct{ value, why string }{
	"push_to_hub":               {"false", "nothing is uploaded; use false"},
	"use_vllm":                  {"false", "is not supported yet: no vLLM is started; use false, or rollout_url=http://HOST:8000 of a server that runs"},
	"optim":                     {"adamw_torch", "the optimiser is AdamW; use adamw_torch"},
	"trust_remote_code":         {"false", "no code that comes with a model is run; use false"},
	"importance_sampling_level": {"token", "ratios are those of tokens; use token"},
	"adam_beta1":                {"0.9", "AdamW has beta1 0.9"},
	"adam_beta2":                {"0.999", "AdamW has beta2 0.999"},
	"evaluation_at_start":       {"true", "the policy is always evaluated before it is trained; use true"},
	"do_train":                  {"true", "a train command trains; use true, or the command eval"},
	"do_eval":                   {"true", "what is trained is always evaluated; use true"},
	"eval_on_start":             {"true", "what is trained is always evaluated before; use true"},
	"load_best_model_at_end":    {"true", "the best of all evaluations is what is saved at the end; use true"},
	"padding_free":              {"true", "sequences are never padded; use true"},
	"dataloader_drop_last":      {"false", "no row is left out; use false"},
	"group_by_length":           {"false", "rows are never padded, so their order is free; use false"},
	"auto_find_batch_size":      {"false", "the size of a micro-batch is chosen from the memory, and changes no result; use false"},
	"remove_unused_columns":     {"true", "columns without a use are not read; use true"},
	"fp16_full_eval":            {"false", evaluatesAlike},
	"bf16_full_eval":            {"false", evaluatesAlike},
	"sync_ref_model":            {"false", "the reference is the policy as the run found it, or reference_model; use false"},
	"save_only_model":           {"false", "a checkpoint holds all that a run needs to go on as if it had not stopped; use false"},
	"ignore_data_skip":          {"false", "a run goes on at the row where it stopped; use false"},
	"full_determinism":          {"true", "the same seed gives the same bytes; use true"},
	"torch_compile":             {"false", "nothing is compiled while a run goes on; use false"},
	"use_liger_kernel":          {"false", "losses never hold a row of the whole vocabulary for every token, without a further package; use false"},
	"use_cache":                 {"true", "keys and values are kept while a text is written; use true"},
	"save_best_model":           {"true", "the best policy of all evaluations is what is saved at the end; use true"},
}

// refused holds names that have no equal here.
var refused = map[string]string{
	"lr":                            "write learning_rate (supervised stage) or rl_learning_rate",
	"cliprange":                     "write clip_low and clip_high",
	"delta":                         "there is no upper limit of the ratio beside clip_high",
	"use_cpu":                       "write device=cpu",
	"use_rslora":                    "adapters are scaled by lora_alpha / lora_r; write lora_alpha",
	"use_dora":                      "new adapters are plain LoRA; those with DoRA are read",
	"neftune_noise_alpha":           "no noise is added to embeddings",
	"save_strategy":                 "write save_steps",
	"eval_strategy":                 everyEvaluation,
	"cache_dir":                     "models are kept where the variables HF_HOME and HF_HUB_CACHE say",
	"eval_k":                        optionOfEval,
	"repeat_eval_problems":          optionOfEval,
	"simple_eval_problems":          "write eval_samples",
	"use_reward_model":              "write reward=tests,model:DIR",
	"use_dpo":                       "train on pairs with task=preference",
	"qlora":                         "there are no 4-bit weights; write dtype=bf16 and tuning=lora to save memory",
	"process_supervision":           "lines are rewarded with step_mode=line and a judge",
	"local_test":                    "write model=tiny for a trial without a download",
	"reward_model_sys_prompt_path":  "the judge's prompt is built in; write reward to choose one",
	"judge_scale":                   "write a weight in the list of rewards, as reward=score=0.2",
	perGeneration:                   "only fresh answers come in rollouts of several updates; write minibatches",
	"max_prompt_length":             "no prompt is cut; those that leave no room for an answer are left out",
	"reward_funcs":                  "write reward: accuracy for right answers, expr:'...' or cmd:PROGRAM for your own",
	"attn_implementation":           "there is one attention, over sequences without padding",
	"eos_token":                     "answers end with the end token of the model's own files",
	"dataset_train_split":           "the part train is learnt from; name its file as dataset to choose another one",
	"dataset_test_split":            "the part validation is judged by; name a file as eval_dataset where the task has it",
	"model_revision":                "write it behind the name, as model=NAME@REVISION",
	"deepspeed":                     undivided,
	"accelerate_config":             startProcesses,
	"accelerator_config":            startProcesses,
	"activation_checkpointing":      "write gradient_checkpointing",
	"activation_offloading":         "write gradient_checkpointing, or tokens_per_micro_batch, to save memory",
	"adam_epsilon":                  "AdamW has epsilon 1e-8",
	"average_tokens_across_devices": "losses are always divided by the count of all processes",
	"cache_implementation":          "keys and values are kept in pages; there is one way",
	"cast_lm_head_to_fp32":          "log-probabilities are always computed in fp32",
	"chat_template_kwargs":          "a template has the variables of the model's own files",
	"chat_template_path":            "put chat_template.jinja into the model's folder",
	"data_seed":                     "seed draws the order of rows too",
	"dataset_kwargs":                "columns are found by their names; see text_column",
	"dataset_num_proc":              "rows are read by one thread",
	"dataset_streaming":             "rows are held in memory; write max_samples",
	"disable_dropout":               "only adapters have dropout; write lora_dropout=0",
	"disable_tqdm":                  "progress is drawn on a terminal alone; elsewhere lines are plain",
	"do_predict":                    "is a command: predict",
	"eval_delay":                    everyEvaluation,
	"eval_packing":                  "rows that are evaluated are never padded",
	"f_divergence_type":             "preferences are held by the reverse KL, as DPO's paper has it",
	"generation_batch_size":         "write prompts_per_step and samples_per_prompt",
	"generation_kwargs":             "write temperature, top_p, top_k, min_p or repetition_penalty by name",
	"gradient_checkpointing_kwargs": "gradient_checkpointing has no settings",
	"greater_is_better":             "it is known of each figure; see metric_for_best_model",
	"is_encoder_decoder":            "models are encoders or decoders, not both in one",
	"label_smoothing_factor":        "labels are not smoothed; preferences have label_smoothing",
	"ld_alpha":                      "log-probabilities are those of whole answers",
	"lmbda":                         "the teacher corrects the student's own answers alone",
	"local_rank":                    "torchrun says a process's rank through the variable LOCAL_RANK",
	"log_level":                     "write verbose for more",
	"logging_first_step":            "the first step is always logged",
	"logging_strategy":              "write logging_steps",
	"lora_modules_to_save":          "beside adapters the head of a classifier is trained, and nothing else",
	"lora_task_type":                "the task says what the model is",
	"max_tool_calling_iterations":   "no tools are called; programs have several turns with max_turns",
	"missing_eos_penalty":           "write overlong_buffer, or mask_overlong",
	"model_init_kwargs":             "write dtype, or model=NAME@REVISION",
	"multi_objective_aggregation":   "rewards are added with their weights, and the sum is compared",
	"normalize_advantages":          "write whiten_advantages, or advantage_scale",
	"num_completions_to_print":      "write keep_completions",
	"num_generations_eval":          optionOfEval,
	"off_policy_mask_threshold":     "answers of an older policy are weighed by how likely they are now; see max_staleness",
	"pad_to_multiple_of":            unpadded,
	"pad_token":                     unpadded,
	"packing_strategy":              "packing fills rows with whole texts",
	"padding_value":                 unpadded,
	"per_device_eval_batch_size":    "evaluation chooses its batches from the memory",
	"precompute_ref_batch_size":     "micro-batches are chosen from the memory; see tokens_per_micro_batch",
	"ref_model_mixup_alpha":         "the reference is the policy as the run found it, or reference_model",
	"ref_model_sync_steps":          "the reference is the policy as the run found it, or reference_model; where turns are replayed write ref_update_every",
	"reward_clip_range":             "write expr:'...' in reward to bound what it pays",
	"reward_model_path":             "write reward=model:DIR",
	"reward_weights":                "write weights in the list of rewards, as reward=accuracy,format=0.2",
	"router_aux_loss_coef":          "routers of mixtures of experts are not trained",
	"seq_kd":                        "learn from the teacher's texts with task=chat",
	"shuffle_dataset":               "rows are drawn in an order that seed gives",
	"tf32":                          "write dtype",
	"truncation_mode":               "no row is cut without a word; see max_length",
	"use_weighting":                 "pairs are the policy's own, or weigh the same",
	"top_entropy_quantile":          "all tokens of an answer teach",
	"use_bias_correction_kl":        "the penalty's estimators are k1, k2 and k3; see kl_type",
	"entropy_target":                "write entropy_coef",
	"use_adaptive_entropy":          "write entropy_coef",
}

// refusedFamilies are beginnings of names that have no equal here, for those that are refused in the same words.
var refusedFamilies = []struct{ prefix, why string }{
	{"vllm_", "no vLLM is started; write rollout_url=http://HOST:8000 of a server that runs"},
	{"use_transformers_", ownEngine},
	{"transformers_", ownEngine},
	{"bnb_4bit_", "4-bit weights are nf4 with float32 scales and multiply as bfloat16; write quantize=nf4"},
	{"fsdp", undivided},
	{"ddp_", "processes are started with torchrun, and gradients are added over gloo; there is nothing to set but dist_timeout"},
	{"dataloader_", "rows are read ahead of their use; there is nothing to set"},
	{"hub_", "nothing is uploaded"},
	{"trackio_", "write report_to=tensorboard or report_to=wandb"},
	{"torch_compile_", "nothing is compiled while a run goes on"},
	{"sapo_", otherReductions},
	{"vespo_", otherReductions},
	{"entropy_coef_", "write entropy_coef, which stays as it is"},
	{"optim_", "the optimiser is AdamW, without settings but weight_decay"},
	{"liger_kernel_", "no further kernels are loaded"},
}

// whyRefused says why a name has no equal here, "" where nothing is known of it.
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
