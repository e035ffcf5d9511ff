package doctor

import (
	"fmt"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/internal/options"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/torch/transformers"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
)

// memoryRows estimates the memory of the weights, the KV cache and a LoRA training step. stored is the size of the weights
// on disk in bytes, or 0; adapter is the number of weights of the adapter, or 0 for a new one.
func memoryRows(s *shared.Sheet, c *transformers.Config, parameters, stored, adapter int64) error {
	if stored > 0 {
		s.Row("weights", "%s as stored, %s as fp32", mebibytes(stored), mebibytes(4*parameters))
	} else {
		s.Row("weights", "%s as fp32, %s as bf16", mebibytes(4*parameters), mebibytes(2*parameters))
	}
	token := c.CacheBytes()
	s.Row("KV cache", "%.1f KiB per token, %s for 1,000 tokens, in fp32; half of it where a CPU multiplies in bf16", float64(token)/(1<<10), mebibytes(1000*token))
	what := "this adapter"
	if adapter == 0 {
		var usual config.LoRA
		if _, err := options.Read(&usual); err != nil {
			return err
		}
		var err error
		if adapter, err = newAdapter(c, usual.R); err != nil {
			return err
		}
		what = fmt.Sprintf("LoRA of rank %d", usual.R)
	}
	// Per weight: the weight, its gradient and AdamW's two moments.
	s.Row("training", "%s: %s weights, %s with gradients and AdamW; about %s of activations per 1,000 tokens of a micro-batch",
		what, millions(adapter), mebibytes(16*adapter), mebibytes(1000*c.ActivationBytes(false)))
	return nil
}

// newAdapter returns the number of weights of an adapter of rank r on the family's default modules.
func newAdapter(c *transformers.Config, r int) (int64, error) {
	var names []string
	sizes := map[string]int{}
	for _, linear := range c.Linears() {
		names = append(names, linear.Name)
		sizes[linear.Name] = linear.In + linear.Out
	}
	adapted, err := lora.Match(names, c.DefaultTargets())
	if err != nil {
		return 0, err
	}
	total := 0
	for _, name := range adapted {
		total += r * sizes[name]
	}
	return int64(total), nil
}

func mebibytes(bytes int64) string {
	if bytes >= 10<<30 {
		return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
}
