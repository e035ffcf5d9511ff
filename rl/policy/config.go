package policy

import (
	"strings"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/torch/transformers"
)

// Config says how a policy is made of a model folder.
type Config struct {
	Dir        string   // model folder
	BaseModel  string   // name of the base model in saved files; "" = Dir
	Revision   string   // commit of the base model in saved files; "" = none
	DType      string   // of frozen weights: "fp32", "bf16", "fp16", of a language model "nf4" and "int8" too; "" = as transformers.Load and CausalOptions have it
	R          int      // rank of the adapter; 0 = no adapter
	Alpha      float64  // the adapter is scaled by Alpha/R
	RSLoRA     bool     // the adapter is scaled by Alpha/√R
	DoRA       bool     // CausalLM: the adapter has the norms of the rows of adapted weights too (Liu et al. 2024, "DoRA", eq. 5)
	Dropout    float64  // of the adapter's input
	Parameters []string // endings of the adapted names of transformers.Config.ExpertLinears
	Targets    []string // endings of the adapted layers' names, or AllLinear alone; empty = the family's
	Seed       uint64   // of the adapter and the head
	Frozen     bool     // the adapter is used, not trained
	Init       string   // how the adapter starts: InitOrthogonal or InitPiSSA; else lora.Init

	Full bool // CausalLM: train all weights, in fp32, instead of an adapter
	// ModulesToSave are the ends of the names of modules that a CausalLM trains in full, in fp32, beside the adapter.
	ModulesToSave []string

	Labels    []string // Classifier: the classes
	Pooling   string   // Classifier and RewardModel on an encoder: PoolMean or PoolFamily; "" = as the folder says
	MaxLength int      // Classifier and RewardModel: cut texts at this many tokens; 0 = the model's positions
	// Prompt asks for a Classifier with PoolScore: what the model reads, with TextMark for the text, as text or as messages.
	Prompt func(asText bool) envs.Observation
	// Template is for a language model's chat template; a zero clock means now.
	Template TemplateSettings

	merged map[string]func([]float32) // changes of a CausalLM's weights that an adapter makes
	scored bool                       // CausalLM: the folder may be a classifier's
	pooled bool                       // CausalLM: a classifier reads its hidden states
}

// TemplateSettings are what the chat template gets in all conversations.
type TemplateSettings struct {
	Now  time.Time      // clock of strftime_now
	Args dataset.Object // variables, such as enable_thinking; those of a conversation win
}

// Values of Config.Init.
const (
	InitOrthogonal = "orthogonal" // lora.InitOrthogonal, for an even R
	// InitPiSSA starts a CausalLM's adapter with the R largest singular values of each weight, and the weights without them
	// (Meng et al. 2024, "PiSSA", eq. 2 to 4). Saved, it is an ordinary adapter of twice the rank on the model as it is in files.
	InitPiSSA = "pissa"
)

// lora is the configuration of a new adapter on model. l has what depends on the kind of policy.
func (c Config) lora(l lora.Config, model *transformers.Config) lora.Config {
	l.Revision, l.R, l.Alpha, l.RSLoRA, l.DoRA, l.Dropout, l.TargetModules.Names = c.Revision, c.R, c.Alpha, c.RSLoRA, c.DoRA, c.Dropout, c.Targets
	l.TargetParameters = c.Parameters
	switch {
	case len(c.Targets) == 0:
		l.TargetModules.Names = model.DefaultTargets()
	case len(c.Targets) == 1 && strings.EqualFold(c.Targets[0], AllLinear):
		l.TargetModules.Names = model.AllTargets()
	}
	return l
}

// AllLinear is the only one of Config.Targets where every linear layer is adapted, except the output layer.
const AllLinear = "all-linear"
