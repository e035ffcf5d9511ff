package config

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/decisions"
	"github.com/rltrain/rltrain/rl/judge"
	"github.com/rltrain/rltrain/rl/remote"
	"github.com/rltrain/rltrain/rl/remote/tinker"
	"github.com/rltrain/rltrain/rl/rollout"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/rl/train"
)

// Start is what a run of one stage may begin with.
type Start struct {
	PretrainedModel string `option:"pretrained_model" arg:"DIR|NAME" common:"true" help:"trained policy to start from: a folder or a name on the hub"`
}

// Adapter is the adapter of a new policy.
type Adapter struct {
	R       int      `option:"lora_r" default:"16" range:"[1,1024]" help:"rank of the adapter"`
	Alpha   int      `option:"lora_alpha" default:"32" range:"[1,)" help:"scale the adapter's output by lora_alpha / lora_r"`
	RSLoRA  bool     `option:"use_rslora" help:"scale the adapter's output by lora_alpha / √lora_r instead"`
	Init    string   `option:"init_lora_weights" default:"kaiming" allowed:"kaiming,orthogonal,pissa" help:"start of the adapter, which changes no output at first: kaiming = A random, B zero; orthogonal = both random with a product of zero, as PEFT has it, for an even lora_r; pissa = the largest singular values of each weight, which the frozen weights then lack (language models)"`
	Targets []string `option:"lora_target_modules" help:"modules that get an adapter, by the end of their name; all-linear = every linear layer except the output layer; empty = the model family's"`
}

// LoRA is an adapter with dropout.
type LoRA struct {
	Adapter
	Dropout float64 `option:"lora_dropout" range:"[0,1)" help:"dropout on the adapter's input"`
}

// TokenLoRA is the adapter of a language model, and what is trained beside it.
type TokenLoRA struct {
	LoRA
	Parameters []string `option:"lora_target_parameters" needs:"!use_dora" help:"tensors of experts that get an adapter, by the end of their name: mlp.experts.gate_up_proj,mlp.experts.down_proj"`
	DoRA       bool     `option:"use_dora" needs:"init_lora_weights!=pissa" help:"train the norm of each row of an adapted weight beside its direction (DoRA)"`
	Full       []string `option:"lora_modules_to_save" help:"modules to train in full, in fp32, and to save beside the adapter, by the end of their name: lm_head,embed_tokens"`
}

// LabelModel is how a classifier reads.
type LabelModel struct {
	MaxLength int    `option:"max_length" default:"512" range:"[3,)" needs:"!pretrained_model" help:"truncate texts to this many tokens, special tokens included"`
	DType     string `option:"dtype" default:"auto" allowed:"auto,fp32,bf16,fp16" help:"type of frozen weights; auto = bf16 on a GPU that multiplies in it, else fp32 for an encoder, as stored for a language model"`
}

// Kinds of policies of tasks that have both.
const (
	policyHead     = "head"
	policyGenerate = "generate"
	policyScore    = "score"
)

// PolicyKind is of tasks that a classifier can learn, or a language model.
type PolicyKind struct {
	Kind string `option:"policy" default:"head" allowed:"head,generate,score" help:"how a label is chosen: head = a classification head on an encoder or a language model, generate = a language model generates it, score = a language model scores the text of each label; without it generate if --model is given, else head"`
}

// Scores tells whether labels are scored by their text.
func (k *PolicyKind) Scores() bool { return k != nil && k.Kind == policyScore }

// NewLabelModel is a classifier that begins untrained.
type NewLabelModel struct {
	LoRA    LoRA   `needs:"!pretrained_model"`
	Pooling string `option:"pooling" default:"auto" allowed:"auto,mean,family" needs:"!pretrained_model" help:"how an encoder's text becomes one vector: mean of its tokens, or the family's own pooler; auto = as the model's folder says; a language model always uses its last token"`
}

// FrozenWeights says how a language model keeps the weights that are not trained.
type FrozenWeights struct {
	DType    string `option:"dtype" default:"auto" allowed:"auto,fp32,bf16,fp16" help:"type of frozen weights; auto = bf16 on a GPU that multiplies in it, else fp32 for an encoder, as stored for a language model"`
	Quantize string `option:"quantize" default:"none" allowed:"none,nf4,int8" help:"quantize a language model's frozen linear weights on loading and train the adapter on top (QLoRA): nf4 = 4 bits, int8 = 8 bits; CPU only"`
}

// Check refuses a dtype of weights that are quantized.
func (o *FrozenWeights) Check() error {
	if o.Quantize != "none" && o.DType != "auto" {
		return envs.OptionErrorf("quantize", "%s decides how weights are kept; drop dtype=%s", o.Quantize, o.DType)
	}
	return nil
}

// WeightType is how the weights are kept, as policy.Config.DType has it; "" = as the device prefers.
func (o *FrozenWeights) WeightType() string {
	switch {
	case o.Quantize != "none":
		return o.Quantize
	case o.DType != "auto":
		return o.DType
	}
	return ""
}

// TokenModel is a language model.
type TokenModel struct {
	FrozenWeights
	Spoken
	tinker.Options
	train.Checkpointing
	Tuning string    `option:"tuning" default:"auto" allowed:"auto,lora,full" needs:"!pretrained_model" help:"weights to train: lora = an adapter, full = all; auto = full for model tiny, else lora"`
	LoRA   TokenLoRA `needs:"!pretrained_model,tuning=lora or tuning=auto and model!=tiny"`
	Layers int       `option:"tiny_layers" default:"4" range:"[1,64]" needs:"!pretrained_model,model=tiny" help:"layers of model tiny"`
	Hidden int       `option:"tiny_hidden" default:"128" range:"[32,4096]" needs:"!pretrained_model,model=tiny" help:"hidden size of model tiny, a multiple of 32"`
}

// Check refuses a width that is not whole heads.
func (o *TokenModel) Check() error {
	if o.Hidden%32 != 0 {
		return envs.OptionErrorf("tiny_hidden", "%d is not a multiple of 32", o.Hidden)
	}
	if err := errors.Join(o.Conversations.Check(), o.Options.Check()); err != nil {
		return err
	}
	return o.FrozenWeights.Check()
}

// SupervisedStage is the supervised stage.
type SupervisedStage struct {
	Epochs             int `option:"epochs" default:"1" range:"[1,)" extends:"true" common:"true" help:"passes over the training rows"`
	MaxSteps           int `option:"max_steps" range:"[0,)" extends:"true" common:"true" help:"updates, instead of epochs (0 = by epochs, or 1500 for endless problems)"`
	BatchSize          int `option:"batch_size" default:"32" range:"[1,1048576]" common:"true" help:"batch size, in rows"`
	train.Optimisation `defaults:"learning_rate=0.001,lr_scheduler_type=constant_with_warmup,warmup_ratio=0.02"`
	train.Stopping
}

// ClassifierSFT is supervised training of a classifier.
type ClassifierSFT struct {
	HeadLearningRate float64 `option:"head_learning_rate" default:"0.001" range:"(0,)" help:"peak learning rate of the classification head"`
	Metric           string  `option:"metric_for_best_model" default:"f1_weighted" allowed:"f1_weighted,f1_macro,accuracy,loss" help:"validation metric that selects the best epoch"`
	algo.SFT
}

// DecisionSFT is supervised training of a decision model.
type DecisionSFT struct {
	HeadLearningRate float64 `option:"head_learning_rate" default:"0.001" range:"(0,)" help:"peak learning rate of the classification head"`
	Metric           string  `option:"metric_for_best_model" default:"loss" allowed:"loss,accuracy,brier,ece" help:"validation metric that selects the best epoch"`
	decisions.LossOptions
}

// LanguageModelSFT is how a data set of texts is imitated.
type LanguageModelSFT struct {
	MaxLength       int     `option:"max_length" default:"1024" range:"[0,)" help:"truncate texts to this many tokens (0 = the model's limit)"`
	ValidationShare float64 `option:"validation_share" default:"0.05" range:"[0,1)" help:"fraction of the rows to hold out for validation if the data has no validation split"`
	EvalEvery       int     `option:"eval_every" range:"[0,)" help:"updates between evaluations (0 = after each epoch)"`
	Loss            string  `option:"sft_loss" default:"nll" allowed:"nll,dft" help:"training loss: nll = the negative log-likelihood, dft = the same with each token weighted by its probability (dynamic fine-tuning); evaluations always use nll"`
	algo.Smoothing  `needs:"sft_loss=nll"`
	Noise           float64 `option:"neftune_noise_alpha" default:"0" range:"[0,)" help:"uniform noise on embeddings in training, at most this over the square root of the elements of a row's embeddings (NEFTune; 5 is common; 0 = off)"`
	Curriculum      string  `option:"curriculum_column" needs:"!packing" help:"column with a number: each epoch takes the rows in ascending order of it, equal ones shuffled"`
	Packing         bool    `option:"packing" needs:"max_length" help:"fill each row of a batch with complete examples up to max_length tokens"`
	CompletionOnly  bool    `option:"completion_only_loss" default:"true" help:"train only on the completion of a row with prompt and completion"`
	Metric          string  `option:"metric_for_best_model" default:"loss" allowed:"loss,mean_token_accuracy" help:"validation metric that selects the best epoch"`
	AssistantOnly   bool    `option:"assistant_only_loss" default:"true" help:"train only on the assistant's messages of a conversation"`
	ShowExample     bool    `option:"show_example" percommand:"true" incidental:"true" help:"print the first training example with the trained tokens in colour, or between « and » where the output is no terminal"`
}

// Warmup is how long worked solutions are imitated.
type Warmup struct {
	Until      float64 `option:"warmup_until" default:"0.5" range:"[0,1]" needs:"warmup_check_every>0" help:"stop at the first check at which this fraction of the sampled answers to held-out problems of each kind is correct"`
	CheckEvery int     `option:"warmup_check_every" default:"50" range:"[0,)" help:"updates between checks (0 = none)"`
}

// Answers is how exercises are answered and judged.
type Answers struct {
	MaxNewTokens int `option:"max_new_tokens" default:"160" range:"[1,1048576]" common:"true" help:"longest completion, in tokens; for a line see max_line_tokens"`
	MaxThinking  int `option:"max_thinking_tokens" default:"0" range:"[0,1048576]" help:"longest thought of a message, in tokens; at the limit rltrain appends the end tag, which is not trained on (0 = no limit)"`
	EvalSamples  int `option:"eval_samples" default:"200" range:"[1,1048576]" help:"held-out problems per evaluation"`
}

// PromptForm is of tasks that have two.
type PromptForm struct {
	Form string `option:"prompt_form" default:"auto" allowed:"auto,short,chat" help:"form of a problem: short = plain text for character-level models, chat = a conversation with an example; auto = chat if the model has a chat template, else short"`
}

// Lines is of tasks whose solutions have lines.
type Lines struct {
	StepMode  string `option:"step_mode" default:"whole" allowed:"line,whole" help:"what one action is: a line of the solution, or the whole solution"`
	MaxTokens int    `option:"max_line_tokens" default:"64" range:"[1,1048576]" needs:"step_mode=line or eval_stepwise" help:"longest line, in tokens"`
	MaxLines  int    `option:"max_trajectory_steps" default:"10" range:"[1,1048576]" needs:"step_mode=line or eval_stepwise" help:"most lines of a solution"`
}

// TextRewards is what a language model's answers earn.
type TextRewards struct {
	Reward string `option:"reward" arg:"LIST" common:"true" help:"rewards in place of the task's own, NAME or NAME=WEIGHT, joined by commas"`
	RewardTime
}

// RewardTime is the time limit of rewards.
type RewardTime struct {
	Timeout float64 `option:"reward_timeout" default:"60" range:"[0.001,86400]" arg:"SECONDS" incidental:"true" help:"seconds that a reward may take for one completion; a program gets them for each question. A sample without a reward in time is left out"`
}

// Limit is the limit of one score.
func (o RewardTime) Limit() time.Duration { return time.Duration(o.Timeout * float64(time.Second)) }

// Judge is the model that rewards ask.
type Judge struct {
	Model string `option:"judge" arg:"DIR|NAME" help:"language model as a judge, for rewards that ask one; with judge_url the server's name of it"`
	judge.Options
}

// PreferenceData is how preferences are read.
type PreferenceData struct {
	Epochs          int     `option:"epochs" default:"1" range:"[1,)" extends:"true" common:"true" help:"passes over the training rows"`
	MaxSteps        int     `option:"max_steps" range:"[0,)" extends:"true" common:"true" help:"updates, instead of epochs (0 = by epochs)"`
	BatchSize       int     `option:"batch_size" default:"32" range:"[1,1048576]" common:"true" help:"batch size, in rows"`
	MaxLength       int     `option:"max_length" default:"1024" range:"[0,)" help:"longest prompt with completion, in tokens (0 = the model's limit)"`
	ValidationShare float64 `option:"validation_share" default:"0.05" range:"[0,1)" help:"fraction of the rows to hold out for validation if the data has no validation split"`
	EvalEvery       int     `option:"eval_every" range:"[0,)" help:"updates between evaluations (0 = after each epoch)"`
}

// PairLearning is how a policy learns from preferences.
type PairLearning struct {
	PreferenceData
	Precompute          bool `option:"precompute_ref" needs:"!sync_ref_model" help:"compute all log-probabilities of the reference before the first update"`
	train.ReferenceSync `needs:"reference"`
}

// RewardTraining is how a reward model is trained.
type RewardTraining struct {
	PreferenceData
	train.Optimisation
	HeadLearningRate float64 `option:"head_learning_rate" default:"0.001" range:"(0,)" help:"peak learning rate of the score layer"`
	Adapter
	Pooling string `option:"pooling" default:"auto" allowed:"auto,mean,family" help:"how an encoder's text becomes one vector: mean of its tokens, or the family's own pooler; auto = as the model's folder says; a language model always uses its last token"`
	FrozenWeights
	Conversations
	train.Checkpointing
}

// Check refuses what goes against each other.
func (o *RewardTraining) Check() error {
	if err := o.Conversations.Check(); err != nil {
		return err
	}
	return o.FrozenWeights.Check()
}

// RL is the stage of reinforcement learning.
type RL struct {
	Algorithm    string             `option:"algorithm" common:"true" help:"reinforcement learning algorithm"`
	Optimisation train.Optimisation `prefix:"rl_" defaults:"lr_scheduler_type=constant_with_warmup,warmup_ratio=0.1"`
	Stopping     train.Stopping     `prefix:"rl_"`
}

// LabelRollouts is what a classifier learns from.
type LabelRollouts struct {
	Episodes  int     `option:"rl_episodes" default:"3" range:"[1,)" extends:"true" common:"true" help:"rollouts, each followed by updates; the best weights by validation are kept"`
	EvalEvery int     `option:"eval_every" default:"1" range:"[0,)" common:"true" help:"rollouts between evaluations; the best weights are kept (0 = evaluate before the first rollout and after the last)"`
	Share     float64 `option:"rl_share" default:"0" range:"[0,0.9]" needs:"mode=supervised_then_rl" help:"fraction of each label's training rows that only the RL stage sees (0 = both stages see all rows)"`
	rollout.LabelOptions
	train.Signal
	Reward     string `option:"reward" default:"accuracy" arg:"LIST" common:"true" help:"rewards, NAME or NAME=WEIGHT, joined by commas; or custom, the expression of --reward-expr"`
	RewardExpr string `option:"reward_expr" arg:"EXPR" needs:"reward=custom" help:"expression over correct, confidence, predicted, label, probs and entropy"`
	RewardTime
	Metric string `option:"rl_metric_for_best" default:"auto" allowed:"auto,accuracy,f1_macro,f1_weighted,brier,ece" help:"validation metric that selects the best weights; auto = the one that matches the reward"`
}

const customReward = "custom"

// RewardSpec is the list of rewards: reward, or for custom the expression of reward_expr. Complaints about it belong to
// the key that it returns.
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
	switch {
	case o.Reward == customReward && o.RewardExpr == "":
		return envs.OptionErrorf("reward", "custom needs --reward-expr, such as 'correct - 0.5*(1-correct)*confidence'")
	case strings.Contains(o.RewardExpr, "'") && strings.Contains(o.RewardExpr, `"`):
		return envs.OptionErrorf("reward_expr", "mixes single and double quotes; use one kind")
	case o.BufferSize < o.Samples:
		return envs.OptionErrorf("buffer_size", "%d is less than samples_per_prompt %d: it holds no text with all its samples", o.BufferSize, o.Samples)
	case o.BufferSize < o.BatchSize:
		return envs.OptionErrorf("buffer_size", "%d is less than rl_batch_size %d: no batch would fill", o.BufferSize, o.BatchSize)
	}
	return nil
}

// Rounds is how often a language model is improved and judged.
type Rounds struct {
	Steps     int    `option:"num_steps" default:"30" range:"[1,)" extends:"true" common:"true" help:"steps: a rollout and its updates"`
	EvalEvery int    `option:"eval_every" default:"5" range:"[0,)" common:"true" help:"steps between evaluations; the best weights are kept (0 = evaluate before the first step and after the last)"`
	Metric    string `option:"rl_metric_for_best" default:"auto" help:"evaluation metric that selects the best weights: accuracy, format_rate, reward or accuracy/KIND; auto = reward with --reward, else accuracy"`
	train.Signal
	FreshSamples int `option:"fresh_samples" default:"200" range:"[0,1048576]" help:"unseen test problems for a final evaluation (0 = none)"`
}

// SourceKind chooses a source of one's own program.
type SourceKind struct {
	Name string `option:"source" help:"where samples come from"`
}

// FreshRollouts are learnt from once, by the policy that wrote them.
type FreshRollouts struct {
	Epochs int `option:"rl_epochs" range:"[0,)" extends:"true" help:"passes over the training prompts, instead of num_steps; the last incomplete step of a pass is left out (0 = by num_steps)"`
	rollout.Options
	Remote  remote.Options
	Verbose bool `option:"verbose" incidental:"true" help:"print the completions of each step"`
}

// Minibatches divides a rollout of answers.
type Minibatches struct {
	Minibatches int `option:"minibatches" default:"1" range:"[1,)" help:"updates per pass over a rollout, each on its own part of the completions"`
}

// Values is the value head.
type Values struct {
	LearningRate float64 `option:"value_learning_rate" default:"0.001" range:"(0,)" help:"learning rate of the value head; its gradient does not reach the adapter"`
}

// Replay is how turns out of a buffer are learnt from.
type Replay struct {
	rollout.ReplayOptions
	ReferenceModel  string  `option:"reference_model" arg:"DIR|NAME" needs:"reference" help:"reference policy, a model with the same tokens; without it the policy as it was"`
	RefUpdateEvery  int     `option:"ref_update_every" default:"2" range:"[0,)" needs:"reference,!reference_model or reference_model=@model" help:"steps after which the reference becomes a copy of the policy (0 = never)"`
	EvalTemperature float64 `option:"eval_temperature" range:"[0,)" help:"sampling temperature of evaluations (0 = greedy)"`
	EvalTopP        float64 `option:"eval_top_p" default:"0.9" range:"(0,1]" needs:"eval_temperature>0" help:"top p of evaluations"`
}

// Check refuses what goes against each other.
func (o *Replay) Check() error {
	if o.BatchSize > o.NumUpdateSteps {
		return envs.OptionErrorf("rl_batch_size", "%d is more than num_update_steps %d: no batch would fill", o.BatchSize, o.NumUpdateSteps)
	}
	if slices.Contains([]string{".pkl", ".pickle"}, filepath.Ext(o.BufferCache)) {
		return envs.OptionErrorf("buffer_cache", "%s: reading a Python pickle runs code; the buffer is a file of JSON lines: name it .jsonl", o.BufferCache)
	}
	return nil
}

// StepwiseEval is of replays of solutions that have lines.
type StepwiseEval struct {
	Stepwise bool `option:"eval_stepwise" help:"evaluate line by line instead of whole solutions"`
}

// Saving is what a run leaves behind on its way.
type Saving struct {
	SaveSteps    int `option:"save_steps" default:"50" range:"[1,)" incidental:"true" common:"true" help:"steps between checkpoints"`
	Keep         int `option:"save_total_limit" default:"2" range:"[0,)" incidental:"true" help:"newest checkpoints to keep (0 = all)"`
	KeepRuns     int `option:"keep_runs" default:"3" range:"[1,)" incidental:"true" help:"earlier runs of the same folder to keep, as FOLDER.1, FOLDER.2, ...; the last finished run is always kept"`
	LoggingSteps int `option:"logging_steps" default:"5" range:"[1,)" incidental:"true" help:"steps between log lines"`
	// Answers of another number of prompts change no result.
	Completions int      `option:"keep_completions" default:"2" range:"[-1,)" incidental:"true" help:"prompts per logged step whose completions are saved in logs/completions.jsonl, with rewards and advantages (0 = none, -1 = all)"`
	ReportTo    []string `option:"report_to" default:"none" incidental:"true" common:"true" help:"where metrics go besides logs/metrics.jsonl: tensorboard (logs/tensorboard), wandb (offline files for wandb sync) or none"`
	Weights     string   `option:"keep" default:"best" allowed:"best,last,both" help:"weights that a stage saves: best = those of the best evaluation, last = those after the last step, both = the best, and the last in the subfolder last"`
	Times       bool     `option:"time" incidental:"true" help:"print at the end which fraction of the time each phase took: rollout, reward, update, evaluation, checkpoint"`
	Project     string   `option:"wandb_project" incidental:"true" help:"Weights & Biases project; without it WANDB_PROJECT, else rltrain"`
	Entity      string   `option:"wandb_entity" incidental:"true" help:"Weights & Biases user or team; without it WANDB_ENTITY"`
	RunName     string   `option:"run_name" incidental:"true" help:"Weights & Biases run name; without it WANDB_NAME, else the name of the folder"`
}

// Check refuses what there is no writer for.
func (o *Saving) Check() error {
	for _, name := range o.ReportTo {
		if !slices.Contains([]string{run.TensorBoard, run.WandB, "none"}, name) {
			return envs.OptionErrorf("report_to", "%q is not one of tensorboard, wandb, none", name)
		}
	}
	if slices.Contains(o.ReportTo, "none") && len(o.ReportTo) > 1 {
		return envs.OptionErrorf("report_to", "none cannot be combined")
	}
	for _, given := range []struct{ name, value string }{{"wandb_project", o.Project}, {"wandb_entity", o.Entity}, {"run_name", o.RunName}} {
		if given.value != "" && !slices.Contains(o.ReportTo, run.WandB) {
			return envs.OptionErrorf(given.name, "needs report_to=wandb")
		}
	}
	return nil
}

var errUntaught = errors.New("mode rl_only needs --pretrained-model DIR, the folder of a finished supervised stage")

// General is what every run has.
type General struct {
	Task        string  `option:"task" common:"true" help:"what to learn"`
	Mode        string  `option:"mode" common:"true" help:"stages to train"`
	Model       string  `option:"model" default:"tiny" arg:"DIR|NAME" common:"true" help:"pretrained model: a folder, a GGUF file, smollm2 or another name of rltrain models, a name on the hub, or tiny, a small character-level language model with random weights"`
	GGUFFile    string  `option:"gguf_file" arg:"NAME" percommand:"true" help:"GGUF file to use if --model is a folder or repository with several"`
	OutputDir   string  `option:"output_dir" default:"models" arg:"DIR" incidental:"true" common:"true" help:"folder for results; each stage gets a subfolder named after the task and the stage"`
	Defaults    string  `option:"defaults" default:"rltrain" allowed:"rltrain,trl" help:"whose defaults apply where nothing is given: trl = those of TRL 1.16's trainer of the same kind"`
	Seed        uint64  `option:"seed" default:"42" common:"true" help:"random seed"`
	Device      string  `option:"device" default:"auto" help:"cpu, cuda or cuda:NUMBER; auto = the first GPU if its driver and the CUDA plugin (make cuda) are present, else the CPU"`
	Threads     int     `option:"threads" range:"[0,1024]" incidental:"true" help:"compute threads (0 = one per core)"`
	DistTimeout float64 `option:"dist_timeout" default:"600" range:"[1,86400]" incidental:"true" help:"seconds to wait for another process before all processes stop, in data parallel training"`
	train.Memory
	MaxTime      string   `option:"max_time" arg:"DURATION" percommand:"true" incidental:"true" help:"stop between two steps after this time, such as 20m or 1h30m, saved and ready for --resume; counts all stages"`
	Resume       bool     `option:"resume" percommand:"true" incidental:"true" common:"true" help:"continue from the newest checkpoint in the output folder; an error without one. --resume auto starts then"`
	ResumeFrom   string   `option:"resume_from_checkpoint" arg:"DIR|auto" percommand:"true" incidental:"true" help:"continue from this checkpoint of the run and remove later ones; auto = the newest complete one"`
	AllowChanged []string `option:"allow_changed" arg:"A,B,..." percommand:"true" incidental:"true" help:"resume although the files of these settings have changed, such as dataset,reward; the run is marked inexact"`
	DryRun       bool     `option:"dry_run" percommand:"true" incidental:"true" common:"true" help:"run two small steps of each stage in a temporary folder and print a summary: data, steps, first prompt, rewards, time, memory"`
	PrintConfig  bool     `option:"print_config" percommand:"true" incidental:"true" help:"print all effective settings as YAML, with their origin, and exit"`
	ConfigFile   string   `option:"config" arg:"FILE" percommand:"true" incidental:"true" common:"true" help:"YAML file of settings, such as config.yaml of an earlier run"`
}

// Check refuses a --max-time that is not a duration.
func (o *General) Check() error {
	if _, err := o.Limit(); err != nil {
		return envs.OptionErrorf("max_time", "%q is not a duration above 0, such as 20m or 1h30m", o.MaxTime)
	}
	if len(o.AllowChanged) > 0 && !o.Resume && o.ResumeFrom == "" {
		return envs.OptionErrorf("allow_changed", "applies only with --resume")
	}
	return nil
}

// Limit is the time that the command may take; 0 = any.
func (o *General) Limit() (time.Duration, error) {
	if o.MaxTime == "" {
		return 0, nil
	}
	limit, err := time.ParseDuration(o.MaxTime)
	if err == nil && limit <= 0 {
		err = errors.New("not above 0")
	}
	return limit, err
}
