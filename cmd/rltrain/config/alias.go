package config

import (
	"fmt"
	"reflect"
	"strings"
)

// alias is another name of a key. A switch is an alias that is true or false and stands for a value of the key.
type alias struct {
	name, key string
	onTrue    any // a switch's value for true
	onFalse   any
	only      scope  // the tasks that have it; 0 = all that have the key
	instead   string // what the others hear
}

// routerSection is where a semantic router's configuration file keeps the settings of RL training.
const routerSection = "classifier.rl_training."

// aliases holds the names of the semantic router's trainer, then those of TRL and transformers that mean the same.
var aliases = []alias{
	{name: "reward_metric", key: "reward"},
	{name: "lora_rank", key: "lora_r"},
	{name: "enable_feature_alignment", key: "feature_alignment", onTrue: 0.1, onFalse: 0.0},
	{name: routerSection + "enabled", key: "mode", onTrue: SupervisedThenRL, onFalse: Supervised},
	{name: routerSection + "algorithm", key: "algorithm"},
	{name: routerSection + "learning_rate", key: "rl_learning_rate"},
	{name: routerSection + "gamma", key: "gamma"},
	{name: routerSection + "batch_size", key: "rl_batch_size"},
	{name: routerSection + "update_epochs", key: "update_epochs"},
	{name: routerSection + "reward_metric", key: "reward"},

	{name: "model_name_or_path", key: "model"},
	{name: "dataset_name", key: "dataset"},
	{name: "num_train_epochs", key: "epochs"},
	{name: "per_device_train_batch_size", key: "batch_size"},
	{name: "max_seq_length", key: "max_length"},
	{name: "bf16", key: "dtype", onTrue: "bf16", onFalse: "auto"},
	{name: "fp16", key: "dtype", onTrue: "fp16", onFalse: "auto"},
	{name: "use_lora", key: "tuning", onTrue: "lora", onFalse: "full"},
	{name: "use_peft", key: "tuning", onTrue: "lora", onFalse: "full"},
	{name: "num_ppo_epochs", key: "update_epochs"},
	{name: "num_mini_batches", key: "minibatches"},
	{name: "num_generations", key: "samples_per_prompt"},
	{name: "max_completion_length", key: "max_new_tokens"},
	{name: "mask_truncated_completions", key: "mask_overlong"},
	{name: "beta", key: "kl_coef"},
	{name: "epsilon", key: "clip_low"},
	{name: "epsilon_high", key: "clip_high"},
	{name: "lam", key: "gae_lambda"},
	{name: "cliprange_value", key: "value_clip"},

	// Those of the stepwise trainer of mathematics.
	{name: "gsm8k_path", key: "dataset", only: gsm8kTask, instead: "write dataset"},
	{name: "test_gsm8k_path", key: "eval_dataset", only: gsm8kTask, instead: "write eval_dataset"},
	{name: "train_data_file", key: "few_shot_dataset"},
	{name: "sys_prompt_path", key: "system_prompt"},
	{name: "n_few_shot", key: "few_shot"},
	{name: "n_few_shot_examples", key: "few_shot"},
	{name: "num_iterations", key: "num_steps", only: problemTask, instead: "write update_epochs for updates on the same rollout, num_steps for rollouts"},
	{name: "num_collection_episodes", key: "prompts_per_step", only: problemTask, instead: "write prompts_per_step"},
	{name: "gradient_accumulation_steps", key: "rl_batch_size", only: problemTask, instead: "one batch is one update; write batch_size, and tokens_per_micro_batch to save memory"},
	{name: "n_eval_steps", key: "eval_samples", only: problemTask, instead: "write eval_samples"},
	{name: "evaluation_iterations", key: "eval_every", only: problemTask, instead: "write eval_every"},
	{name: "stepwise_eval", key: "eval_stepwise"},
	{name: "n_save_iterations", key: "save_steps", only: problemTask, instead: "write save_steps"},
	{name: "save_path", key: "output_dir"},
	{name: "kl_coeff", key: "kl_coef"},
	{name: "nll_coeff", key: "nll_coef"},
	{name: "update_ref_iterations", key: "ref_update_every"},
	{name: "ref_model_name", key: "reference_model"},
	{name: "buffer_cache_path", key: "buffer_cache"},
	{name: "load_buffer_from_cache_at_start", key: "load_buffer"},
	{name: "reward_model_name", key: "judge"},
}

// fixed holds TRL names with one possible value: what is always so here.
var fixed = map[string]struct{ value, why string }{
	"report_to":   {"none", "runs are reported to files only; use none"},
	"push_to_hub": {"false", "nothing is uploaded; use false"},

	"evaluation_at_start": {"true", "the policy is always evaluated before it is trained; use true"},
	"save_best_model":     {"true", "the best policy of all evaluations is what is saved at the end; use true"},
}

// refused holds names a user of other trainers may bring that have no equal here.
var refused = map[string]string{
	"lr":                           "write learning_rate (supervised stage) or rl_learning_rate",
	"warmup_steps":                 "write warmup_ratio",
	"cliprange":                    "write clip_low and clip_high",
	"vf_coef":                      "write value_coef",
	"use_cpu":                      "write device=cpu",
	"eval_strategy":                "every epoch and every episode is evaluated",
	"resume_from_checkpoint":       "write resume",
	"cache_dir":                    "models are kept where the variables HF_HOME and HF_HUB_CACHE say",
	"qlora":                        "there are no 4-bit weights; write dtype=bf16 and tuning=lora to save memory",
	"local_test":                   "write model=tiny for a trial without a download",
	"reward_model_sys_prompt_path": "the judge's prompt is built in; write judge_reward to choose one",
}

var aliasByName = func() map[string]*alias {
	m := make(map[string]*alias, len(aliases))
	for i := range aliases {
		m[aliases[i].name] = &aliases[i]
	}
	return m
}()

// isName tells whether a flat name is understood: a key, an alias, or one with a fixed value.
func isName(name string) bool {
	_, isFixed := fixed[name]
	return find(name) != nil || isFixed || aliasByName[name] != nil && !strings.Contains(name, ".")
}

// isBoolean tells whether a name takes true or false.
func isBoolean(name string) bool {
	if f, ok := fixed[name]; ok {
		return f.value == "true" || f.value == "false"
	}
	if a := aliasByName[name]; a != nil {
		return a.onTrue != nil || isBoolean(a.key)
	}
	k := find(name)
	return k != nil && k.kind == reflect.Bool
}

// names lists what isName accepts, keys first, for suggestions.
func names() []string {
	var list []string
	for i := range keys {
		list = append(list, keys[i].name)
	}
	for _, a := range aliases {
		if isName(a.name) {
			list = append(list, a.name)
		}
	}
	return list
}

// unknownName is the error for a name that is none of ours; format renders the suggestion.
func unknownName(blame, name string, format func(string) string) error {
	if why, ok := refused[canonical(name)]; ok {
		return usagef("%s: %s", blame, why)
	}
	return usagef("%s%s", blame, didYouMean(name, names(), format))
}

// entry is one setting as given in a layer, its name understood but its value not yet read.
type entry struct {
	name   string // a key, an alias, or a fixed name
	value  rawValue
	source Source
}

// assignment is a value of a key's type and where it was given.
type assignment struct {
	value   any
	source  Source
	dormant bool // given in a router's section, which the mode may switch off
	alias   *alias
}

// resolve reads the values of one layer. Two entries for one key must agree.
func resolve(entries []entry) (map[string]assignment, error) {
	layer := make(map[string]assignment, len(entries))
	for _, e := range entries {
		k, value, err := e.read()
		if err != nil {
			return nil, e.source.errorf("%v", err)
		}
		if k == nil {
			continue
		}
		if k.perCommand && e.source.Layer == File {
			return nil, e.source.errorf("is given with the command, not in a file; leave it out")
		}
		before, twice := layer[k.name]
		switch {
		case !twice:
			layer[k.name] = assignment{value, e.source, strings.HasPrefix(e.name, routerSection), aliasByName[e.name]}
		case !reflect.DeepEqual(before.value, value):
			return nil, disagreement(k, before, assignment{value: value, source: e.source})
		}
	}
	return layer, nil
}

// read finds the entry's key and value; a fixed name has no key.
func (e entry) read() (*key, any, error) {
	if f, ok := fixed[e.name]; ok {
		if e.value.text != f.value || e.value.kind == textKind && f.value != "none" || e.value.kind == listKind {
			return nil, nil, fmt.Errorf("%s: %s", e.value, f.why)
		}
		return nil, nil, nil
	}
	k := find(e.name)
	if k == nil {
		a := aliasByName[e.name]
		k = find(a.key)
		if a.onTrue != nil {
			on, err := parseBool(e.value)
			if err != nil || on == false {
				return k, a.onFalse, err
			}
			return k, a.onTrue, nil
		}
	}
	value, err := k.parse(e.value)
	return k, value, err
}

func disagreement(k *key, a, b assignment) error {
	if a.source == b.source || a.source.Name == b.source.Name {
		return b.source.errorf("given twice, with %v and %v; keep one", a.value, b.value)
	}
	where := ""
	if b.source.Position != "" {
		where = b.source.Position + ": "
	}
	return usagef("%s%s and %s set %s to different values, %v and %v; keep one",
		where, a.source.Name, b.source.Name, k.name, a.value, b.value)
}
