package config

import "reflect"

// modes is a set of training modes.
type modes int

const (
	supervisedOnly modes = 1 << iota
	both
	rlOnly

	anyMode         = supervisedOnly | both | rlOnly
	withSupervision = supervisedOnly | both
	withRL          = both | rlOnly
)

// modeNames are the modes in the order of their bits.
var modeNames = []string{Supervised, SupervisedThenRL, RLOnly}

func (m modes) has(mode string) bool {
	for i, name := range modeNames {
		if name == mode {
			return m&(1<<i) != 0
		}
	}
	return false
}

func (m modes) names() []string {
	var names []string
	for _, name := range modeNames {
		if m.has(name) {
			names = append(names, name)
		}
	}
	return names
}

// key declares one setting. Flags, validation, --help, config.yaml and the recipe's comments are derived from it.
type key struct {
	name    string
	group   string
	stages  modes  // the modes it applies to
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

func needsCustom(c *Config) string {
	if c.Reward != customReward {
		return "--reward custom"
	}
	return ""
}

// keys holds every setting once, in the order of Config's fields.
var keys = [...]key{
	{name: "task", group: general, stages: anyMode, allowed: []string{"intent"}, help: "what is learned"},
	{name: "mode", group: general, stages: anyMode, allowed: []string{SupervisedThenRL, Supervised, RLOnly}, help: "which stages are trained"},
	{name: "model", group: general, stages: anyMode, arg: "DIR|NAME", help: "pretrained encoder: a folder, or a name in the cache"},
	{name: "pretrained_model", group: general, stages: supervisedOnly | rlOnly, arg: "DIR", help: "folder of a trained policy to go on from; rl_only needs it"},
	{name: "dataset", group: general, stages: anyMode, arg: "FILE", help: "examples in csv, json or jsonl; without it the built-in set"},
	{name: "text_column", group: general, stages: anyMode, needs: needsDataset, help: "column of --dataset with the text"},
	{name: "label_column", group: general, stages: anyMode, needs: needsDataset, help: "column of --dataset with the label"},
	{name: "split_column", group: general, stages: anyMode, needs: needsDataset, help: "column of --dataset with train, val or test; without the column rows are split 70/15/15 by class"},
	{name: "max_samples", group: general, stages: anyMode, limits: atLeast(0), help: "use at most this many rows, equally many of each class; 0 = all"},
	{name: "max_length", group: general, stages: anyMode, limits: atLeast(3), help: "cut texts at this many tokens, special tokens included"},
	{name: "output_dir", group: general, stages: anyMode, arg: "DIR", incidental: true, help: "results go to DIR/intent_classifier_supervised and DIR/intent_classifier_rl"},
	{name: "seed", group: general, stages: anyMode, help: "of every random draw"},
	{name: "device", group: general, stages: anyMode, allowed: []string{"auto", "cpu"}, refused: map[string]string{"cuda": "this build has no CUDA library; use auto or cpu"}, help: "where tensors live"},
	{name: "threads", group: general, stages: anyMode, limits: between(0, 1024), incidental: true, help: "compute threads; 0 = one a core"},
	{name: "tokens_per_micro_batch", group: general, stages: anyMode, limits: atLeast(0), help: "split batches at this many tokens to save memory; 0 = chosen from memory"},
	{name: "resume", group: general, stages: anyMode, perCommand: true, incidental: true, help: "continue from the newest checkpoint in the output folder"},
	{name: "config", group: general, stages: anyMode, arg: "FILE", perCommand: true, incidental: true, help: "YAML file of settings, such as the config.yaml of an earlier run"},

	{name: "epochs", group: supervised, stages: withSupervision, limits: atLeast(1), help: "passes over the training rows"},
	{name: "max_steps", group: supervised, stages: withSupervision, limits: atLeast(0), help: "updates; overrides epochs; 0 = as epochs say"},
	{name: "batch_size", group: supervised, stages: withSupervision, limits: atLeast(1), help: "rows an update"},
	{name: "learning_rate", group: supervised, stages: withSupervision, limits: above(0), help: "peak rate of the adapter"},
	{name: "head_learning_rate", group: supervised, stages: withSupervision, limits: above(0), help: "peak rate of the classification head"},
	{name: "weight_decay", group: supervised, stages: withSupervision, limits: atLeast(0), help: "decoupled, as in AdamW"},
	{name: "lr_scheduler_type", group: supervised, stages: withSupervision, allowed: []string{"cosine", "linear", "constant"}, help: "course of the rates after warm-up"},
	{name: "warmup_ratio", group: supervised, stages: withSupervision, limits: between(0, 1), help: "share of the updates over which the rates rise"},
	{name: "max_grad_norm", group: supervised, stages: withSupervision, limits: atLeast(0), help: "clip the gradient's norm; 0 = never"},
	{name: "lora_r", group: supervised, stages: withSupervision, needs: needsNewPolicy, limits: between(1, 1024), help: "rank of the adapter"},
	{name: "lora_alpha", group: supervised, stages: withSupervision, needs: needsNewPolicy, limits: atLeast(1), help: "the adapter's output is scaled by lora_alpha / lora_r"},
	{name: "lora_dropout", group: supervised, stages: withSupervision, needs: needsNewPolicy, limits: bounds{min: 0, max: 1, openMax: true, set: true}, help: "dropout on the adapter's input"},
	{name: "lora_target_modules", group: supervised, stages: withSupervision, needs: needsNewPolicy, arg: "A,B,...", help: "modules that get an adapter, by the end of their name; empty = the model family's"},
	{name: "pooling", group: supervised, stages: withSupervision, needs: needsNewPolicy, allowed: []string{"auto", "mean", "family"}, help: "how a text becomes one vector: mean of its tokens, or the family's own pooler; auto = as the model's folder says"},
	{name: "feature_alignment", group: supervised, stages: withSupervision, limits: atLeast(0), help: "weight of the L2 penalty on the adapter's weights; 0 = none"},
	{name: "metric_for_best_model", group: supervised, stages: withSupervision, allowed: []string{"f1_weighted", "f1_macro", "accuracy", "loss"}, help: "validation figure that picks the best epoch"},

	{name: "algorithm", group: rl, stages: withRL, allowed: []string{"ppo"}, refused: map[string]string{"a2c": onlyPPO, "dqn": onlyPPO}, help: "how the policy is improved"},
	{name: "rl_episodes", group: rl, stages: withRL, limits: atLeast(1), help: "rollouts, each followed by an update; the best by validation is kept"},
	{name: "reward", group: rl, stages: withRL, arg: "LIST", help: "accuracy, f1, calibration, expr:'...', each with =WEIGHT if wanted, joined by commas; or custom, with --reward-expr"},
	{name: "reward_expr", group: rl, stages: withRL, arg: "EXPR", needs: needsCustom, help: "expression over correct, confidence, predicted, label, probs and entropy"},
	{name: "rl_learning_rate", group: rl, stages: withRL, limits: above(0), help: "rate of the adapter and the classification head"},
	{name: "value_learning_rate", group: rl, stages: withRL, limits: above(0), help: "rate of the value head, whose gradient does not reach the adapter"},
	{name: "rl_batch_size", group: rl, stages: withRL, limits: atLeast(1), help: "texts a minibatch"},
	{name: "update_epochs", group: rl, stages: withRL, limits: atLeast(1), help: "passes over a rollout"},
	{name: "gamma", group: rl, stages: withRL, limits: between(0, 1), help: "discount of later rewards"},
	{name: "gae_lambda", group: rl, stages: withRL, limits: between(0, 1), help: "lambda of generalised advantage estimation"},
	{name: "clip_low", group: rl, stages: withRL, limits: bounds{min: 0, max: 1, openMin: true, openMax: true, set: true}, help: "the probability ratio is clipped at 1 - clip_low"},
	{name: "clip_high", group: rl, stages: withRL, limits: above(0), help: "and at 1 + clip_high"},
	{name: "value_clip", group: rl, stages: withRL, limits: atLeast(0), help: "clip the value's move to this; 0 = never"},
	{name: "value_coef", group: rl, stages: withRL, limits: atLeast(0), help: "weight of the value loss"},
	{name: "entropy_coef", group: rl, stages: withRL, limits: atLeast(0), help: "weight of the entropy bonus"},
	{name: "target_kl", group: rl, stages: withRL, limits: atLeast(0), help: "stop a rollout's update at this approximate KL; 0 = never"},
	{name: "whiten_advantages", group: rl, stages: withRL, help: "scale advantages to mean 0 and deviation 1"},
	{name: "rl_max_grad_norm", group: rl, stages: withRL, limits: atLeast(0), help: "clip the gradient's norm; 0 = never"},
	{name: "buffer_size", group: rl, stages: withRL, limits: atLeast(1), help: "most steps a rollout holds"},
	{name: "rl_metric_for_best", group: rl, stages: withRL, allowed: []string{"auto", "accuracy", "f1_macro", "f1_weighted", "brier", "ece"}, help: "validation figure that picks the best episode; auto = the one the reward is about"},

	{name: "save_steps", group: saving, stages: anyMode, limits: atLeast(1), incidental: true, help: "updates between checkpoints"},
	{name: "save_total_limit", group: saving, stages: anyMode, limits: atLeast(0), incidental: true, help: "newest checkpoints to keep; 0 = all"},
	{name: "logging_steps", group: saving, stages: anyMode, limits: atLeast(1), incidental: true, help: "updates between log lines"},
}

const onlyPPO = "does not exist here; the algorithm is ppo"

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
	return k.stages.has(c.Mode) && (k.needs == nil || k.needs(c) == "")
}

// set writes a value of the key's type into c.
func (k *key) set(c *Config, value any) { c.field(k).Set(reflect.ValueOf(value)) }
