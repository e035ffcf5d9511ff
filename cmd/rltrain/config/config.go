// Package config turns what the user typed into the settings of a training run.
//
// Settings come in four layers, the later one winning: the task's recipe, the file of --config, environment variables
// RLTRAIN_<KEY>, and command-line options. A setting has one canonical key, flat snake_case, which is its name in all
// four (dashes and underscores are equal); aliases.go lists the other names that are understood. Every mistake is a
// *UsageError of one line that names the option, the variable, or the file, line and column it stands at.
package config

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// Tasks.
const (
	Intent = "intent" // a label for a text
	Chat   = "chat"   // the continuation of a text or a conversation

	SumDigits     = "sum_digits"     // the sum of all digits of some integers
	ReverseDigits = "reverse_digits" // an integer read backwards

	GSM8K = "gsm8k" // grade-school problems from a file
	MATH  = "math"  // competition problems from a file
)

// TinyModel is the model name of a small language model with random weights.
const TinyModel = "tiny"

// Modes of training.
const (
	Supervised       = "supervised"         // the supervised stage alone
	SupervisedThenRL = "supervised_then_rl" // the supervised stage, then reinforcement learning from its best epoch
	RLOnly           = "rl_only"            // reinforcement learning from the adapter in pretrained_model
)

// Losses of algorithm reinforce. All but the last replay turns of a buffer.
const (
	LossStable    = "stable"
	LossReinforce = "reinforce"
	LossDistiller = "distiller"
	LossOnPolicy  = "on_policy"
)

// What a judge is asked.
const (
	JudgeScore   = "score"
	JudgeAspects = "aspects"
)

// Config is the effective configuration of one run. Ranges and meanings of the fields stand in the table of keys
// (table.go), under the name in the yaml tag; the order is the table's.
type Config struct {
	Task                string   `yaml:"task"`
	Mode                string   `yaml:"mode"`
	Model               string   `yaml:"model"`
	PretrainedModel     string   `yaml:"pretrained_model"`
	Dataset             string   `yaml:"dataset"`
	DatasetConfig       string   `yaml:"dataset_config"`
	EvalDataset         string   `yaml:"eval_dataset"`
	FewShotDataset      string   `yaml:"few_shot_dataset"`
	FewShot             int      `yaml:"few_shot"`
	SystemPrompt        string   `yaml:"system_prompt"`
	Annotate            bool     `yaml:"annotate"`
	SymCalc             bool     `yaml:"sym_calc"`
	AnswerMatch         string   `yaml:"answer_match"`
	TextColumn          string   `yaml:"text_column"`
	LabelColumn         string   `yaml:"label_column"`
	SplitColumn         string   `yaml:"split_column"`
	MaxSamples          int      `yaml:"max_samples"`
	MaxLength           int      `yaml:"max_length"`
	OutputDir           string   `yaml:"output_dir"`
	DType               string   `yaml:"dtype"`
	TinyLayers          int      `yaml:"tiny_layers"`
	TinyHidden          int      `yaml:"tiny_hidden"`
	Seed                uint64   `yaml:"seed"`
	Device              string   `yaml:"device"`
	Threads             int      `yaml:"threads"`
	TokensPerMicroBatch int      `yaml:"tokens_per_micro_batch"`
	DigitsCount         int      `yaml:"digits_count"`
	DigitsMax           int      `yaml:"digits_max"`
	RequireTag          bool     `yaml:"require_tag"`
	TaskOptions         []string `yaml:"task_options"`
	PromptForm          string   `yaml:"prompt_form"`
	MaxNewTokens        int      `yaml:"max_new_tokens"`
	MaxLineTokens       int      `yaml:"max_line_tokens"`
	MaxTrajectorySteps  int      `yaml:"max_trajectory_steps"`
	EvalSamples         int      `yaml:"eval_samples"`
	Verbose             bool     `yaml:"verbose"`
	Resume              bool     `yaml:"resume"`
	ConfigFile          string   `yaml:"config"`

	Epochs                int      `yaml:"epochs"`
	MaxSteps              int      `yaml:"max_steps"`
	BatchSize             int      `yaml:"batch_size"`
	LearningRate          float64  `yaml:"learning_rate"`
	HeadLearningRate      float64  `yaml:"head_learning_rate"`
	WeightDecay           float64  `yaml:"weight_decay"`
	LRSchedulerType       string   `yaml:"lr_scheduler_type"`
	WarmupRatio           float64  `yaml:"warmup_ratio"`
	MaxGradNorm           float64  `yaml:"max_grad_norm"`
	Tuning                string   `yaml:"tuning"`
	LoraR                 int      `yaml:"lora_r"`
	LoraAlpha             int      `yaml:"lora_alpha"`
	LoraDropout           float64  `yaml:"lora_dropout"`
	LoraTargetModules     []string `yaml:"lora_target_modules"`
	Pooling               string   `yaml:"pooling"`
	FeatureAlignment      float64  `yaml:"feature_alignment"`
	WarmupUntil           float64  `yaml:"warmup_until"`
	WarmupCheckEvery      int      `yaml:"warmup_check_every"`
	ValidationShare       float64  `yaml:"validation_share"`
	Packing               bool     `yaml:"packing"`
	CompletionOnlyLoss    bool     `yaml:"completion_only_loss"`
	AssistantOnlyLoss     bool     `yaml:"assistant_only_loss"`
	GradientCheckpointing bool     `yaml:"gradient_checkpointing"`
	MetricForBestModel    string   `yaml:"metric_for_best_model"`

	Algorithm         string  `yaml:"algorithm"`
	ReinforceLoss     string  `yaml:"reinforce_loss"`
	StepMode          string  `yaml:"step_mode"`
	NumSteps          int     `yaml:"num_steps"`
	PromptsPerStep    int     `yaml:"prompts_per_step"`
	SamplesPerPrompt  int     `yaml:"samples_per_prompt"`
	NumGenerators     int     `yaml:"num_generators"`
	Temperature       float64 `yaml:"temperature"`
	Baseline          string  `yaml:"baseline"`
	BaselineStart     float64 `yaml:"baseline_start"`
	BaselineDecay     float64 `yaml:"baseline_decay"`
	AdvantageScale    string  `yaml:"advantage_scale"`
	Reduction         string  `yaml:"reduction"`
	KLCoef            float64 `yaml:"kl_coef"`
	KLType            string  `yaml:"kl_type"`
	KLInReward        bool    `yaml:"kl_in_reward"`
	KLTarget          float64 `yaml:"kl_target"`
	KLHorizon         float64 `yaml:"kl_horizon"`
	MaskOverlong      bool    `yaml:"mask_overlong"`
	OverlongBuffer    int     `yaml:"overlong_buffer"`
	DynamicSampling   bool    `yaml:"dynamic_sampling"`
	StepTimeout       float64 `yaml:"step_timeout"`
	Async             bool    `yaml:"async"`
	MaxStaleness      int     `yaml:"max_staleness"`
	EvalEvery         int     `yaml:"eval_every"`
	EvalStepwise      bool    `yaml:"eval_stepwise"`
	EvalTemperature   float64 `yaml:"eval_temperature"`
	EvalTopP          float64 `yaml:"eval_top_p"`
	NumUpdateSteps    int     `yaml:"num_update_steps"`
	NLLCoef           float64 `yaml:"nll_coef"`
	RefUpdateEvery    int     `yaml:"ref_update_every"`
	ReferenceModel    string  `yaml:"reference_model"`
	ReturnMin         float64 `yaml:"return_min"`
	ReturnMax         float64 `yaml:"return_max"`
	BufferCache       string  `yaml:"buffer_cache"`
	CacheBuffer       bool    `yaml:"cache_buffer"`
	LoadBuffer        bool    `yaml:"load_buffer"`
	Judge             string  `yaml:"judge"`
	JudgeReward       string  `yaml:"judge_reward"`
	JudgeScale        float64 `yaml:"judge_scale"`
	RLEpisodes        int     `yaml:"rl_episodes"`
	Reward            string  `yaml:"reward"`
	RewardExpr        string  `yaml:"reward_expr"`
	RLLearningRate    float64 `yaml:"rl_learning_rate"`
	RLLRSchedulerType string  `yaml:"rl_lr_scheduler_type"`
	RLWarmupRatio     float64 `yaml:"rl_warmup_ratio"`
	ValueLearningRate float64 `yaml:"value_learning_rate"`
	RLBatchSize       int     `yaml:"rl_batch_size"`
	UpdateEpochs      int     `yaml:"update_epochs"`
	Minibatches       int     `yaml:"minibatches"`
	Gamma             float64 `yaml:"gamma"`
	GAELambda         float64 `yaml:"gae_lambda"`
	ClipLow           float64 `yaml:"clip_low"`
	ClipHigh          float64 `yaml:"clip_high"`
	ValueClip         float64 `yaml:"value_clip"`
	ValueCoef         float64 `yaml:"value_coef"`
	EntropyCoef       float64 `yaml:"entropy_coef"`
	TargetKL          float64 `yaml:"target_kl"`
	WhitenAdvantages  bool    `yaml:"whiten_advantages"`
	RLMaxGradNorm     float64 `yaml:"rl_max_grad_norm"`
	BufferSize        int     `yaml:"buffer_size"`
	RLMetricForBest   string  `yaml:"rl_metric_for_best"`

	SaveSteps      int `yaml:"save_steps"`
	SaveTotalLimit int `yaml:"save_total_limit"`
	LoggingSteps   int `yaml:"logging_steps"`

	sources map[string]Source
	skipped []string
}

// Load reads the configuration from the arguments after the subcommand's name (os.Args[1:] or [2:]) and the environment
// in the form of os.Environ. It opens the file that --config or RLTRAIN_CONFIG names, and nothing else.
// Every error is a *UsageError, but for a --config file that cannot be read.
func Load(args, environ []string) (*Config, error) {
	flags, err := flagEntries(args)
	if err != nil {
		return nil, err
	}
	env, err := envEntries(environ)
	if err != nil {
		return nil, err
	}
	given := map[string]assignment{}
	top := map[string]assignment{} // environment and flags, which may name the file
	for _, entries := range [][]entry{env, flags} {
		layer, err := resolve(entries)
		if err != nil {
			return nil, err
		}
		maps.Copy(top, layer)
	}
	var skippedSections []string
	if path, ok := top["config"]; ok && path.value != "" {
		entries, skipped, err := readFile(path.value.(string))
		if err != nil {
			return nil, err
		}
		layer, err := resolve(entries)
		if err != nil {
			return nil, err
		}
		maps.Copy(given, layer)
		skippedSections = skipped
	}
	maps.Copy(given, top)
	task := Intent
	if a, ok := given["task"]; ok {
		task = a.value.(string)
	}
	c, err := Defaults(task)
	if err != nil {
		return nil, err
	}
	c.skipped = skippedSections
	c.assign(given)
	if err := c.validate(given); err != nil {
		return nil, err
	}
	return c, nil
}

// Defaults returns a fresh copy of the settings in a task's recipe.
func Defaults(task string) (*Config, error) {
	all, err := parseRecipes()
	if err != nil {
		return nil, err
	}
	c := *all[task]
	c.LoraTargetModules, c.TaskOptions = slices.Clone(c.LoraTargetModules), slices.Clone(c.TaskOptions)
	c.sources = map[string]Source{}
	return &c, nil
}

var parseRecipes = sync.OnceValues(func() (map[string]*Config, error) {
	all := map[string]*Config{}
	for _, t := range tasks {
		entries, _, err := parseFile("recipes/"+t.name+".yaml", t.recipe)
		if err != nil {
			return nil, err
		}
		layer, err := resolve(entries)
		if err != nil {
			return nil, err
		}
		c := &Config{sources: map[string]Source{}}
		c.assign(layer)
		all[t.name] = c
	}
	return all, nil
})

// assign writes the given settings into c. The RL settings of a router's file are left out where the mode has no RL
// stage: there they stand in a section that is switched off.
func (c *Config) assign(given map[string]assignment) {
	if a, ok := given["task"]; ok {
		c.Task = a.value.(string)
	}
	if a, ok := given["mode"]; ok {
		c.Mode = a.value.(string)
	}
	maps.DeleteFunc(given, func(name string, a assignment) bool {
		return a.dormant && !find(name).scope.has(c.Task, c.Mode)
	})
	for name, a := range given {
		find(name).set(c, a.value)
		c.sources[name] = a.source
	}
}

// RewardSpec is the list of rewards in the syntax of intent.ParseRewards: reward, or for custom the expression of
// reward_expr. Complaints about it belong to the key that it returns.
func (c *Config) RewardSpec() (spec, key string) {
	if c.Reward != customReward {
		return c.Reward, "reward"
	}
	quote := "'"
	if strings.Contains(c.RewardExpr, quote) {
		quote = `"`
	}
	return "expr:" + quote + c.RewardExpr + quote, "reward_expr"
}

// FullTuning tells whether all weights of a language model are trained, and not an adapter.
func (c *Config) FullTuning() bool {
	return c.Tuning == "full" || c.Tuning == "auto" && c.Model == TinyModel
}

// Replay tells whether turns are learnt from out of a replay buffer.
func (c *Config) Replay() bool {
	return c.Algorithm == "reinforce" && c.ReinforceLoss != "" && c.ReinforceLoss != LossOnPolicy
}

// Lines tells whether an action is a line of a solution, and not all of it.
func (c *Config) Lines() bool {
	return c.StepMode == "line" || c.StepMode == "auto" && c.Replay()
}

// OwnReference tells whether the reference policy begins as the policy itself.
func (c *Config) OwnReference() bool {
	return c.ReferenceModel == "" || c.ReferenceModel == c.Model
}

// Source tells where the value of a key comes from; the zero Source means the recipe.
func (c *Config) Source(key string) Source { return c.sources[key] }

// Skipped lists the sections of a router's file that are not ours and were left unread.
func (c *Config) Skipped() []string { return c.skipped }

// Errorf makes a *UsageError that blames the value of key, where the user gave it.
func (c *Config) Errorf(key, format string, args ...any) error {
	s := c.sources[key]
	if s == (Source{}) {
		s.Name = flagName(key)
	}
	return s.errorf(format, args...)
}

// field returns the addressable struct field of a key.
func (c *Config) field(k *key) reflect.Value { return reflect.ValueOf(c).Elem().Field(k.index) }

func flagName(key string) string { return "--" + strings.ReplaceAll(key, "_", "-") }
