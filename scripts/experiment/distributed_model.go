package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/rltrain/rltrain/rl/report"
)

// cluster holds the assumptions of the estimate; none of them was measured here.
type cluster struct {
	parameters, trained  float64 // of the policy, in bf16; of its adapter, with fp32 gradients
	samples              float64 // per step
	prompt, answer       float64 // tokens of each
	updates              float64 // per step
	peak, used           float64 // bf16 operations/s of a GPU, and the fraction of it that a pass reaches
	memory, memoryUsed   float64 // bytes/s of GPU memory, and the fraction of it that decoding reaches
	network, networkUsed float64 // bytes/s of a GPU's network, and the fraction of it that an all-reduce reaches
}

// assumed is a policy of Llama-3-8B's shape with an adapter of rank 32 on all linear layers, on H100s with 400 Gb/s each.
var assumed = cluster{
	parameters: 8.03e9, trained: 83.9e6, samples: 4096, prompt: 256, answer: 1024, updates: 4,
	peak: 989e12, used: 0.4, memory: 3.35e12, memoryUsed: 0.6, network: 50e9, networkUsed: 0.5,
}

// seconds are the parts of a step.
type seconds struct{ generate, train, gradients, samples, waiting, weights float64 }

func (s seconds) sum() float64 {
	return s.generate + s.train + s.gradients + s.samples + s.waiting + s.weights
}

// measuredParts are the estimate's inputs from the runs and links.
type measuredParts struct {
	exchanges float64 // per step
	token     float64 // bytes per token that ranks exchange, without gradients
	hop       float64 // seconds that each further rank adds to an exchange
	load      float64 // seconds per byte for a server to load an adapter
}

func (r distributedResults) measured() (m measuredParts) {
	adapter := distributedSettings[len(distributedSettings)-1].name
	n := 0.0
	for _, run := range r.Runs {
		if run.Setting == adapter && run.Ranks == slices.Max(ranksOf(r.Runs)) {
			n++
			m.exchanges += run.Exchanges
			m.token += (run.Sent - run.Gradients) * float64(run.Ranks) / run.Tokens
		}
	}
	m.exchanges, m.token = m.exchanges/n, m.token/n
	first := r.Links[0] // its ranks have a core each; with more ranks, waiting includes waiting for a core
	m.hop = first.Latency / float64(first.Ranks-1)
	m.load = slices.Min(r.Load.Seconds) / r.Load.Bytes
	return m
}

func ranksOf(runs []ranksRun) []int {
	ranks := map[int]bool{}
	for _, r := range runs {
		ranks[r.Ranks] = true
	}
	return slices.Sorted(maps.Keys(ranks))
}

// step estimates a step on this many GPUs that each generate and train their part. Attention counts only its weight
// products, and all completions have the same length.
func (c cluster) step(gpus float64, m measuredParts) (s seconds) {
	share := c.samples / gpus
	pass := 2 * c.parameters / (c.peak * c.used) // forward, per token
	s.generate = c.answer*(2*c.parameters/(c.memory*c.memoryUsed)+share*pass) + share*c.prompt*pass
	// A forward pass for the old log π, then a forward and a backward pass that skips frozen weights.
	s.train = share * (c.prompt + c.answer) * 3 * pass
	rate := c.network * c.networkUsed
	s.gradients = c.updates * 2 * (gpus - 1) / gpus * 4 * c.trained / rate
	s.samples = (gpus - 1) / gpus * c.samples * (c.prompt + c.answer) * m.token / rate
	s.waiting = m.exchanges * m.hop * (gpus - 1)
	s.weights = 4 * c.trained * m.load
	return s
}

// markdown is the tables of the runs and of the estimate.
func (r distributedResults) markdown() string {
	text := fmt.Sprintf("Mean step of sum_digits; one thread per process, %d cores, shared machine; ± between seeds. CPU seconds sum over ranks.\n\n", r.Cores)
	var rows [][]string
	for _, setting := range distributedSettings {
		for _, ranks := range ranksOf(r.Runs) {
			var step, exchange, cpu []float64
			var of ranksRun
			for _, run := range r.Runs {
				if run.Setting == setting.name && run.Ranks == ranks {
					step, exchange, cpu, of = append(step, run.Step), append(exchange, run.Exchange), append(cpu, run.CPU), run
				}
			}
			if len(step) == 0 {
				continue
			}
			rows = append(rows, []string{setting.name, fmt.Sprint(ranks), fmt.Sprint(len(step)), spread(step, 2), spread(exchange, 2), spread(cpu, 2), megabytes(of.Sent), megabytes(of.Gradients), megabytes(4 * of.Trained)})
		}
	}
	text += report.MarkdownTable([]string{"what", "ranks", "seeds", "s per step", "exchanging", "CPU s per step", "MB sent per rank", "of these gradients", "MB of trained weights"}, rows)
	if len(r.Links) == 0 || r.Load == nil {
		return text
	}
	rows = nil
	for _, l := range r.Links {
		rows = append(rows, []string{fmt.Sprint(l.Ranks), fmt.Sprintf("%.2f", 1000*l.Latency), fmt.Sprintf("%.2f", l.Rate/1e9)})
	}
	text += "\nExchanges between goroutines of one process over loopback, best of ten rounds:\n\n" +
		report.MarkdownTable([]string{"ranks", "shortest, ms", "gradients summed, GB/s"}, rows)
	m, c := r.measured(), assumed
	text += fmt.Sprintf("\nProjection. Measured: %.0f exchanges per step, %.3f ms more for each further rank; %.0f bytes per token besides gradients; a server loads an adapter of %s MB in %.1f ms. ",
		m.exchanges, 1000*m.hop, m.token, megabytes(r.Load.Bytes), 1000*slices.Min(r.Load.Seconds))
	text += fmt.Sprintf("Assumed: %.3g bf16 parameters and an adapter of %.3g; %.0f samples of %.0f + %.0f tokens per step; %.0f updates; GPUs of %.0f TFLOP/s at %.0f %%; %.2f TB/s of memory at %.0f %% in decoding; %.0f GB/s of network per GPU at %.0f %%; equal lengths; attention not counted. Seconds per step:\n\n",
		c.parameters, c.trained, c.samples, c.prompt, c.answer, c.updates, c.peak/1e12, 100*c.used, c.memory/1e12, 100*c.memoryUsed, c.network/1e9, 100*c.networkUsed)
	rows = nil
	least := c.step(8, m).sum()
	for _, gpus := range []float64{8, 64, 512} {
		s := c.step(gpus, m)
		row := []string{fmt.Sprint(gpus)}
		for _, part := range []float64{s.generate, s.train, s.gradients, s.samples, s.waiting, s.weights, s.sum()} {
			row = append(row, fmt.Sprintf("%.2f", part))
		}
		rows = append(rows, append(row, fmt.Sprintf("%.0f", 100*8*least/(gpus*s.sum()))))
	}
	return text + report.MarkdownTable([]string{"GPUs", "generate", "train", "sum gradients", "exchange samples", "wait for ranks", "weights to servers", "all", "% of 8 GPUs' pace each"}, rows)
}

func megabytes(bytes float64) string { return fmt.Sprintf("%.2f", bytes/1e6) }
