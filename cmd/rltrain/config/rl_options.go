package config

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// The options of policies, rollouts, algorithms and runs, as those packages are to declare them.

// Optimisation is how the weights of a stage are updated.
type Optimisation struct {
	LearningRate    float64 `option:"learning_rate" default:"0.001" range:"(0,)" help:"peak rate of what is trained"`
	WeightDecay     float64 `option:"weight_decay" default:"0" range:"[0,)" help:"decoupled, as in AdamW"`
	LRSchedulerType string  `option:"lr_scheduler_type" default:"constant" allowed:"cosine,linear,constant" help:"course of the rates after warm-up"`
	WarmupRatio     float64 `option:"warmup_ratio" default:"0.02" range:"[0,1]" help:"share of the updates over which the rates rise"`
	WarmupSteps     int     `option:"warmup_steps" range:"[0,)" help:"updates over which the rates rise, instead of warmup_ratio; 0 = as that says"`
	MaxGradNorm     float64 `option:"max_grad_norm" default:"1" range:"[0,)" help:"clip the gradient's norm; 0 = never"`
}

// Epochs is how long a data set is imitated.
type Epochs struct {
	Epochs    int `option:"epochs" default:"1" range:"[1,)" help:"passes over the training rows"`
	MaxSteps  int `option:"max_steps" range:"[0,)" help:"updates, instead of epochs; 0 = as epochs say, or 1500 where exercises do not end"`
	BatchSize int `option:"batch_size" default:"32" range:"[1,)" help:"rows an update"`
}

// LoRA is the adapter of a new policy.
type LoRA struct {
	R       int      `option:"lora_r" default:"16" range:"[1,1024]" help:"rank of the adapter"`
	Alpha   int      `option:"lora_alpha" default:"32" range:"[1,)" help:"the adapter's output is scaled by lora_alpha / lora_r"`
	Dropout float64  `option:"lora_dropout" range:"[0,1)" help:"dropout on the adapter's input"`
	Targets []string `option:"lora_target_modules" help:"modules that get an adapter, by the end of their name; empty = the model family's"`
}

// LabelModel is how a classifier reads.
type LabelModel struct {
	MaxLength int `option:"max_length" default:"512" range:"[3,)" help:"cut texts at this many tokens, special tokens included"`
}

// NewLabelModel is a classifier that begins untrained.
type NewLabelModel struct {
	LoRA    LoRA   `needs:"!pretrained_model"`
	Pooling string `option:"pooling" default:"auto" allowed:"auto,mean,family" needs:"!pretrained_model" help:"how a text becomes one vector: mean of its tokens, or the family's own pooler; auto = as the model's folder says"`
}

// TokenModel is a language model.
type TokenModel struct {
	DType                 string `option:"dtype" default:"auto" allowed:"auto,fp32,bf16,fp16" help:"how frozen weights are kept; computing is in fp32; auto = as stored"`
	GradientCheckpointing bool   `option:"gradient_checkpointing" help:"keep each block's input only and compute the rest again: less memory, a third more time"`
	Tuning                string `option:"tuning" default:"auto" allowed:"auto,lora,full" needs:"!pretrained_model" help:"what is trained: an adapter, or all weights; auto = all weights of the model tiny, an adapter on any other"`
	LoRA                  LoRA   `needs:"!pretrained_model,tuning=lora or tuning=auto and model!=tiny"`
	Layers                int    `option:"tiny_layers" default:"4" range:"[1,64]" needs:"!pretrained_model,model=tiny" help:"layers of the model tiny"`
	Hidden                int    `option:"tiny_hidden" default:"128" range:"[32,4096]" needs:"!pretrained_model,model=tiny" help:"width of the model tiny, a multiple of 32"`
}

// Check refuses a width that is not whole heads.
func (o *TokenModel) Check() error {
	if o.Hidden%32 != 0 {
		return wrong("tiny_hidden", "%d is not a multiple of 32, the width of a head", o.Hidden)
	}
	return nil
}

// LabelImitation is supervised training of a classifier.
type LabelImitation struct {
	HeadLearningRate float64 `option:"head_learning_rate" default:"0.001" range:"(0,)" help:"peak rate of the classification head"`
	FeatureAlignment float64 `option:"feature_alignment" range:"[0,)" help:"weight of the L2 penalty on the adapter's weights; 0 = none"`
	Metric           string  `option:"metric_for_best_model" default:"f1_weighted" allowed:"f1_weighted,f1_macro,accuracy,loss" help:"validation figure that picks the best epoch"`
}

// TextImitation is how a data set of texts is imitated.
type TextImitation struct {
	MaxLength       int     `option:"max_length" default:"1024" range:"[0,)" help:"cut texts at this many tokens; 0 = as many as the model reads"`
	ValidationShare float64 `option:"validation_share" default:"0.05" range:"[0,1)" help:"share of the rows kept for validation, where the data has no split for it"`
	Packing         bool    `option:"packing" needs:"max_length" help:"count a batch in bins of max_length tokens, filled with as many whole examples as fit, instead of examples"`
	CompletionOnly  bool    `option:"completion_only_loss" default:"true" help:"of prompt and completion train the completion only"`
	AssistantOnly   bool    `option:"assistant_only_loss" help:"of messages train what the assistant says only; needs a template that marks it"`
}

// Warmup is how long worked solutions are imitated.
type Warmup struct {
	Until      float64 `option:"warmup_until" default:"0.5" range:"[0,1]" needs:"warmup_check_every>0" help:"stop at the first check at which this share of held-out answers is right"`
	CheckEvery int     `option:"warmup_check_every" default:"50" range:"[0,)" help:"updates between checks; 0 = there are none"`
}

// Answers is how exercises are answered and judged.
type Answers struct {
	MaxNewTokens int `option:"max_new_tokens" default:"160" range:"[1,1048576]" help:"tokens of an answer at most, of a line see max_line_tokens"`
	EvalSamples  int `option:"eval_samples" default:"200" range:"[1,1048576]" help:"held-out exercises of an evaluation, answered greedily"`
}

// PromptForm is of tasks that have two.
type PromptForm struct {
	Form string `option:"prompt_form" default:"auto" allowed:"auto,short,chat" help:"how an exercise is shown: in short, for small models over characters, or as a conversation with an example; auto = short where the model, as tiny, has no chat template"`
}

// LabelRollouts is what a classifier learns from.
type LabelRollouts struct {
	Episodes   int    `option:"rl_episodes" default:"3" range:"[1,)" help:"rollouts, each followed by an update; the best by validation is kept"`
	BufferSize int    `option:"buffer_size" default:"2000" range:"[1,)" help:"most texts a rollout holds"`
	BatchSize  int    `option:"rl_batch_size" default:"16" range:"[1,)" help:"texts a minibatch"`
	Reward     string `option:"reward" default:"accuracy" arg:"LIST" help:"accuracy, f1, calibration, expr:'...', each with =WEIGHT if wanted, joined by commas; or custom, with --reward-expr"`
	RewardExpr string `option:"reward_expr" arg:"EXPR" needs:"reward=custom" help:"expression over correct, confidence, predicted, label, probs and entropy"`
	Metric     string `option:"rl_metric_for_best" default:"auto" allowed:"auto,accuracy,f1_macro,f1_weighted,brier,ece" help:"validation figure that picks the best episode; auto = the one the reward is about"`
}

const customReward = "custom"

// RewardSpec is the list of rewards in the syntax of intent.ParseRewards: reward, or for custom the expression of
// reward_expr. Complaints about it belong to the key that it returns.
func (o *LabelRollouts) RewardSpec() (spec, key string) {
	if o.Reward != customReward {
		return o.Reward, "reward"
	}
	quote := "'"
	if strings.Contains(o.RewardExpr, quote) {
		quote = `"`
	}
	return "expr:" + quote + o.RewardExpr + quote, "reward_expr"
}

// Check refuses what goes against each other.
func (o *LabelRollouts) Check() error {
	if o.Reward == customReward && o.RewardExpr == "" {
		return wrong("reward", "custom needs --reward-expr, an expression such as 'correct - 0.5*(1-correct)*confidence'")
	}
	if strings.Contains(o.RewardExpr, "'") && strings.Contains(o.RewardExpr, `"`) {
		return wrong("reward_expr", "has quotes of both kinds; write one kind")
	}
	if o.BufferSize < o.BatchSize {
		return fmt.Errorf("buffer_size %d is less than rl_batch_size %d: a minibatch would never fill", o.BufferSize, o.BatchSize)
	}
	return nil
}

// Rollouts is how a language model plays the episodes that it learns from.
type Rollouts struct {
	Steps       int     `option:"num_steps" default:"30" range:"[1,)" help:"rollouts, each followed by an update"`
	Prompts     int     `option:"prompts_per_step" default:"32" range:"[1,)" help:"exercises of a rollout"`
	Temperature float64 `option:"temperature" default:"1" range:"(0,)" help:"of the answers that are learned from"`
	EvalEvery   int     `option:"eval_every" default:"5" range:"[1,)" help:"steps between evaluations; the best policy is kept"`
}

// FreshRollouts are learnt from once, by the policy that wrote them.
type FreshRollouts struct {
	Samples         int     `option:"samples_per_prompt" default:"8" range:"[1,)" help:"answers to each exercise"`
	Generators      int     `option:"num_generators" default:"2" range:"[1,1024]" help:"clients that share the work of a rollout; its results do not depend on it"`
	MaskOverlong    bool    `option:"mask_overlong" help:"learn nothing from answers that were cut off"`
	OverlongBuffer  int     `option:"overlong_buffer" range:"[0,1048576]" help:"tokens before max_new_tokens over which a penalty of the reward grows from 0 to 1; 0 = none"`
	DynamicSampling bool    `option:"dynamic_sampling" help:"replace exercises whose answers all earn the same"`
	StepTimeout     float64 `option:"step_timeout" range:"0|[0.001,1e6]" help:"seconds that an exercise may take to answer; beyond, its sample is left out and counted; 0 = no limit"`
	Async           bool    `option:"async" help:"sample for the next steps while exercises answer, and weigh what an older policy wrote by what the policy thinks of it"`
	MaxStaleness    int     `option:"max_staleness" default:"1" range:"[1,64]" needs:"async" help:"updates that the policy may be ahead of the one that wrote what it learns from"`
	Verbose         bool    `option:"verbose" incidental:"true" help:"print the answers of each step"`
}

// Lines is of tasks whose solutions have lines.
type Lines struct {
	StepMode  string `option:"step_mode" default:"whole" allowed:"line,whole" help:"what an action is: a line of the solution, or all of it"`
	MaxTokens int    `option:"max_line_tokens" default:"64" range:"[1,1048576]" needs:"step_mode=line or eval_stepwise" help:"tokens of a line at most"`
	MaxLines  int    `option:"max_trajectory_steps" default:"10" range:"[1,1048576]" needs:"step_mode=line or eval_stepwise" help:"lines of a solution at most"`
}

// Judge is the model that rewards, of tasks that have rewards for it.
type Judge struct {
	Model  string `option:"judge" arg:"DIR|NAME" help:"language model that rewards each step instead of the right answer alone"`
	Reward string `option:"judge_reward" needs:"judge" help:"what the judge is asked for"`
}

// Reference is how a policy is held to what it was.
type Reference struct {
	KLCoef     float64 `option:"kl_coef" range:"[0,)" help:"weight of the divergence from the reference policy; 0 = none"`
	KLType     string  `option:"kl_type" default:"k3" allowed:"k1,k2,k3" needs:"kl_coef>0" help:"estimator of the divergence"`
	KLInReward bool    `option:"kl_in_reward" needs:"kl_coef>0" help:"take the divergence off the reward instead of adding it to the loss"`
	KLTarget   float64 `option:"kl_target" range:"[0,)" needs:"kl_coef>0" help:"adapt kl_coef so that an answer is this far from the reference, in nats; 0 = kl_coef stays"`
	KLHorizon  float64 `option:"kl_horizon" default:"10000" range:"(0,)" needs:"kl_target>0" help:"answers over which kl_coef adapts"`
}

// Exploration keeps a policy from certainty.
type Exploration struct {
	EntropyCoef float64 `option:"entropy_coef" range:"[0,)" help:"weight of the entropy bonus"`
}

// Clip is of losses with a ratio of probabilities, which allow several updates on a rollout.
type Clip struct {
	UpdateEpochs int     `option:"update_epochs" default:"1" range:"[1,)" help:"passes over a rollout"`
	ClipLow      float64 `option:"clip_low" default:"0.2" range:"(0,1)" help:"the probability ratio is clipped at 1 - clip_low"`
	ClipHigh     float64 `option:"clip_high" default:"0.2" range:"(0,)" help:"and at 1 + clip_high"`
	TargetKL     float64 `option:"target_kl" range:"[0,)" help:"stop a rollout's update at this approximate KL; 0 = never"`
}

// Minibatches divides a rollout of answers.
type Minibatches struct {
	Minibatches int `option:"minibatches" default:"1" range:"[1,)" help:"updates of a pass over a rollout, each on its own part of the answers"`
}

// Scale and Reduction are choices that REINFORCE and GRPO leave.
type Scale struct {
	AdvantageScale string `option:"advantage_scale" default:"auto" allowed:"auto,none,group,batch" help:"standard deviation that advantages are divided by; auto = none for reinforce, group for grpo"`
	Reduction      string `option:"reduction" default:"auto" allowed:"auto,sequence,token,dr_grpo" help:"how tokens' losses are averaged: first in each answer, over all tokens (DAPO), or by the longest answer there may be (Dr. GRPO); auto = sequence for reinforce, token for grpo"`
}

// Reinforce is REINFORCE of what was just sampled.
type Reinforce struct {
	Baseline string  `option:"baseline" default:"group" allowed:"none,moving,batch,greedy,group" help:"what is subtracted from a reward"`
	Start    float64 `option:"baseline_start" default:"0.5" range:"[-1e6,1e6]" needs:"baseline=moving" help:"moving baseline before the first step"`
	Decay    float64 `option:"baseline_decay" default:"0.9" range:"(0,1)" needs:"baseline=moving" help:"of the moving baseline: b = decay * b + (1 - decay) * mean reward of the step"`
	Scale
	Exploration
	Reference
}

// RLOO compares each answer with the others to its exercise.
type RLOO struct {
	Clip
	Minibatches
	Exploration
	Reference
}

// GRPO compares each answer with all to its exercise.
type GRPO struct {
	Clip
	Minibatches
	Scale
	Exploration
	Reference
}

// Values is the value head of PPO.
type Values struct {
	LearningRate float64 `option:"value_learning_rate" default:"0.001" range:"(0,)" help:"rate of the value head, whose gradient does not reach the adapter"`
	Coef         float64 `option:"value_coef" default:"0.5" range:"[0,)" help:"weight of the value loss"`
	Clip         float64 `option:"value_clip" default:"0.2" range:"[0,)" help:"clip the value's move to this; 0 = never"`
}

// Discount is of episodes with several actions.
type Discount struct {
	Gamma  float64 `option:"gamma" default:"1" range:"[0,1]" help:"discount of later rewards"`
	Lambda float64 `option:"gae_lambda" default:"0.95" range:"[0,1]" help:"lambda of generalised advantage estimation"`
}

// PPO learns a value for each token.
type PPO struct {
	Clip
	Minibatches
	Values
	Discount
	Exploration
	Reference
}

// LabelPPO is PPO where an episode has one action.
type LabelPPO struct {
	Clip
	Values
	Exploration
	Whiten bool `option:"whiten_advantages" default:"true" help:"scale advantages to mean 0 and deviation 1"`
}

// ReinforceLoss chooses between fresh answers and a replay buffer.
type ReinforceLoss struct {
	Loss string `option:"reinforce_loss" default:"on_policy" allowed:"stable,reinforce,distiller,on_policy" help:"loss of algorithm reinforce. on_policy: of what was just sampled, with --baseline. The others replay turns of a buffer: reinforce, stable with a penalty for leaving the reference, distiller which logs it only"`
}

// Replay is REINFORCE of single turns out of a buffer.
type Replay struct {
	UpdateSteps     int     `option:"num_update_steps" default:"256" range:"[1,)" help:"turns drawn from the buffer after each rollout, with replacement, and at most as many as it holds; an update takes rl_batch_size of them"`
	BatchSize       int     `option:"rl_batch_size" default:"32" range:"[1,)" help:"turns an update"`
	Gamma           float64 `option:"gamma" default:"0.99" range:"[0,1]" help:"discount of later rewards"`
	ReturnMin       float64 `option:"return_min" default:"0" range:"(,)" help:"discounted returns are clamped from below at this"`
	ReturnMax       float64 `option:"return_max" default:"10" range:"(,)" help:"and from above at this"`
	KLCoef          float64 `option:"kl_coef" default:"0.25" range:"[0,)" needs:"reinforce_loss=stable" help:"weight of the divergence from the reference policy; 0 = none"`
	NLLCoef         float64 `option:"nll_coef" default:"0.25" range:"[0,)" needs:"reinforce_loss=distiller" help:"weight of the reference's log-probability in the loss that is logged; it has no gradient"`
	ReferenceModel  string  `option:"reference_model" arg:"DIR|NAME" needs:"reinforce_loss=stable|distiller" help:"another model for the reference, with the same tokens; without it the policy as it was"`
	RefUpdateEvery  int     `option:"ref_update_every" default:"2" range:"[0,)" needs:"reinforce_loss=stable|distiller,!reference_model or reference_model=@model" help:"steps after which the reference becomes a copy of the policy; 0 = never"`
	BufferSize      int     `option:"buffer_size" default:"100000" range:"[1,)" help:"most turns kept to learn from, the oldest go first"`
	BufferCache     string  `option:"buffer_cache" arg:"FILE" help:"file of JSON lines for the buffer"`
	CacheBuffer     bool    `option:"cache_buffer" needs:"buffer_cache" help:"write the buffer to --buffer-cache after each rollout; after load_buffer to a file beside it, NAME_updated"`
	LoadBuffer      bool    `option:"load_buffer" needs:"buffer_cache" help:"start with what --buffer-cache holds"`
	EvalTemperature float64 `option:"eval_temperature" range:"[0,)" help:"of the answers that are evaluated; 0 = greedy"`
	EvalTopP        float64 `option:"eval_top_p" default:"0.9" range:"(0,1]" needs:"eval_temperature>0" help:"share of the probability that those answers are drawn from"`
}

// Check refuses what goes against each other.
func (o *Replay) Check() error {
	if o.BatchSize > o.UpdateSteps {
		return fmt.Errorf("rl_batch_size %d is more than num_update_steps %d: no update would have as many turns", o.BatchSize, o.UpdateSteps)
	}
	if o.ReturnMin > o.ReturnMax {
		return wrong("return_min", "%v is more than return_max, %v", o.ReturnMin, o.ReturnMax)
	}
	if slices.Contains([]string{".pkl", ".pickle"}, filepath.Ext(o.BufferCache)) {
		return wrong("buffer_cache", "%s is the name of a Python pickle, and reading one runs code; the buffer is kept as JSON lines: name it .jsonl", o.BufferCache)
	}
	return nil
}

// StepwiseEval is of tasks whose solutions have lines.
type StepwiseEval struct {
	Stepwise bool `option:"eval_stepwise" help:"evaluate line by line instead of in one go"`
}

// Saving is what a run leaves behind on its way.
type Saving struct {
	SaveSteps    int `option:"save_steps" default:"50" range:"[1,)" incidental:"true" help:"updates between checkpoints"`
	Keep         int `option:"save_total_limit" default:"2" range:"[0,)" incidental:"true" help:"newest checkpoints to keep; 0 = all"`
	LoggingSteps int `option:"logging_steps" default:"5" range:"[1,)" incidental:"true" help:"updates between log lines"`
}

// Algorithm is a way of learning from rewards, as options see it.
type Algorithm struct {
	Name   string
	Labels func() any // its options for a classifier; nil where it has no such form
	Text   func() any // and for a language model
}

// Algorithms are those that the program has.
var algorithms = []Algorithm{
	{Name: "grpo", Text: func() any { return &GRPO{} }},
	{Name: "ppo", Labels: func() any { return &LabelPPO{} }, Text: func() any { return &PPO{} }},
	{Name: "reinforce", Text: func() any { return &Reinforce{} }},
	{Name: "rloo", Text: func() any { return &RLOO{} }},
}
