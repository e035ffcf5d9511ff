package main

import (
	"math"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

// TestStepOnPaper: some times grow with the number of GPUs, others shrink.
func TestStepOnPaper(t *testing.T) {
	c := cluster{parameters: 100, trained: 10, samples: 64, prompt: 2, answer: 8, updates: 3, peak: 1000, used: 0.5, memory: 400, memoryUsed: 0.5, network: 40, networkUsed: 0.5}
	m := measuredParts{exchanges: 5, token: 2, hop: 0.1, load: 0.01}
	one, two := c.step(1, m), c.step(2, m)
	// 8 steps that read 200 bytes at 200 bytes/s, and for each of 64 samples 10 tokens of 200 operations at 500
	// operations/s.
	want := 8.0 + 64*10*0.4
	expect.True(t, math.Abs(one.generate-want) <= 1e-9, "one GPU generates for %v s, want %v", one.generate, want)
	if want := 64 * 10 * 3 * 0.4; math.Abs(one.train-want) > 1e-9 || one.gradients+one.samples+one.waiting != 0 {
		t.Errorf("one GPU trains for %v s, want %v, and exchanges nothing: %+v", one.train, want, one)
	}
	for name, pair := range map[string][2]float64{
		"train":     {two.train, one.train / 2},
		"gradients": {two.gradients, 3 * 40 / 20},      // 2·½ of 40 bytes, three times, at 20 a second
		"samples":   {two.samples, 0.5 * 640 * 2 / 20}, // half of 640 tokens of 2 bytes
		"waiting":   {two.waiting, 0.5},
		"weights":   {two.weights, 0.4},
	} {
		expect.True(t, math.Abs(pair[0]-pair[1]) <= 1e-9, "%s: %v s, want %v", name, pair[0], pair[1])
	}
}

func TestDistributedTable(t *testing.T) {
	setting := distributedSettings[1].name
	r := distributedResults{Cores: 2, Runs: []ranksRun{
		{Setting: setting, Ranks: 1, Seed: 1, Step: 2, CPU: 2, Trained: 1e6, Tokens: 100},
		{Setting: setting, Ranks: 2, Seed: 1, Step: 1, Exchange: 0.25, CPU: 2.5, Exchanges: 6, Sent: 4e6 + 5000, Gradients: 4e6, Trained: 1e6, Tokens: 100},
		{Setting: setting, Ranks: 2, Seed: 2, Step: 3, Exchange: 0.75, CPU: 2.5, Exchanges: 6, Sent: 4e6 + 5000, Gradients: 4e6, Trained: 1e6, Tokens: 100},
	}, Links: []link{{Ranks: 3, Latency: 0.002, Rate: 1e9}}, Load: &weightLoad{Bytes: 2e6, Seconds: []float64{0.3, 0.2}}}
	m := r.measured()
	expect.True(t, m.exchanges == 6 && m.token == 100 && m.hop == 0.001 && math.Abs(m.load-1e-7) <= 1e-15, "measured %+v", m)
	text := r.markdown()
	expect.Contains(t, text, "2 cores", "2.00 ± 1.41", "0.50 ± 0.35", "4.00", "1.000 ms more", "100 bytes", "2.00 MB in 200.0 ms", "|  512 | ")
}
