package lora

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/internal/files"
)

// Task types, which decide how PEFT wraps the model.
const (
	// FeatureExtraction adapts AutoModel: modules have their canonical names.
	FeatureExtraction = "FEATURE_EXTRACTION"
	// SequenceClassification adapts a model with a classification head. Its encoder modules have a prefix, and the
	// adapter includes the head.
	SequenceClassification = "SEQ_CLS"
	// CausalLM adapts a language model: modules have the names used in its files.
	CausalLM = "CAUSAL_LM"
)

// Values of bias, beside LORA's lora_only and those of other methods.
const biasAll = "all"

// Config is the supported part of adapter_config.json.
type Config struct {
	// Method is peft_type, "" for LORA. Adapters of other methods have no pairs.
	Method string
	// BaseModel is base_model_name_or_path: a folder or a hub id, "" for null. Save writes a folder relative to the
	// adapter if both are in one output folder, else as an absolute path. Load returns an absolute path.
	BaseModel string
	// BaseHash is HashWeights of a local base model, "" if unknown. It is stored with the tensors; Save computes it.
	BaseHash string
	Revision string  // of the base model: a branch, tag or commit, "" for null
	R        int     // rank, at least 1
	Alpha    float64 // lora_alpha, positive
	Dropout  float64 // lora_dropout, in [0, 1)
	RSLoRA   bool    // use_rslora: scale by α/√r (Kalajdzievski 2023, eq. 5)
	DoRA     bool    // use_dora: pairs have a Magnitude (Liu et al. 2024, "DoRA", eq. 5)
	// RankPattern and AlphaPattern are rank_pattern and alpha_pattern: R and Alpha of the modules that match a key. The
	// first match applies.
	RankPattern  []Pattern[int]
	AlphaPattern []Pattern[float64]
	// TargetModules are the adapted modules, minus ExcludeModules and ModulesToSave.
	TargetModules  Modules
	ExcludeModules Modules
	// TargetParameters are target_parameters: ends of the names of tensors of experts, see ExpertParameters.
	TargetParameters []string
	// Layers is layers_to_transform: if not empty, modules matched by a suffix are adapted only in these layers.
	// LayersPattern is layers_pattern: regular expressions for the name before the layer number. Without it, the layer is
	// the first number that follows at least two name components.
	Layers        []int
	LayersPattern []string
	// ModulesToSave are modules stored in full, by suffixes of their names. For a sequence classifier, PEFT adds
	// "classifier" and "score".
	ModulesToSave []string
	// WeightTying is ensure_weight_tying: if embedding and output layer share a weight and one is stored in full, so is the
	// other.
	WeightTying bool
	// Bias is bias, "" for none: the biases of the model that are stored in full, "all" or those of adapted modules.
	Bias     string
	LoRABias bool // lora_bias: pairs add a bias too
	// Tokens is trainable_token_indices: the rows that the adapter replaces, by suffixes of the names of embeddings and
	// output layers, "" for the input embedding and those tied to it.
	Tokens      Tokens
	CayleyTerms int // num_cayley_neumann_terms of OFT, 0 for an exact inverse
	// TaskType is FeatureExtraction, SequenceClassification or CausalLM; "" for null, with the model's module names.
	TaskType    string
	FanInFanOut bool // fan_in_fan_out: base weights are stored as [in, out], as in GPT-2
	// Prefix precedes the encoder's modules in tensor names: "bert." for a sequence classifier, else "". It is not in the
	// JSON; Load takes it from the tensor names.
	Prefix string
}

// Scale is the default factor of B·A, unless a pattern overrides it: α/r, or α/√r with RSLoRA.
func (c Config) Scale() float64 { return scaleOf(c.Alpha, c.R, c.RSLoRA) }

func scaleOf(alpha float64, rank int, stabilised bool) float64 {
	if stabilised {
		return alpha / math.Sqrt(float64(rank))
	}
	return alpha / float64(rank)
}

// maxRank is far above any adapter; it prevents overflow of sizes.
const maxRank = 1 << 16

// maxToken is far above any vocabulary.
const maxToken = 1 << 30

// validate reports the first invalid field, by its name in the file.
func (c Config) validate() error {
	switch {
	case !validRank(c.R):
		return fmt.Errorf("r is %d; it must be 1 to %d", c.R, maxRank)
	case !validAlpha(c.Alpha):
		return fmt.Errorf("lora_alpha is %g; it must be positive", c.Alpha)
	case !(c.Dropout >= 0 && c.Dropout < 1):
		return fmt.Errorf("lora_dropout is %g; it must be in [0, 1)", c.Dropout)
	case c.TargetModules.empty() && len(c.TargetParameters) == 0:
		return errors.New("target_modules is empty")
	case slices.Contains(c.TargetModules.Names, ""):
		return errors.New("target_modules contains an empty name")
	case slices.Contains(c.ExcludeModules.Names, ""):
		return errors.New("exclude_modules contains an empty name")
	case slices.Contains(c.ModulesToSave, ""):
		return errors.New("modules_to_save contains an empty name")
	case slices.Contains(c.LayersPattern, ""):
		return errors.New("layers_pattern contains an empty name")
	case c.TargetModules.Pattern != "" && len(c.Layers)+len(c.LayersPattern) > 0:
		return fmt.Errorf("layers_to_transform and layers_pattern need a list of target_modules, not the pattern %.60q; list the modules by name", c.TargetModules.Pattern)
	case len(c.LayersPattern) > 0 && len(c.Layers) == 0:
		return errors.New("layers_pattern needs layers_to_transform")
	case c.Bias != "" && c.Bias != biasAll && !strings.HasSuffix(c.Bias, "_only"):
		return fmt.Errorf("bias %.40q is not supported; use \"none\", \"all\" or \"lora_only\"", c.Bias)
	case c.LoRABias && c.DoRA:
		return errors.New("lora_bias with use_dora is not supported")
	case c.Method != "" && (c.LoRABias || c.DoRA):
		return fmt.Errorf("lora_bias and use_dora with peft_type %s are not supported", c.Method)
	case !slices.Contains([]string{"", FeatureExtraction, SequenceClassification, CausalLM}, c.TaskType):
		return fmt.Errorf("task_type %.40q is not supported; use %q, %q or %q", c.TaskType, FeatureExtraction, SequenceClassification, CausalLM)
	}
	if err := c.validateParameters(); err != nil {
		return err
	}
	for key, tokens := range c.Tokens {
		if len(tokens) == 0 || slices.Min(tokens) < 0 || slices.Max(tokens) > maxToken {
			return fmt.Errorf("trainable_token_indices: %.60q needs tokens of 0 to %d", key, maxToken)
		}
	}
	for _, p := range c.RankPattern {
		if !validRank(p.Value) {
			return fmt.Errorf("rank_pattern: %.60q has rank %d; it must be 1 to %d", p.Key, p.Value, maxRank)
		}
	}
	for _, p := range c.AlphaPattern {
		if !validAlpha(p.Value) {
			return fmt.Errorf("alpha_pattern: %.60q has alpha %g; it must be positive", p.Key, p.Value)
		}
	}
	return nil
}

func validRank(r int) bool { return r >= 1 && r <= maxRank }

func validAlpha(alpha float64) bool { return alpha > 0 && alpha <= math.MaxFloat64 }

// marshal writes the fields of an adapter that Save takes, in PEFT's order, and no field unknown to some release unless it is
// in use. Readers use PEFT's defaults for absent fields, which hold here.
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
		"bias":                    cmp.Or(c.Bias, "none"),
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
	if !c.ExcludeModules.empty() { // unknown to PEFT before 0.14
		fields["exclude_modules"] = c.ExcludeModules
	}
	if len(c.TargetParameters) > 0 { // unknown to PEFT before 0.17
		fields["target_parameters"] = c.TargetParameters
		if c.TargetModules.empty() {
			fields["target_modules"] = []string{} // null stands for the family's
		}
	}
	if c.WeightTying { // unknown to PEFT before 0.18
		fields["ensure_weight_tying"] = true
	}
	return files.EncodeJSON(fields)
}

// harmless are fields that affect neither the adapter's computation nor its file. Any other field unknown to Config must
// have a neutral value.
var harmless = []string{"auto_mapping", "eva_config", "inference_mode", "megatron_core", "peft_version", "qalora_group_size"}

// unsupported explains features whose field names do not.
var unsupported = map[string]string{
	"layer_replication": "repeated layers",
}

// innocentInits are the values of init_lora_weights that keep the base weights. Others (PiSSA, OLoRA, CorDA, LoftQ) change
// them, so that the pairs alone are not the adapter. PEFT stores true in their converted form.
var innocentInits = []string{"", "null", "true", "false", `"gaussian"`, `"eva"`, `"orthogonal"`}

// neutral are the values with which PEFT switches a feature off.
var neutral = []string{"null", "false", "{}", "[]", `""`}

// parseConfig reads adapter_config.json. A feature that is in use but not supported or unknown is an error with its name.
func parseConfig(data []byte) (Config, error) {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(data, &raw); err != nil {
		return Config{}, fmt.Errorf("not a JSON object: %w", err)
	}
	r := &reader{raw: raw}
	c := Config{R: 8, Alpha: 8} // PEFT's defaults
	r.get("peft_type", &c.Method)
	method, ok := methods[c.Method]
	switch {
	case r.err == nil && c.Method == "LORA":
		c.Method = ""
	case r.err == nil && !ok:
		return Config{}, fmt.Errorf("peft_type %.40q is not supported; use LORA, or to merge %s", c.Method, strings.Join(slices.Sorted(maps.Keys(methods)), ", "))
	}
	for _, key := range method.fields {
		r.take(key)
	}
	r.get("base_model_name_or_path", &c.BaseModel)
	r.get("revision", &c.Revision)
	r.get(cmp.Or(method.rank, "r"), &c.R)
	r.get(cmp.Or(method.alpha, "lora_alpha"), &c.Alpha)
	r.get("lora_dropout", &c.Dropout)
	r.get("use_rslora", &c.RSLoRA)
	r.get("use_dora", &c.DoRA)
	if c.Method == "" || slices.Contains(lycoris, c.Method) {
		r.get("rank_pattern", (*patterns[int])(&c.RankPattern))
	}
	r.get("alpha_pattern", (*patterns[float64])(&c.AlphaPattern))
	r.get("fan_in_fan_out", &c.FanInFanOut)
	r.get("task_type", &c.TaskType)
	r.get("modules_to_save", (*oneOrMore[string])(&c.ModulesToSave))
	r.get("ensure_weight_tying", &c.WeightTying)
	r.get("target_modules", &c.TargetModules)
	r.get("target_parameters", &c.TargetParameters)
	r.get("exclude_modules", &c.ExcludeModules)
	r.get("layers_to_transform", (*oneOrMore[int])(&c.Layers))
	r.get("layers_pattern", (*oneOrMore[string])(&c.LayersPattern))

	r.get("bias", &c.Bias)
	if c.Bias == "none" {
		c.Bias = ""
	}
	r.get("lora_bias", &c.LoRABias)
	r.get(cmp.Or(method.tokens, "trainable_token_indices"), &c.Tokens)
	c.readTerms(r)
	if init := r.take("init_lora_weights"); !slices.Contains(innocentInits, init) {
		return Config{}, fmt.Errorf("init_lora_weights %.40s is not supported, because it may change the base weights; PEFT's save_pretrained converts the adapter with path_initial_model_for_weight_conversion", init)
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
			return Config{}, fmt.Errorf("%q is %.60s, but %s are not supported", key, v, what)
		}
		return Config{}, fmt.Errorf("%.60q is %.60s, which is not supported", key, v)
	}
	if err := c.validate(); err != nil {
		return Config{}, err
	}
	_, err := c.rule()
	return c, err
}

// readTerms reads OFT's series.
func (c *Config) readTerms(r *reader) {
	if c.Method != oft {
		return
	}
	series := true
	c.CayleyTerms = 5
	r.get("num_cayley_neumann_terms", &c.CayleyTerms)
	r.get("use_cayley_neumann", &series)
	if !series {
		c.CayleyTerms = 0
	} else if c.CayleyTerms < 1 && r.err == nil {
		r.err = fmt.Errorf("num_cayley_neumann_terms is %d; it must be positive", c.CayleyTerms)
	}
}
