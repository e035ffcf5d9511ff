package policy

import (
	"cmp"
	"context"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/hub"
	"github.com/rltrain/rltrain/torch/transformers"
	"github.com/rltrain/rltrain/torch/transformers/tokenizer"
)

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
// kind of policy; complete, unless nil, adds to the pairs.
func (b *backbone) newAdapter(c Config, l lora.Config, complete func([]lora.Pair) error) error {
	l = c.lora(l, b.config)
	l.BaseModel = b.BaseModel
	pairs := b.adapter.start
	if pairs == nil {
		var err error
		if pairs, err = initialPairs(b.config, l, c.Init, rl.Stream(c.Seed, rl.StreamInit, 0)); err != nil {
			return err
		}
	}
	if complete != nil {
		if err := complete(pairs); err != nil {
			return err
		}
	}
	return b.attach(l, pairs)
}

// attach puts pairs on the model.
func (b *backbone) attach(l lora.Config, pairs []lora.Pair) error {
	b.adapter.config = l
	return b.adapter.attach(b.core, append(b.config.Linears(), b.config.ExpertLinears()...), pairs)
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
