package policy

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
)

// heldBytes is this process's anonymous resident memory.
func heldBytes(t *testing.T) float64 {
	t.Helper()
	torch.ReleaseMemory()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, found := strings.CutPrefix(line, "RssAnon:"); found {
			kilobytes := must.Get(strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64))(t)
			return 1024 * kilobytes
		}
	}
	t.Skip("the system does not report memory")
	return 0
}

// TestFrozenWeightsAreStoredOnce: a sampler packs the weights once, in addition to the mapped file; a second sampler,
// scores and updates share them. Another policy shows what a copy would cost.
func TestFrozenWeightsAreStoredOnce(t *testing.T) {
	c := Config{Dir: filepath.Join(t.TempDir(), "model"), R: 4, Alpha: 8}
	must.Do(t, TinyModel(c.Dir, 4, 512, 7))
	file := must.Get(os.Stat(filepath.Join(c.Dir, "model.safetensors")))(t)
	open := func() *CausalLM {
		return must.Open(NewCausalLM(c))(t)
	}
	sample := func(p *CausalLM) *Sampler {
		return must.Open(p.NewSampler(4))(t)
	}
	complete := func(m *Sampler) {
		must.Do(t, m.Generate(t.Context(), [][]int32{{5, 6, 7}}, GenerateOptions{Samples: 4, MaxNew: 8}, func(int, []Completion) error { return nil }))
	}
	complete(sample(open())) // what the process keeps after its first completions
	p := open()
	sequences := copies(t, p)
	gradients(t, p, sequences, 0, false) // kept by every pass
	var m *Sampler
	for _, part := range []struct {
		name        string
		do          func()
		least, most float64 // copies of the weights
	}{
		{"a sampler", func() { m = sample(p) }, 0.9, 1.1},
		{"a second sampler", func() { sample(p) }, -0.1, 0.1},
		{"completions", func() { complete(m) }, -0.1, 0.1},
		{"scores", func() {
			must.Get(p.Score(t.Context(), [][]int32{{5, 6, 7}}, [][]int32{{8, 9}}, 1))(t)
		}, -0.1, 0.1},
		{"gradients", func() { gradients(t, p, sequences, 0, false) }, -0.1, 0.1},
		{"a sampler of another policy", func() { sample(open()) }, 0.9, 1.1},
	} {
		before := heldBytes(t)
		part.do()
		took := (heldBytes(t) - before) / float64(file.Size())
		expect.True(t, took >= part.least && took <= part.most, "%s: %.3f copies of the weights, want %v to %v", part.name, took, part.least, part.most)
	}
}

// TestCacheGrowsWithCompletions: cache memory grows with the tokens generated, not with the requested maximum.
func TestCacheGrowsWithCompletions(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "model")
	must.Do(t, TinyModel(dir, 2, 256, 7))
	p := must.Open(NewCausalLM(Config{Dir: dir}))(t)
	const samples, longest = 16, 2000
	m := must.Open(p.NewSampler(samples))(t)
	write := func(longest, tokens int) {
		t.Helper()
		id := must.Get(m.Submit([]int32{5, 6, 7}, 0, GenerateOptions{Samples: samples, MaxNew: longest, Sampling: torch.Sampling{Temperature: 1}}, func(Progress) {}))(t)
		for range tokens {
			must.Do(t, m.Step())
		}
		must.Do(t, m.Cancel(id))
	}
	write(4, 4) // needed by any completion
	before := heldBytes(t)
	write(longest, 4)
	const asked = samples * longest * 2 * 2 * 256 * 4 // keys and values of two layers
	took := (heldBytes(t) - before) / asked
	expect.True(t, took <= 0.2, "completions of 4 tokens took %.2f of what %d tokens need", took, longest)
}
