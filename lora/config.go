package lora

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
)

// Task types, which decide how PEFT wraps the model.
const (
	// FeatureExtraction adapts AutoModel: modules bear their canonical names.
	FeatureExtraction = "FEATURE_EXTRACTION"
	// SequenceClassification adapts a model with a classification head: the encoder's
	// modules stand behind a prefix, and the head travels with the adapter.
	SequenceClassification = "SEQ_CLS"
	// CausalLM adapts a language model: modules bear the names of its files.
	CausalLM = "CAUSAL_LM"
)

// Config is adapter_config.json, as far as it is supported.
type Config struct {
	// BaseModel is base_model_name_or_path: a folder or a hub id, "" for null. Save writes
	// a folder as its path from the adapter's own where both stand in one folder, else as
	// an absolute path; Load gives an absolute one.
	BaseModel string
	// BaseHash is the HashWeights of a base model that is a folder, "" where it is not
	// known. It is in the tensors' file, and Save finds it itself.
	BaseHash string
	Revision string  // revision of the base model: a branch, tag or commit, "" for null
	R        int     // rank, from 1
	Alpha    float64 // lora_alpha, above 0
	Dropout  float64 // lora_dropout, in [0, 1)
	RSLoRA   bool    // use_rslora: scale by α/√r (Kalajdzievski 2023, eq. 5)
	DoRA     bool    // use_dora: pairs have a Magnitude (Liu et al. 2024, "DoRA", eq. 5)
	// RankPattern and AlphaPattern are rank_pattern and alpha_pattern: R and Alpha of
	// the modules that a key matches. The first that matches counts.
	RankPattern  []Pattern[int]
	AlphaPattern []Pattern[float64]
	// TargetModules are the adapted modules, but for ExcludeModules and ModulesToSave.
	TargetModules  Modules
	ExcludeModules Modules
	// Layers is layers_to_transform: where there are any, modules that an ending means
	// are adapted in these layers alone. LayersPattern is layers_pattern, expressions of
	// what stands before a layer's number; without it, a name's first number counts
	// that two parts stand before.
	Layers        []int
	LayersPattern []string
	// ModulesToSave are modules that are stored whole, by endings of their names. PEFT
	// adds "classifier" and "score" to those of a sequence classifier.
	ModulesToSave []string
	// WeightTying is ensure_weight_tying: where one of embedding and output layer is
	// stored whole and they are one weight, the other is stored too.
	WeightTying bool
	// TaskType is FeatureExtraction, SequenceClassification or CausalLM; "" for null,
	// which names modules as the model does.
	TaskType    string
	FanInFanOut bool // fan_in_fan_out: the base weights are stored as [in, out], as those of GPT-2
	// Prefix stands before the encoder's modules in the names of tensors: "bert." for
	// a sequence classifier, else "". It is not in the JSON; Load finds it in the
	// tensors.
	Prefix string
}

// Scale is what B·A is multiplied by where AlphaPattern and RankPattern say nothing
// else: α/r, or α/√r with RSLoRA.
func (c Config) Scale() float64 { return scaleOf(c.Alpha, c.R, c.RSLoRA) }

func scaleOf(alpha float64, rank int, stabilised bool) float64 {
	if stabilised {
		return alpha / math.Sqrt(float64(rank))
	}
	return alpha / float64(rank)
}

// maxRank is far above any adapter; it keeps sizes from overflowing.
const maxRank = 1 << 16

// validate reports the first field that cannot be used, by its name in the file.
func (c Config) validate() error {
	switch {
	case !validRank(c.R):
		return fmt.Errorf("r %d is not between 1 and %d", c.R, maxRank)
	case !validAlpha(c.Alpha):
		return fmt.Errorf("lora_alpha %g is not above 0", c.Alpha)
	case !(c.Dropout >= 0 && c.Dropout < 1):
		return fmt.Errorf("lora_dropout %g is not in [0, 1)", c.Dropout)
	case c.TargetModules.empty():
		return errors.New("target_modules is empty")
	case slices.Contains(c.TargetModules.Names, ""):
		return errors.New("target_modules has an empty name")
	case slices.Contains(c.ExcludeModules.Names, ""):
		return errors.New("exclude_modules has an empty name")
	case slices.Contains(c.ModulesToSave, ""):
		return errors.New("modules_to_save has an empty name")
	case slices.Contains(c.LayersPattern, ""):
		return errors.New("layers_pattern has an empty name")
	case c.TargetModules.Pattern != "" && len(c.Layers)+len(c.LayersPattern) > 0:
		return fmt.Errorf("layers_to_transform and layers_pattern do not go with target_modules %.60q: list the modules by name", c.TargetModules.Pattern)
	case len(c.LayersPattern) > 0 && len(c.Layers) == 0:
		return errors.New("layers_pattern needs layers_to_transform")
	case !slices.Contains([]string{"", FeatureExtraction, SequenceClassification, CausalLM}, c.TaskType):
		return fmt.Errorf("task_type %.40q is not supported, want %q, %q or %q", c.TaskType, FeatureExtraction, SequenceClassification, CausalLM)
	}
	for _, p := range c.RankPattern {
		if !validRank(p.Value) {
			return fmt.Errorf("rank_pattern: %.60q has rank %d, which is not between 1 and %d", p.Key, p.Value, maxRank)
		}
	}
	for _, p := range c.AlphaPattern {
		if !validAlpha(p.Value) {
			return fmt.Errorf("alpha_pattern: %.60q has alpha %g, which is not above 0", p.Key, p.Value)
		}
	}
	return nil
}

func validRank(r int) bool { return r >= 1 && r <= maxRank }

func validAlpha(alpha float64) bool { return alpha > 0 && !math.IsInf(alpha, 0) }

// marshal writes the part of PEFT's fields that every release knows, sorted as
// PEFT sorts them; a reader gives the absent ones the defaults that hold here.
func (c Config) marshal() ([]byte, error) {
	optional := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	fields := map[string]any{
		"alpha_pattern":           patterns[float64](c.AlphaPattern),
		"auto_mapping":            nil,
		"base_model_name_or_path": optional(c.BaseModel),
		"bias":                    "none",
		"fan_in_fan_out":          c.FanInFanOut,
		"inference_mode":          true,
		"init_lora_weights":       true,
		"layers_pattern":          c.LayersPattern,
		"layers_to_transform":     c.Layers,
		"lora_alpha":              c.Alpha,
		"lora_dropout":            c.Dropout,
		"modules_to_save":         c.ModulesToSave,
		"peft_type":               "LORA",
		"r":                       c.R,
		"rank_pattern":            patterns[int](c.RankPattern),
		"revision":                optional(c.Revision),
		"target_modules":          c.TargetModules,
		"task_type":               optional(c.TaskType),
		"use_dora":                c.DoRA,
		"use_rslora":              c.RSLoRA,
	}
	if !c.ExcludeModules.empty() { // PEFT before 0.14 does not know the field
		fields["exclude_modules"] = c.ExcludeModules
	}
	if c.WeightTying { // PEFT before 0.18 does not know the field
		fields["ensure_weight_tying"] = true
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(fields)
	return b.Bytes(), err
}

// harmless are fields that change neither what an adapter computes nor what is in
// its file, whatever they say. The value of any other field that Config does not
// hold must be a neutral one.
var harmless = []string{"auto_mapping", "eva_config", "inference_mode", "megatron_core", "peft_version", "qalora_group_size"}

// unsupported says what features are whose names in the file do not.
var unsupported = map[string]string{
	"layer_replication":       "layers that are used more than once",
	"lora_bias":               "low-rank pairs with a bias",
	"target_parameters":       "adapters of parameters that are no linear module",
	"trainable_token_indices": "adapters of single tokens' embeddings",
}

// innocentInits are the values of init_lora_weights that leave the base weights
// alone. Other ways of starting (PiSSA, OLoRA, CorDA, LoftQ) change them, so that
// the pairs alone are not the adapter.
var innocentInits = []string{"", "null", "true", "false", `"gaussian"`, `"eva"`, `"orthogonal"`}

// neutral are the values by which PEFT says that a feature is not used.
var neutral = []string{"null", "false", "{}", "[]", `""`}

// parseConfig reads adapter_config.json. A feature that is in use and not
// supported, one unknown to this package included, is an error with its name.
func parseConfig(data []byte) (Config, error) {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return Config{}, fmt.Errorf("not a JSON object: %w", err)
	}
	r := &reader{raw: raw}
	var kind string
	r.get("peft_type", &kind)
	if r.err == nil && kind != "LORA" {
		return Config{}, fmt.Errorf("peft_type %.40q is not supported, want \"LORA\"", kind)
	}
	c := Config{R: 8, Alpha: 8} // PEFT's defaults of absent fields
	r.get("base_model_name_or_path", &c.BaseModel)
	r.get("revision", &c.Revision)
	r.get("r", &c.R)
	r.get("lora_alpha", &c.Alpha)
	r.get("lora_dropout", &c.Dropout)
	r.get("use_rslora", &c.RSLoRA)
	r.get("use_dora", &c.DoRA)
	r.get("rank_pattern", (*patterns[int])(&c.RankPattern))
	r.get("alpha_pattern", (*patterns[float64])(&c.AlphaPattern))
	r.get("fan_in_fan_out", &c.FanInFanOut)
	r.get("task_type", &c.TaskType)
	r.get("modules_to_save", (*oneOrMore[string])(&c.ModulesToSave))
	r.get("ensure_weight_tying", &c.WeightTying)
	r.get("target_modules", &c.TargetModules)
	r.get("exclude_modules", &c.ExcludeModules)
	r.get("layers_to_transform", (*oneOrMore[int])(&c.Layers))
	r.get("layers_pattern", (*oneOrMore[string])(&c.LayersPattern))

	var bias string
	r.get("bias", &bias)
	if bias != "" && bias != "none" {
		return Config{}, fmt.Errorf("bias %.40q is not supported, want \"none\"", bias)
	}
	if init := r.take("init_lora_weights"); !slices.Contains(innocentInits, init) {
		return Config{}, fmt.Errorf("init_lora_weights %.40s is not supported: it may change the base weights", init)
	}
	if r.err != nil {
		return Config{}, r.err
	}
	for _, key := range harmless {
		r.take(key)
	}
	for _, key := range slices.Sorted(maps.Keys(r.raw)) {
		v := r.take(key)
		if slices.Contains(neutral, v) {
			continue
		}
		if what, ok := unsupported[key]; ok {
			return Config{}, fmt.Errorf("%q is %.60s: %s are not supported", key, v, what)
		}
		return Config{}, fmt.Errorf("%.60q is %.60s: not supported", key, v)
	}
	if err := c.validate(); err != nil {
		return Config{}, err
	}
	_, err := c.rule()
	return c, err
}
