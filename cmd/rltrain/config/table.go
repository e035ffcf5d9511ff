package config

import (
	"cmp"
	"math"
	"reflect"
	"slices"
	"strings"

	"rltrain/cmd/rltrain/recipes"
)

// A scope is a set of pairs of a task and a mode: three bits a task, one a mode.
type scope uint32

const (
	intentTask scope = 0b111 << (3 * iota)
	chatTask
	sumTask
	reverseTask
	gsm8kTask
	mathTask
	ownTask // of all tasks that a program was built with beside these

	digitsTask   = sumTask | reverseTask
	problemTask  = gsm8kTask | mathTask
	exerciseTask = digitsTask | ownTask       // those whose exercises a program makes up
	answerTask   = exerciseTask | problemTask // those that reason towards an answer
	tokenTask    = chatTask | answerTask
	anyTask      = intentTask | tokenTask
)

// oncePerTask has the first bit of every task.
const oncePerTask scope = 0o1111111

const (
	supervisedOnly = oncePerTask << iota
	both
	rlOnly

	withSupervision = supervisedOnly | both
	withRL          = both | rlOnly

	// The policy may be a new one without a supervised stage only where a pretrained model solves problems at once,
	// or might.
	newPolicy = withSupervision | untaught
	untaught  = problemTask | ownTask
)

type task struct {
	name   string
	scope  scope // the modes it has
	recipe []byte
}

// tasks are the tasks in the order of their bits.
var tasks = []task{
	{Intent, intentTask, recipes.Intent},
	{Chat, chatTask & supervisedOnly, recipes.Chat},
	{SumDigits, sumTask, recipes.SumDigits},
	{ReverseDigits, reverseTask, recipes.ReverseDigits},
	{GSM8K, gsm8kTask, recipes.GSM8K},
	{MATH, mathTask, recipes.MATH},
}

// modeNames are the modes in the order of their bits.
var modeNames = []string{Supervised, SupervisedThenRL, RLOnly}

var taskNames = anyTask.tasks()

// of is the part of s that belongs to a task.
func (s scope) of(task string) scope {
	for _, t := range tasks {
		if t.name == task {
			return s & t.scope
		}
	}
	return 0
}

// modes are the modes of a task in s.
func (s scope) modes(task string) []string {
	var names []string
	for i, name := range modeNames {
		if s.of(task)&(oncePerTask<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

func (s scope) has(task, mode string) bool { return slices.Contains(s.modes(task), mode) }

// tasks are the tasks that have something in s.
func (s scope) tasks() []string {
	var names []string
	for _, t := range tasks {
		if s&t.scope != 0 {
			names = append(names, t.name)
		}
	}
	return names
}

// key declares one setting. Flags, validation, --help, config.yaml and the recipe's comments are derived from it.
type key struct {
	name    string
	group   string
	scope   scope  // where it applies
	arg     string // what --help calls the value
	help    string
	allowed []string          // the values of an enumeration
	refused map[string]string // values that get an explanation instead of the list of allowed ones
	limits  bounds            // of a number
	// needs returns the condition under which the key applies, or "" where c meets it.
	needs func(c *Config) string
	// perCommand settings belong to one invocation: they are neither read from a file nor written to config.yaml.
	perCommand bool
	// incidental settings may change when a run is resumed: they leave its results as they are.
	incidental bool

	index int          // of the field in Config
	kind  reflect.Kind // of the field
}

// Groups of --help, in its order.
const (
	general    = "General"
	supervised = "Supervised stage"
	rl         = "Reinforcement learning stage"
	saving     = "Saving and logging"
)

const customReward = "custom"

func needsDataset(c *Config) string {
	if c.Dataset == "" {
		return "--dataset FILE"
	}
	return ""
}

func needsNewPolicy(c *Config) string {
	if c.PretrainedModel != "" {
		return "a new policy, so no --pretrained-model"
	}
	return ""
}

// needsModel is the condition of model. A classifier may name the one that its policy stands on.
func needsModel(c *Config) string {
	if c.Task == Intent {
		return ""
	}
	return needsNewPolicy(c)
}

func needsTiny(c *Config) string {
	if missing := needsNewPolicy(c); missing != "" {
		return missing
	}
	if c.Model != TinyModel {
		return "--model " + TinyModel
	}
	return ""
}

func needsLora(c *Config) string {
	if missing := needsNewPolicy(c); missing != "" {
		return missing
	}
	if c.FullTuning() {
		return "--tuning lora"
	}
	return ""
}

func needsMaxLength(c *Config) string {
	if c.MaxLength == 0 {
		return "--max-length"
	}
	return ""
}

func needsReinforce(c *Config) string {
	if c.Algorithm == "reinforce" {
		return ""
	}
	return "--algorithm reinforce"
}

func needsBaseline(c *Config) string {
	return cmp.Or(needsAlgorithm(c, func(a Algorithm) bool { return a.Baseline }), needsOnPolicy(c))
}

func needsScale(c *Config) string {
	return cmp.Or(needsAlgorithm(c, func(a Algorithm) bool { return a.Scale }), needsOnPolicy(c))
}

func needsReduction(c *Config) string {
	return cmp.Or(needsAlgorithm(c, func(a Algorithm) bool { return a.Reduction }), needsOnPolicy(c))
}

func needsPPO(c *Config) string { return needsAlgorithm(c, func(a Algorithm) bool { return a.Values }) }

func needsClip(c *Config) string { return needsAlgorithm(c, func(a Algorithm) bool { return a.Ratio }) }

func needsMoving(c *Config) string {
	if missing := needsBaseline(c); missing != "" || c.Baseline == "moving" {
		return missing
	}
	return "--baseline moving"
}

func needsKL(c *Config) string {
	if missing := needsOnPolicy(c); missing != "" || c.KLCoef > 0 {
		return missing
	}
	return "--kl-coef above 0"
}

func needsKLTarget(c *Config) string {
	if missing := needsKL(c); missing != "" || c.KLTarget > 0 {
		return missing
	}
	return "--kl-target above 0"
}

func needsAsync(c *Config) string {
	if !c.Async {
		return "--async"
	}
	return ""
}

// needsOnPolicy is the condition of what a replay buffer leaves no use for.
func needsOnPolicy(c *Config) string {
	if c.Replay() {
		return "--reinforce-loss on_policy, or another --algorithm"
	}
	return ""
}

func needsReplay(c *Config) string {
	if c.Replay() {
		return ""
	}
	return "--algorithm reinforce and a --reinforce-loss that replays: stable, reinforce or distiller"
}

func needsReinforceLoss(c *Config, names ...string) string {
	if missing := needsReplay(c); missing != "" {
		return missing
	}
	if slices.Contains(names, c.ReinforceLoss) {
		return ""
	}
	return "--reinforce-loss " + strings.Join(names, " or ")
}

func needsDiscount(c *Config) string {
	if c.Replay() {
		return ""
	}
	return needsPPO(c)
}

func needsPenalty(c *Config) string {
	if c.Replay() {
		return needsReinforceLoss(c, LossStable)
	}
	return ""
}

func needsDistiller(c *Config) string { return needsReinforceLoss(c, LossDistiller) }
func needsReference(c *Config) string { return needsReinforceLoss(c, LossStable, LossDistiller) }

// needsBuffer is about settings that task intent always has.
func needsBuffer(c *Config) string {
	if c.Task == Intent {
		return ""
	}
	return needsReplay(c)
}

func needsOwnReference(c *Config) string {
	if missing := needsReference(c); missing != "" {
		return missing
	}
	if !c.OwnReference() {
		return "the policy's own model for a reference, so no other --reference-model"
	}
	return ""
}

func needsEvalSampling(c *Config) string {
	if missing := needsReplay(c); missing != "" {
		return missing
	}
	if c.EvalTemperature == 0 {
		return "an --eval-temperature above 0"
	}
	return ""
}

func needsLines(c *Config) string {
	if c.Lines() || c.EvalStepwise {
		return ""
	}
	return "--step-mode line"
}

func needsBufferCache(c *Config) string {
	if missing := needsReplay(c); missing != "" {
		return missing
	}
	if c.BufferCache == "" {
		return "--buffer-cache FILE"
	}
	return ""
}

func needsJudge(c *Config) string {
	if c.Judge == "" {
		return "--judge MODEL"
	}
	return ""
}

func needsScore(c *Config) string {
	if missing := needsJudge(c); missing != "" {
		return missing
	}
	if c.JudgeReward != JudgeScore {
		return "--judge-reward " + JudgeScore
	}
	return ""
}

func needsAlgorithm(c *Config, has func(a Algorithm) bool) string {
	var names []string
	for _, a := range algorithms {
		if has(a) {
			names = append(names, a.Name)
		}
		if has(a) && a.Name == c.Algorithm {
			return ""
		}
	}
	return "--algorithm " + strings.Join(names, " or ")
}

func needsCustom(c *Config) string {
	if c.Reward != customReward {
		return "--reward custom"
	}
	return ""
}

// keys holds every setting once, in the order of Config's fields.
var keys = [...]key{
	{name: "task", group: general, scope: anyTask, allowed: taskNames, help: "what is learned: intent classifies texts, chat completes them, sum_digits and reverse_digits reason about numbers, gsm8k and math solve problems of a file; or a task that the program was built with"},
	{name: "mode", group: general, scope: anyTask, allowed: []string{SupervisedThenRL, Supervised, RLOnly}, help: "which stages are trained"},
	{name: "model", group: general, scope: anyTask, needs: needsModel, arg: "DIR|NAME", help: "pretrained model: a folder, or a name on the hub or in the cache; or tiny, a small character-level model of random weights"},
	{name: "pretrained_model", group: general, scope: anyTask & (supervisedOnly | rlOnly), arg: "DIR|NAME", help: "trained policy to go on from, a folder or a name on the hub; rl_only needs it, but for gsm8k, math and tasks of one's own"},
	{name: "dataset", group: general, scope: intentTask | chatTask | problemTask, arg: "FILE|NAME", help: "examples: a file (csv, json, jsonl or parquet, also gzipped), a folder of them, or a name on the hub. intent: texts and labels, without it the built-in set. chat: text, messages, or prompt and completion. gsm8k and math: a file with question and answer, or problem and solution"},
	{name: "dataset_config", group: general, scope: intentTask | chatTask, arg: "NAME", needs: needsDataset, help: "one of several configurations of --dataset"},
	{name: "eval_dataset", group: general, scope: problemTask, arg: "FILE", help: "file of the problems to be judged by; without it the last eval_samples problems of --dataset are held back"},
	{name: "few_shot_dataset", group: general, scope: problemTask, arg: "FILE", help: "file of the worked examples; without it they are the first of --dataset. No example is a problem to solve"},
	{name: "few_shot", group: general, scope: problemTask, limits: between(0, 1000), help: "worked examples in the prompt"},
	{name: "system_prompt", group: general, scope: problemTask, arg: "FILE", help: "text file with what the model is told first, instead of the built-in instruction"},
	{name: "annotate", group: general, scope: gsm8kTask, help: "show and ask for calculations as <<expression=result>>"},
	{name: "sym_calc", group: general, scope: gsm8kTask, help: "work the calculations out that the model writes as <<expression=...>>, at most four a line"},
	{name: "answer_match", group: general, scope: problemTask, allowed: []string{"exact", "numeric", "units", "math"}, help: "when an answer is right: the same text, the same number, the same quantity whatever is around it, or the same meaning"},
	{name: "text_column", group: general, scope: intentTask, needs: needsDataset, help: "column of --dataset with the text"},
	{name: "label_column", group: general, scope: intentTask, needs: needsDataset, help: "column of --dataset with the label"},
	{name: "split_column", group: general, scope: intentTask, needs: needsDataset, help: "column of --dataset with train, val or test; without the column rows are split 70/15/15 by class"},
	{name: "max_samples", group: general, scope: intentTask | chatTask, limits: atLeast(0), help: "use at most this many rows, of classes equally many; 0 = all"},
	{name: "max_length", group: general, scope: intentTask | chatTask, limits: atLeast(0), help: "cut texts at this many tokens, special tokens included; chat: 0 = as many as the model reads"},
	{name: "output_dir", group: general, scope: anyTask, arg: "DIR", incidental: true, help: "results go to a folder in DIR named after the task and the stage: DIR/intent_classifier_supervised"},
	{name: "dtype", group: general, scope: tokenTask, allowed: []string{"auto", "fp32", "bf16", "fp16"}, help: "how frozen weights are kept; computing is in fp32; auto = as stored"},
	{name: "tiny_layers", group: general, scope: tokenTask, needs: needsTiny, limits: between(1, 64), help: "layers of the model tiny"},
	{name: "tiny_hidden", group: general, scope: tokenTask, needs: needsTiny, limits: between(32, 4096), help: "width of the model tiny, a multiple of 32"},
	{name: "seed", group: general, scope: anyTask, help: "of every random draw"},
	{name: "device", group: general, scope: anyTask, allowed: []string{"auto", "cpu"}, refused: map[string]string{"cuda": "this build has no CUDA library; use auto or cpu"}, help: "where tensors live"},
	{name: "threads", group: general, scope: anyTask, limits: between(0, 1024), incidental: true, help: "compute threads; 0 = one a core"},
	{name: "tokens_per_micro_batch", group: general, scope: anyTask, limits: atLeast(0), help: "split batches at this many tokens to save memory; 0 = chosen from memory"},
	{name: "digits_count", group: general, scope: sumTask, limits: between(2, 64), help: "integers in a list at most"},
	{name: "digits_max", group: general, scope: digitsTask, limits: between(10, 1e15), help: "largest integer"},
	{name: "require_tag", group: general, scope: digitsTask, help: "pay only answers with [ANSWER] in them"},
	{name: "task_options", group: general, scope: ownTask, arg: "A=1,B=2,...", help: "options that the task itself has"},
	{name: "prompt_form", group: general, scope: digitsTask | problemTask, allowed: []string{"auto", "short", "chat"}, help: "how an exercise is shown: in short, for small models over characters, or as a conversation with an example; auto = short where the model, as tiny, has no chat template"},
	{name: "max_new_tokens", group: general, scope: answerTask, limits: between(1, 1<<20), help: "tokens of an answer at most, of a line see max_line_tokens"},
	{name: "max_line_tokens", group: general, scope: problemTask & withRL, needs: needsLines, limits: between(1, 1<<20), help: "tokens of a line at most"},
	{name: "max_trajectory_steps", group: general, scope: problemTask & withRL, needs: needsLines, limits: between(1, 1<<20), help: "lines of a solution at most"},
	{name: "eval_samples", group: general, scope: answerTask, limits: between(1, 1<<20), help: "held-out exercises of an evaluation, answered greedily"},
	{name: "verbose", group: general, scope: exerciseTask, incidental: true, help: "print the answers of each step"},
	{name: "resume", group: general, scope: anyTask, perCommand: true, incidental: true, help: "continue from the newest checkpoint in the output folder"},
	{name: "config", group: general, scope: anyTask, arg: "FILE", perCommand: true, incidental: true, help: "YAML file of settings, such as the config.yaml of an earlier run"},

	{name: "epochs", group: supervised, scope: (intentTask | chatTask | problemTask) & withSupervision, limits: atLeast(1), help: "passes over the training rows"},
	{name: "max_steps", group: supervised, scope: anyTask & withSupervision, limits: atLeast(0), help: "updates; overrides epochs, where 0 = as epochs say; digits: at most, if warmup_until is not reached before"},
	{name: "batch_size", group: supervised, scope: anyTask & withSupervision, limits: atLeast(1), help: "rows an update"},
	{name: "learning_rate", group: supervised, scope: anyTask & withSupervision, limits: above(0), help: "peak rate of the adapter"},
	{name: "head_learning_rate", group: supervised, scope: intentTask & withSupervision, limits: above(0), help: "peak rate of the classification head"},
	{name: "weight_decay", group: supervised, scope: anyTask & withSupervision, limits: atLeast(0), help: "decoupled, as in AdamW"},
	{name: "lr_scheduler_type", group: supervised, scope: anyTask & withSupervision, allowed: []string{"cosine", "linear", "constant"}, help: "course of the rates after warm-up"},
	{name: "warmup_ratio", group: supervised, scope: anyTask & withSupervision, limits: between(0, 1), help: "share of the updates over which the rates rise"},
	{name: "max_grad_norm", group: supervised, scope: anyTask & withSupervision, limits: atLeast(0), help: "clip the gradient's norm; 0 = never"},
	{name: "tuning", group: supervised, scope: tokenTask & newPolicy, needs: needsNewPolicy, allowed: []string{"auto", "lora", "full"}, help: "what is trained: an adapter, or all weights; auto = all weights of the model tiny, an adapter on any other"},
	{name: "lora_r", group: supervised, scope: anyTask & newPolicy, needs: needsLora, limits: between(1, 1024), help: "rank of the adapter"},
	{name: "lora_alpha", group: supervised, scope: anyTask & newPolicy, needs: needsLora, limits: atLeast(1), help: "the adapter's output is scaled by lora_alpha / lora_r"},
	{name: "lora_dropout", group: supervised, scope: anyTask & newPolicy, needs: needsLora, limits: bounds{min: 0, max: 1, openMax: true, set: true}, help: "dropout on the adapter's input"},
	{name: "lora_target_modules", group: supervised, scope: anyTask & newPolicy, needs: needsLora, arg: "A,B,...", help: "modules that get an adapter, by the end of their name; empty = the model family's"},
	{name: "pooling", group: supervised, scope: intentTask & withSupervision, needs: needsNewPolicy, allowed: []string{"auto", "mean", "family"}, help: "how a text becomes one vector: mean of its tokens, or the family's own pooler; auto = as the model's folder says"},
	{name: "feature_alignment", group: supervised, scope: intentTask & withSupervision, limits: atLeast(0), help: "weight of the L2 penalty on the adapter's weights; 0 = none"},
	{name: "warmup_until", group: supervised, scope: exerciseTask & withSupervision, limits: between(0, 1), help: "stop at the first check at which this share of held-out answers is right"},
	{name: "warmup_check_every", group: supervised, scope: exerciseTask & withSupervision, limits: atLeast(1), help: "updates between checks"},
	{name: "validation_share", group: supervised, scope: chatTask & withSupervision, limits: bounds{min: 0, max: 1, openMin: true, openMax: true, set: true}, help: "share of the rows kept for validation, where the data has no split for it"},
	{name: "packing", group: supervised, scope: chatTask & withSupervision, needs: needsMaxLength, help: "count a batch in bins of max_length tokens, filled with as many whole examples as fit, instead of examples"},
	{name: "completion_only_loss", group: supervised, scope: chatTask & withSupervision, help: "of prompt and completion train the completion only"},
	{name: "assistant_only_loss", group: supervised, scope: chatTask & withSupervision, help: "of messages train what the assistant says only; needs a template that marks it"},
	{name: "gradient_checkpointing", group: supervised, scope: tokenTask & newPolicy, help: "keep each block's input only and compute the rest again: less memory, a third more time"},
	{name: "metric_for_best_model", group: supervised, scope: intentTask & withSupervision, allowed: []string{"f1_weighted", "f1_macro", "accuracy", "loss"}, help: "validation figure that picks the best epoch"},

	{name: "algorithm", group: rl, scope: anyTask & withRL, refused: map[string]string{"a2c": notHere, "dqn": notHere}, help: "how the policy is improved; intent: ppo"},
	{name: "reinforce_loss", group: rl, scope: problemTask & withRL, needs: needsReinforce, allowed: []string{LossStable, LossReinforce, LossDistiller, LossOnPolicy}, help: "loss of algorithm reinforce. on_policy: of what was just sampled, with --baseline. The others replay turns of a buffer: reinforce, stable with a penalty for leaving the reference, distiller which logs it only"},
	{name: "step_mode", group: rl, scope: problemTask & withRL, allowed: []string{"auto", "line", "whole"}, help: "what an action is: a line of the solution, or all of it; auto = line where turns are replayed"},
	{name: "num_steps", group: rl, scope: answerTask & withRL, limits: atLeast(1), help: "rollouts, each followed by an update"},
	{name: "prompts_per_step", group: rl, scope: answerTask & withRL, limits: atLeast(1), help: "exercises of a rollout"},
	{name: "samples_per_prompt", group: rl, scope: answerTask & withRL, needs: needsOnPolicy, limits: atLeast(1), help: "answers to each exercise"},
	{name: "num_generators", group: rl, scope: answerTask & withRL, needs: needsOnPolicy, limits: between(1, 1024), help: "clients that share the work of a rollout; its results do not depend on it"},
	{name: "temperature", group: rl, scope: answerTask & withRL, limits: above(0), help: "of the answers that are learned from"},
	{name: "baseline", group: rl, scope: answerTask & withRL, needs: needsBaseline, allowed: []string{"none", "moving", "batch", "greedy", "group"}, help: "what is subtracted from a reward"},
	{name: "baseline_start", group: rl, scope: answerTask & withRL, needs: needsMoving, limits: between(-1e6, 1e6), help: "moving baseline before the first step"},
	{name: "baseline_decay", group: rl, scope: answerTask & withRL, needs: needsMoving, limits: bounds{min: 0, max: 1, openMin: true, openMax: true, set: true}, help: "of the moving baseline: b = decay * b + (1 - decay) * mean reward of the step"},
	{name: "advantage_scale", group: rl, scope: answerTask & withRL, needs: needsScale, allowed: []string{"auto", "none", "group", "batch"}, help: "standard deviation that advantages are divided by; auto = none for reinforce, group for grpo"},
	{name: "reduction", group: rl, scope: answerTask & withRL, needs: needsReduction, allowed: []string{"auto", "sequence", "token", "dr_grpo"}, help: "how tokens' losses are averaged: first in each answer, over all tokens (DAPO), or by the longest answer there may be (Dr. GRPO); auto = sequence for reinforce, token for grpo"},
	{name: "kl_coef", group: rl, scope: answerTask & withRL, needs: needsPenalty, limits: atLeast(0), help: "weight of the divergence from the reference policy; 0 = none"},
	{name: "kl_type", group: rl, scope: answerTask & withRL, needs: needsKL, allowed: []string{"k1", "k2", "k3"}, help: "estimator of the divergence"},
	{name: "kl_in_reward", group: rl, scope: answerTask & withRL, needs: needsKL, help: "take the divergence off the reward instead of adding it to the loss"},
	{name: "kl_target", group: rl, scope: answerTask & withRL, needs: needsKL, limits: atLeast(0), help: "adapt kl_coef so that an answer is this far from the reference, in nats; 0 = kl_coef stays"},
	{name: "kl_horizon", group: rl, scope: answerTask & withRL, needs: needsKLTarget, limits: above(0), help: "answers over which kl_coef adapts"},
	{name: "mask_overlong", group: rl, scope: answerTask & withRL, needs: needsOnPolicy, help: "learn nothing from answers that were cut off"},
	{name: "overlong_buffer", group: rl, scope: answerTask & withRL, needs: needsOnPolicy, limits: between(0, 1<<20), help: "tokens before max_new_tokens over which a penalty of the reward grows from 0 to 1; 0 = none"},
	{name: "dynamic_sampling", group: rl, scope: answerTask & withRL, needs: needsOnPolicy, help: "replace exercises whose answers all earn the same"},
	{name: "step_timeout", group: rl, scope: answerTask & withRL, needs: needsOnPolicy, limits: atLeast(0), help: "seconds that an exercise may take to answer; beyond, its sample is left out and counted; 0 = no limit"},
	{name: "async", group: rl, scope: answerTask & withRL, needs: needsOnPolicy, help: "sample for the next steps while exercises answer, and weigh what an older policy wrote by what the policy thinks of it"},
	{name: "max_staleness", group: rl, scope: answerTask & withRL, needs: needsAsync, limits: between(1, 64), help: "updates that the policy may be ahead of the one that wrote what it learns from"},
	{name: "eval_every", group: rl, scope: answerTask & withRL, limits: atLeast(1), help: "steps between evaluations; the best policy is kept"},
	{name: "eval_stepwise", group: rl, scope: problemTask & withRL, needs: needsReplay, help: "evaluate line by line instead of in one go"},
	{name: "eval_temperature", group: rl, scope: problemTask & withRL, needs: needsReplay, limits: atLeast(0), help: "of the answers that are evaluated; 0 = greedy"},
	{name: "eval_top_p", group: rl, scope: problemTask & withRL, needs: needsEvalSampling, limits: bounds{min: 0, max: 1, openMin: true, set: true}, help: "share of the probability that those answers are drawn from"},
	{name: "num_update_steps", group: rl, scope: problemTask & withRL, needs: needsReplay, limits: atLeast(1), help: "turns drawn from the buffer after each rollout, with replacement, and at most as many as it holds; an update takes rl_batch_size of them"},
	{name: "nll_coef", group: rl, scope: problemTask & withRL, needs: needsDistiller, limits: atLeast(0), help: "weight of the reference's log-probability in the loss that is logged; it has no gradient"},
	{name: "ref_update_every", group: rl, scope: problemTask & withRL, needs: needsOwnReference, limits: atLeast(0), help: "steps after which the reference becomes a copy of the policy; 0 = never"},
	{name: "reference_model", group: rl, scope: problemTask & withRL, needs: needsReference, arg: "DIR|NAME", help: "another model for the reference, with the same tokens; without it the policy as it was"},
	{name: "return_min", group: rl, scope: problemTask & withRL, needs: needsReplay, limits: bounds{min: math.Inf(-1), max: math.Inf(1), set: true}, help: "discounted returns are clamped from below at this"},
	{name: "return_max", group: rl, scope: problemTask & withRL, needs: needsReplay, limits: bounds{min: math.Inf(-1), max: math.Inf(1), set: true}, help: "and from above at this"},
	{name: "buffer_cache", group: rl, scope: problemTask & withRL, needs: needsReplay, arg: "FILE", help: "file of JSON lines for the buffer"},
	{name: "cache_buffer", group: rl, scope: problemTask & withRL, needs: needsBufferCache, help: "write the buffer to --buffer-cache after each rollout; after load_buffer to a file beside it, NAME_updated"},
	{name: "load_buffer", group: rl, scope: problemTask & withRL, needs: needsBufferCache, help: "start with what --buffer-cache holds"},
	{name: "judge", group: rl, scope: problemTask & withRL, arg: "DIR|NAME", help: "language model that rewards each step instead of the right answer alone"},
	{name: "judge_reward", group: rl, scope: problemTask & withRL, needs: needsJudge, allowed: []string{JudgeScore, JudgeAspects}, help: "what the judge is asked: for a score from 1 to 10, or three questions whose answer is yes or no"},
	{name: "judge_scale", group: rl, scope: problemTask & withRL, needs: needsScore, limits: above(0), help: "the expected score divided by 10 is multiplied by this"},
	{name: "rl_episodes", group: rl, scope: intentTask & withRL, limits: atLeast(1), help: "rollouts, each followed by an update; the best by validation is kept"},
	{name: "reward", group: rl, scope: intentTask & withRL, arg: "LIST", help: "accuracy, f1, calibration, expr:'...', each with =WEIGHT if wanted, joined by commas; or custom, with --reward-expr"},
	{name: "reward_expr", group: rl, scope: intentTask & withRL, arg: "EXPR", needs: needsCustom, help: "expression over correct, confidence, predicted, label, probs and entropy"},
	{name: "rl_learning_rate", group: rl, scope: (intentTask | answerTask) & withRL, limits: above(0), help: "rate of the adapter and the classification head"},
	{name: "rl_lr_scheduler_type", group: rl, scope: answerTask & withRL, allowed: []string{"cosine", "linear", "constant"}, help: "course of the rates of this stage, after their warm-up"},
	{name: "rl_warmup_ratio", group: rl, scope: answerTask & withRL, limits: between(0, 1), help: "share of this stage's steps over which the rates rise"},
	{name: "value_learning_rate", group: rl, scope: (intentTask | answerTask) & withRL, needs: needsPPO, limits: above(0), help: "rate of the value head, whose gradient does not reach the adapter"},
	{name: "rl_batch_size", group: rl, scope: (intentTask | problemTask) & withRL, needs: needsBuffer, limits: atLeast(1), help: "texts a minibatch; gsm8k and math: turns an update"},
	{name: "update_epochs", group: rl, scope: (intentTask | answerTask) & withRL, needs: needsClip, limits: atLeast(1), help: "passes over a rollout"},
	{name: "minibatches", group: rl, scope: answerTask & withRL, needs: needsClip, limits: atLeast(1), help: "updates of a pass over a rollout, each on its own part of the answers"},
	{name: "gamma", group: rl, scope: (intentTask | answerTask) & withRL, needs: needsDiscount, limits: between(0, 1), help: "discount of later rewards"},
	{name: "gae_lambda", group: rl, scope: (intentTask | answerTask) & withRL, needs: needsPPO, limits: between(0, 1), help: "lambda of generalised advantage estimation"},
	{name: "clip_low", group: rl, scope: (intentTask | answerTask) & withRL, needs: needsClip, limits: bounds{min: 0, max: 1, openMin: true, openMax: true, set: true}, help: "the probability ratio is clipped at 1 - clip_low"},
	{name: "clip_high", group: rl, scope: (intentTask | answerTask) & withRL, needs: needsClip, limits: above(0), help: "and at 1 + clip_high"},
	{name: "value_clip", group: rl, scope: (intentTask | answerTask) & withRL, needs: needsPPO, limits: atLeast(0), help: "clip the value's move to this; 0 = never"},
	{name: "value_coef", group: rl, scope: (intentTask | answerTask) & withRL, needs: needsPPO, limits: atLeast(0), help: "weight of the value loss"},
	{name: "entropy_coef", group: rl, scope: (intentTask | answerTask) & withRL, needs: needsOnPolicy, limits: atLeast(0), help: "weight of the entropy bonus"},
	{name: "target_kl", group: rl, scope: (intentTask | answerTask) & withRL, needs: needsClip, limits: atLeast(0), help: "stop a rollout's update at this approximate KL; 0 = never"},
	{name: "whiten_advantages", group: rl, scope: intentTask & withRL, help: "scale advantages to mean 0 and deviation 1"},
	{name: "rl_max_grad_norm", group: rl, scope: (intentTask | answerTask) & withRL, limits: atLeast(0), help: "clip the gradient's norm; 0 = never"},
	{name: "buffer_size", group: rl, scope: (intentTask | problemTask) & withRL, needs: needsBuffer, limits: atLeast(1), help: "most steps a rollout holds; gsm8k and math: most turns kept to learn from, the oldest go first"},
	{name: "rl_metric_for_best", group: rl, scope: intentTask & withRL, allowed: []string{"auto", "accuracy", "f1_macro", "f1_weighted", "brier", "ece"}, help: "validation figure that picks the best episode; auto = the one the reward is about"},

	{name: "save_steps", group: saving, scope: anyTask, limits: atLeast(1), incidental: true, help: "updates between checkpoints"},
	{name: "save_total_limit", group: saving, scope: anyTask, limits: atLeast(0), incidental: true, help: "newest checkpoints to keep; 0 = all"},
	{name: "logging_steps", group: saving, scope: anyTask, limits: atLeast(1), incidental: true, help: "updates between log lines"},
}

const notHere = "does not exist here; choose ppo, reinforce, rloo or grpo"

var byName = func() map[string]*key {
	m := make(map[string]*key, len(keys))
	config := reflect.TypeFor[Config]()
	for i := range keys {
		k := &keys[i]
		k.index, k.kind = i, config.Field(i).Type.Kind()
		m[k.name] = k
	}
	return m
}()

// find returns the key of a canonical name, or nil.
func find(name string) *key { return byName[name] }

// applies tells whether the key means anything in c.
func (k *key) applies(c *Config) bool {
	return k.scope.has(c.Task, c.Mode) && (k.needs == nil || k.needs(c) == "")
}

// set writes a value of the key's type into c.
func (k *key) set(c *Config, value any) { c.field(k).Set(reflect.ValueOf(value)) }
