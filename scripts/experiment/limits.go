package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/rltrain/rltrain/rl/report"
)

// body describes the matrix products of a transformer: widths in features, with an adapter of the given rank on some layers.
type body struct {
	layers, hidden, queries, keys, inner, vocab int
	gated                                       bool // three matrices of hidden·inner per layer, else two
	rank                                        int
	adapted                                     []string // q, k, v, o, up (with gate) and down
}

var (
	everyLinear = []string{"q", "k", "v", "o", "up", "down"}
	smol135     = body{30, 576, 576, 192, 1536, 49152, true, 8, everyLinear}
	tinyLlama   = body{4, 128, 128, 128, 512, 64, true, 8, everyLinear}
	bertBase    = body{12, 768, 768, 768, 3072, 0, false, 8, []string{"q", "v"}}
)

// weights are the numbers of weights in all layers' matrices and in the adapters.
func (b body) weights() (frozen, trained float64) {
	ups := 1
	if b.gated {
		ups = 2
	}
	for _, l := range []struct {
		name           string
		in, out, times int
	}{{"q", b.hidden, b.queries, 1}, {"k", b.hidden, b.keys, 1}, {"v", b.hidden, b.keys, 1}, {"o", b.queries, b.hidden, 1}, {"up", b.hidden, b.inner, ups}, {"down", b.inner, b.hidden, 1}} {
		frozen += float64(b.layers * l.times * l.in * l.out)
		if slices.Contains(b.adapted, l.name) {
			trained += float64(b.layers * l.times * b.rank * (l.in + l.out))
		}
	}
	return frozen, trained
}

// pass is the number of multiplications and additions of a forward pass over this many tokens, pairs of a query and a
// visible key, and tokens with log-probabilities. With training it includes the gradients of inputs and adapters.
func (b body) pass(tokens, pairs, labels float64, training bool) float64 {
	frozen, trained := b.weights()
	head, attention := float64(b.vocab*b.hidden), float64(b.layers*b.queries)*pairs
	if !training {
		return 2*frozen*tokens + 2*head*labels + 4*attention // a disabled adapter costs nothing
	}
	return 4*frozen*tokens + 6*trained*tokens + 4*head*labels + 12*attention
}

// causal is the number of pairs of a query and a visible key, for a sequence of n tokens after others.
func causal(n, before float64) float64 { return n*before + n*(n+1)/2 }

// spreadLengths are the lengths of a mixed batch of bench.
func spreadLengths(batch, shortest, longest int) (lengths []float64) {
	for i := range batch {
		lengths = append(lengths, float64(shortest+i*(longest-shortest)/(batch-1)))
	}
	return lengths
}

func same(batch, length int) []float64 { return slices.Repeat([]float64{float64(length)}, batch) }

// sft is an SFT step of a language model; all tokens except the first of a sequence are labels.
func (b body) sft(lengths []float64) (flops float64) {
	for _, n := range lengths {
		flops += b.pass(n, causal(n, 0), n-1, true)
	}
	return flops
}

// classify is a supervised step of a classifier, with bidirectional attention.
func (b body) classify(lengths []float64) (flops float64) {
	for _, n := range lengths {
		flops += b.pass(n, n*n, 0, true)
	}
	return flops
}

// dpo is a step with four pairs of completions of 192 tokens to a prompt of 64. The prompt is computed once, and once for
// the reference.
func (b body) dpo() float64 {
	const pairs, prompt, answer = 4, 64, 192
	tokens, looks := prompt+2*answer, causal(prompt, 0)+2*causal(answer, prompt)
	one := b.pass(float64(tokens), looks, 2*answer, true) + b.pass(float64(tokens), looks, 2*answer, false)
	return pairs * one
}

// logProbs is the work for the logits of 2048 tokens, and for their gradient by the hidden states.
const logProbs = 2 * 2 * 2048 * 49152 * 576

// products is the minimum work of a case's step. The first update of "ppo" reuses the forward pass of the rollout.
var products = map[string]float64{
	"lora_step fp32":                          smol135.sft(same(8, 256)),
	"lora_step fp32 mixed, peer padded":       smol135.sft(spreadLengths(8, 32, 256)),
	"lora_step fp32 mixed, peer padding-free": smol135.sft(spreadLengths(8, 32, 256)),
	"dpo_step fp32":                           smol135.dpo(),
	"dpo_step tiny":                           tinyLlama.dpo(),
	"logprob with gradient":                   logProbs,
	"logprob with gradient, peer TRL":         logProbs,
	"sft b32 s32":                             bertBase.classify(same(32, 32)),
	"sft b32 s32 mixed":                       bertBase.classify(spreadLengths(32, 8, 32)),
	"ppo b32 s32":                             4 * bertBase.classify(same(32, 32)),
}

// productResults is the part of products.json that limits uses.
type productResults struct {
	Loop struct {
		AVX512 float64 `json:"avx512"`
	} `json:"bare_loop_of_multiply_adds"` // GFLOP/s per core
}

// limits is a table of the highest possible ratios, by CPU time and by wall time, for the cases that miss a goal in one of
// them.
func limits(p productResults, cpu, clock benchResults) string {
	names := map[string]bool{}
	for _, results := range []benchResults{cpu, clock} {
		for name, c := range results {
			if _, counted := products[name]; counted && c.ratio() < c.Goal {
				names[name] = true
			}
		}
	}
	var rows [][]string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		row := []string{name, fmt.Sprintf("%.1f", products[name]/1e9), ""}
		for _, results := range []benchResults{cpu, clock} {
			c, measured := results[name]
			if !measured {
				row = append(row, "", "")
				continue
			}
			// The time at the loop's full speed with nothing but products; ratios are by tokens if lengths were sampled differently.
			most := c.ratio() * c.Ours.Best / (products[name] / (1e9 * p.Loop.AVX512 * float64(c.Ours.Threads)))
			row[2] = fmt.Sprintf("%.1f×", c.Goal)
			row = append(row, fmt.Sprintf("%.2f×", 0.9*most), fmt.Sprintf("%.0f %%", 100*c.Goal/most))
		}
		rows = append(rows, row)
	}
	return report.MarkdownTable([]string{"case", "GFLOP per step", "goal", "limit, CPU time", "goal needs", "limit, wall clock", "goal needs"}, rows)
}

// amxLimits is amx_limits.json: what the processor of bench_amx.json can do, and the goals that its cases miss.
type amxLimits struct {
	Loop  float64            `json:"loop_gflop_s"` // of bare multiply-adds in fp32
	Read  float64            `json:"read_gb_s"`
	Goals map[string]float64 `json:"goals"`
}

// markdown is a table of the speed that each case reached and would need for its goal, as fractions of the limit: reading for
// decode steps, else multiply-adds.
func (l amxLimits) markdown(results benchResults) string {
	var rows [][]string
	for _, name := range slices.Sorted(maps.Keys(l.Goals)) {
		c := results[name]
		ratio, limit, speed := c.ratio(), "multiply-adds", products[name]/1e9/c.Ours.Best/l.Loop
		if c.Ours.Step > 0 {
			ratio, limit, speed = c.Peer.Step/c.Ours.Step, "reading", c.Ours.Bytes/1e6/c.Ours.Step/l.Read
		}
		rows = append(rows, []string{name, fmt.Sprintf("%.1f×", l.Goals[name]), fmt.Sprintf("%.2f×", ratio), limit,
			fmt.Sprintf("%.0f %%", 100*speed), fmt.Sprintf("%.0f %%", 100*speed*l.Goals[name]/ratio)})
	}
	return report.MarkdownTable([]string{"case", "goal", "ratio", "limit", "reached", "goal needs"}, rows)
}
