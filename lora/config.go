package lora

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
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
	BaseModel string  // base_model_name_or_path: a folder or a hub id, "" for null
	R         int     // rank, from 1
	Alpha     float64 // lora_alpha, above 0
	Dropout   float64 // lora_dropout, in [0, 1)
	RSLoRA    bool    // use_rslora: scale by α/√r (Kalajdzievski 2023, eq. 5)
	// TargetModules are full module names or endings at a dot.
	TargetModules []string
	// ModulesToSave are modules that are stored whole, by endings of their names. PEFT
	// adds "classifier" and "score" to those of a sequence classifier.
	ModulesToSave []string
	TaskType      string // FeatureExtraction, SequenceClassification or CausalLM
	FanInFanOut   bool   // fan_in_fan_out: the base weights are stored as [in, out], as those of GPT-2
	// Prefix stands before the encoder's modules in the names of tensors: "bert." for
	// a sequence classifier, "" for feature extraction. It is not in the JSON; Load
	// finds it in the tensors.
	Prefix string
}

// Scale is what B·A is multiplied by: α/r, or α/√r with RSLoRA.
func (c Config) Scale() float64 {
	if c.RSLoRA {
		return c.Alpha / math.Sqrt(float64(c.R))
	}
	return c.Alpha / float64(c.R)
}

// maxRank is far above any adapter; it keeps sizes from overflowing.
const maxRank = 1 << 16

// validate reports the first field that cannot be used, by its name in the file.
func (c Config) validate() error {
	switch {
	case c.R < 1 || c.R > maxRank:
		return fmt.Errorf("r %d is not between 1 and %d", c.R, maxRank)
	case !(c.Alpha > 0) || math.IsInf(c.Alpha, 0):
		return fmt.Errorf("lora_alpha %g is not above 0", c.Alpha)
	case !(c.Dropout >= 0 && c.Dropout < 1):
		return fmt.Errorf("lora_dropout %g is not in [0, 1)", c.Dropout)
	case len(c.TargetModules) == 0:
		return errors.New("target_modules is empty")
	case slices.Contains(c.TargetModules, ""):
		return errors.New("target_modules has an empty name")
	case slices.Contains(c.ModulesToSave, ""):
		return errors.New("modules_to_save has an empty name")
	case !slices.Contains([]string{FeatureExtraction, SequenceClassification, CausalLM}, c.TaskType):
		return fmt.Errorf("task_type %.40q is not supported, want %q, %q or %q", c.TaskType, FeatureExtraction, SequenceClassification, CausalLM)
	}
	return nil
}

// marshal writes the part of PEFT's fields that every release knows, sorted as
// PEFT sorts them; a reader gives the absent ones the defaults that hold here.
func (c Config) marshal() ([]byte, error) {
	optional := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	var modules any
	if len(c.ModulesToSave) > 0 {
		modules = c.ModulesToSave
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(map[string]any{
		"alpha_pattern":           map[string]float64{},
		"auto_mapping":            nil,
		"base_model_name_or_path": optional(c.BaseModel),
		"bias":                    "none",
		"fan_in_fan_out":          c.FanInFanOut,
		"inference_mode":          true,
		"init_lora_weights":       true,
		"layers_pattern":          nil,
		"layers_to_transform":     nil,
		"lora_alpha":              c.Alpha,
		"lora_dropout":            c.Dropout,
		"modules_to_save":         modules,
		"peft_type":               "LORA",
		"r":                       c.R,
		"rank_pattern":            map[string]int{},
		"revision":                nil,
		"target_modules":          c.TargetModules,
		"task_type":               c.TaskType,
		"use_dora":                false,
		"use_rslora":              c.RSLoRA,
	})
	return b.Bytes(), err
}

// harmless are fields that change neither what an adapter computes nor what is in
// its file, whatever they say. The value of any other field that Config does not
// hold must be a neutral one.
var harmless = []string{"auto_mapping", "inference_mode", "megatron_core", "peft_version", "qalora_group_size", "revision"}

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
	r.get("r", &c.R)
	r.get("lora_alpha", &c.Alpha)
	r.get("lora_dropout", &c.Dropout)
	r.get("use_rslora", &c.RSLoRA)
	r.get("fan_in_fan_out", &c.FanInFanOut)
	r.get("task_type", &c.TaskType)
	r.get("modules_to_save", &c.ModulesToSave)
	if strings.HasPrefix(string(raw["target_modules"]), `"`) {
		return Config{}, fmt.Errorf("target_modules %.60s is a pattern: list the modules by name", raw["target_modules"])
	}
	r.get("target_modules", &c.TargetModules)

	var bias string
	r.get("bias", &bias)
	if bias != "" && bias != "none" {
		return Config{}, fmt.Errorf("bias %.40q is not supported, want \"none\"", bias)
	}
	// Some ways of starting (PiSSA, OLoRA, CorDA, LoftQ) change the base weights, so
	// the pairs alone are not the adapter.
	if init := r.take("init_lora_weights"); !slices.Contains([]string{"", "null", "true", "false", `"gaussian"`}, init) {
		return Config{}, fmt.Errorf("init_lora_weights %.40s is not supported: it may change the base weights", init)
	}
	if r.err != nil {
		return Config{}, r.err
	}
	for _, key := range harmless {
		r.take(key)
	}
	for _, key := range slices.Sorted(maps.Keys(r.raw)) {
		if v := r.take(key); !slices.Contains(neutral, v) {
			return Config{}, fmt.Errorf("%.60q is %.60s: not supported", key, v)
		}
	}
	return c, c.validate()
}

// reader takes members out of a JSON object and keeps the first error.
type reader struct {
	raw map[string]json.RawMessage
	err error
}

// take removes a member and returns its JSON on one line, "" where there is none.
func (r *reader) take(key string) string {
	raw, ok := r.raw[key]
	if !ok {
		return ""
	}
	delete(r.raw, key)
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil && r.err == nil {
		r.err = fmt.Errorf("%s: %w", key, err)
	}
	return b.String()
}

// get reads a member into v, which keeps its value where the member is null or
// not there.
func (r *reader) get(key string, v any) {
	text := r.take(key)
	if text == "" || text == "null" || r.err != nil {
		return
	}
	if err := json.Unmarshal([]byte(text), v); err != nil {
		r.err = fmt.Errorf("%s: %.60s is not of the right kind", key, text)
	}
}
