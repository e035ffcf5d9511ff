package policy

import (
	"math"
	"strings"

	"github.com/rltrain/rltrain/torch/transformers"
)

// AdvisedRate is a learning rate for SFT by the rule of thumb that Tinker's cookbook has for "LoRA Without Regret" (Schulman
// 2025): with an adapter of any rank
//
//	5e-4 · (2000/H)^p
//
// for the hidden size H, and a tenth of it if all weights are trained. p is fitted to Qwen (0.0775) and Llama (0.781). For another
// family the rate is between those of the two.
func AdvisedRate(c *transformers.Config, full bool) (low, high float64) {
	rate := func(p float64) float64 {
		r := 5e-4 * math.Pow(2000/float64(c.HiddenSize), p)
		if full {
			r /= 10
		}
		return r
	}
	qwen, llama := rate(0.0775), rate(0.781)
	switch {
	case strings.HasPrefix(c.ModelType, "qwen"):
		return qwen, qwen
	case c.ModelType == "llama":
		return llama, llama
	}
	return min(qwen, llama), max(qwen, llama)
}

// AdvisedRate is AdvisedRate of the policy.
func (p *CausalLM) AdvisedRate() (low, high float64) { return AdvisedRate(p.config, p.Full()) }
