package algo_test

import (
	"testing"

	"rltrain/rl/algo"
)

// BenchmarkSFTUpdate is a whole update of a tiny policy, where overhead outweighs arithmetic.
func BenchmarkSFTUpdate(b *testing.B) {
	p := tinyPolicy(b, 0.1)
	update, end, err := algo.BenchSFT(p, tinyExamples(8, 1))
	if err != nil {
		b.Fatal(err)
	}
	defer end()
	for b.Loop() {
		if err := update(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPPORound is a rollout of 8 texts and 4 updates on it.
func BenchmarkPPORound(b *testing.B) {
	p := tinyPolicy(b, 0)
	round, end, err := algo.BenchPPO(p, tinyExamples(8, 1), 4)
	if err != nil {
		b.Fatal(err)
	}
	defer end()
	for b.Loop() {
		if err := round(); err != nil {
			b.Fatal(err)
		}
	}
}
