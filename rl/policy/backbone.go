package policy

import (
	"cmp"
	"context"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/hub"
	"github.com/rltrain/rltrain/torch/transformers"
	"github.com/rltrain/rltrain/torch/transformers/tokenizer"
)

// Config says how a policy is made of a model folder.
type Config struct {
	Dir       string   // model folder
	BaseModel string   // name of the base model in saved files; "" = Dir
	Revision  string   // commit of the base model in saved files; "" = none
	DType     string   // of frozen weights: "fp32", "bf16", "fp16", of a language model "nf4" and "int8" too; "" = as transformers.Load and CausalOptions have it
	R         int      // rank of the adapter; 0 = no adapter
	Alpha     float64  // the adapter is scaled by Alpha/R
	RSLoRA    bool     // the adapter is scaled by Alpha/√R
	Dropout   float64  // of the adapter's input
	Targets   []string // endings of the adapted layers' names, or AllLinear alone; empty = the family's
	Seed      uint64   // of the adapter and the head
	Frozen    bool     // the adapter is used, not trained
	Init      string   // how the adapter starts: InitOrthogonal or InitPiSSA; else lora.Init

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

// backbone is what every policy has: a pretrained model with low-rank pairs on it, a tokenizer, and a value head where the
// algorithm needs one.
type backbone struct {
	BaseModel string               // hub id or folder, as saved files name it
	Tokenizer *tokenizer.Tokenizer // nil for a model of random weights
	// PartTokens is how many tokens a forward pass without a gradient takes at most, at least one sequence; 0 = 4096.
	PartTokens int

	dir        string // folder of the base model
	source     string // folder that the policy was loaded from, which may have a value head; "" = none
	core       *torch.Model
	config     *transformers.Config
	parameters int64 // of the base model
	adapter    adapter
	value      *valueHead // nil where there is none
}

// newAdapter puts new pairs on the model, which change nothing yet and are a function of the seed. l has what depends on the
// kind of policy.
func (b *backbone) newAdapter(c Config, l lora.Config) error {
	l = c.lora(l, b.config)
	l.BaseModel = b.BaseModel
	pairs := b.adapter.start
	if pairs == nil {
		var err error
		if pairs, err = initialPairs(b.config.Linears(), b.config.ExpertModules(), l, c.Init, rl.Stream(c.Seed, rl.StreamInit, 0)); err != nil {
			return err
		}
	}
	return b.attach(l, pairs)
}

// lora is the configuration of a new adapter on model. l has what depends on the kind of policy.
func (c Config) lora(l lora.Config, model *transformers.Config) lora.Config {
	l.Revision, l.R, l.Alpha, l.RSLoRA, l.Dropout, l.TargetModules.Names = c.Revision, c.R, c.Alpha, c.RSLoRA, c.Dropout, c.Targets
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

// attach puts pairs on the model.
func (b *backbone) attach(l lora.Config, pairs []lora.Pair) error {
	b.adapter.config = l
	return b.adapter.attach(b.core, b.config.Linears(), pairs)
}

// width is H, the length of a state.
func (b *backbone) width() int { return b.config.Core().HiddenSize }

// AddValueHead implements Policy.
func (b *backbone) AddValueHead() (err error) {
	if b.value == nil {
		b.value, err = newValueHead(b.source, int64(b.width()))
	}
	return err
}

// Fresh implements Policy.
func (b *backbone) Fresh() (bool, error) {
	if len(b.adapter.layers) == 0 {
		return false, nil
	}
	return b.adapter.fresh()
}

// Adapted says whether the policy has an adapter beside its weights; a merged model has none.
func (b *backbone) Adapted() bool { return len(b.adapter.layers) > 0 }

// defaultPartTokens is large enough for full matrix products, and small enough that the activations of a part stay in tens
// of megabytes.
const defaultPartTokens = 4096

// inParts runs forward passes without a gradient over n sequences, of PartTokens tokens at most each, in order. It stops
// between parts with ctx's error.
func (b *backbone) inParts(ctx context.Context, n int, tokens func(i int) int, visit func(s *torch.Scope, from, to int) error) error {
	if n == 0 {
		return nil
	}
	for _, part := range rl.MicroBatches(n, cmp.Or(b.PartTokens, defaultPartTokens), tokens) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := torch.Do(torch.NoGrad, func(s *torch.Scope) error { return visit(s, part[0], part[1]) }); err != nil {
			return err
		}
		run.Working(ctx, part[1], n, 0)
	}
	return nil
}

// ActivationBytes estimates the memory that training takes per token of a micro-batch.
func (b *backbone) ActivationBytes(checkpointed bool) int64 {
	return b.config.ActivationBytes(checkpointed)
}

// CacheBytes is the memory that a generated token or one of a prompt takes while completions are sampled.
func (b *backbone) CacheBytes() int64 { return b.config.CacheBytes() }

// isLanguageModel says whether dir has a language model, not an encoder.
func isLanguageModel(dir string) bool {
	_, err := transformers.LoadCausalConfig(dir)
	return err == nil
}

// IsLanguageModel says whether a model that was found is a language model, not an encoder.
func IsLanguageModel(m hub.Model) bool { return isLanguageModel(m.Dir) }

// onAllProcessors calls do for 0 to n-1, on all processors at once.
func onAllProcessors(n int, do func(i int)) {
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), n) {
		workers.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				do(int(i))
			}
		})
	}
	workers.Wait()
}
