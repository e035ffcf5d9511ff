package transformers_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/transformers"
)

// TestCompletionsDoNotDependOnTheBatch: each completion has the same tokens and log-probs, to the bit, whatever is
// generated at the same time. RLTRAIN_COMPLETIONS sets the number of completions per type of weights.
func TestCompletionsDoNotDependOnTheBatch(t *testing.T) {
	count := 60
	if text := os.Getenv("RLTRAIN_COMPLETIONS"); text != "" {
		count = must.Get(strconv.Atoi(text))(t)
	}
	shape := transformers.LlamaShape{Vocab: 512, Hidden: 192, Layers: 2, Heads: 6, KVHeads: 2, Intermediate: 512, RopeTheta: 1e4}
	for _, kind := range []string{"fp32", "bf16", "int8", "nf4", "q8_0", "q4_0"} {
		t.Run(kind, func(t *testing.T) {
			m := must.Open(randomModel(shape, kind))(t)
			want := completions(t, m, count, 1)
			for _, slots := range []int{5, 24, 90} {
				expect.Same(t, "", cmp.Diff(want, completions(t, m, count, slots)), "one at a time (-), up to %d at a time (+):\n", slots)
			}
		})
	}
}

func randomModel(shape transformers.LlamaShape, kind string) (*transformers.Causal, error) {
	switch kind {
	case "fp32":
		return transformers.RandomLlama(shape, torch.F32, 3)
	case "bf16":
		return transformers.RandomLlama(shape, torch.BF16, 3)
	default:
		return transformers.RandomQuantized(shape, torch.QuantType(kind), 3)
	}
}

// completions generates to count prompts of 1 to 40 tokens, in up to slots at a time, and returns the events by prompt.
func completions(t *testing.T, m *transformers.Causal, count, slots int) map[string][]torch.Event {
	t.Helper()
	e := must.Get(torch.NewEngine(m.Model, torch.EngineConfig{Slots: slots}))(t)
	defer e.Close()
	found := map[string][]torch.Event{}
	for i := range count {
		rng := rand.New(rand.NewPCG(9, uint64(i)))
		prompt := make([]int32, 1+rng.IntN(40))
		for j := range prompt {
			prompt[j] = rng.Int32N(512)
		}
		must.Get(e.Submit(torch.Request{Prompt: prompt, Samples: 1, MaxNew: 1 + rng.IntN(12), Seed: 2, Stream: uint64(i), Sampling: torch.Sampling{Temperature: 1}}))(t)
	}
	for e.Unfinished() > 0 {
		for _, event := range must.Get(e.Step(max(64, slots)))(t) {
			key := fmt.Sprint(event.Request)
			found[key] = append(found[key], event)
		}
	}
	return found
}
