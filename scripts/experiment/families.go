package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/rltrain/rltrain/rl/report"
)

// familiesResults is families.json, which scripts/families.py --speed writes: by model_type.
type familiesResults map[string]familySpeed

// familySpeed is the speed of a model of a family, in rounds beside a Llama and transformers.
type familySpeed struct {
	Weights      float64 `json:"weights"` // entries of matrices that a token meets, but for the embedding
	LlamaWeights float64 `json:"llama_weights"`
	Rounds       []struct {
		Own, Llama, Transformers [2]float64 // seconds of a training step, and of a decoded token
	} `json:"rounds"`
}

func (r familiesResults) markdown() string {
	var rows [][]string
	for _, family := range slices.Sorted(maps.Keys(r)) {
		s := r[family]
		row := []string{family, fmt.Sprintf("%.1f", s.Weights/1e6)}
		for _, i := range []int{0, 1} {
			var seconds, beside, peer []float64
			for _, round := range s.Rounds {
				seconds = append(seconds, round.Own[i])
				beside = append(beside, round.Own[i]/round.Llama[i]*s.LlamaWeights/s.Weights)
				peer = append(peer, round.Transformers[i]/round.Own[i])
			}
			row = append(row, fmt.Sprintf("%.3f", middle(seconds)), fmt.Sprintf("%.2f×", middle(beside)), fmt.Sprintf("%.2f×", middle(peer)))
		}
		rows = append(rows, row)
	}
	return report.MarkdownTable([]string{"model_type", "M weights a token meets", "SFT step, s", "it / llama, by weight", "transformers / it", "decode step, s", "it / llama, by weight", "transformers / it"}, rows)
}

// middle is the median; the upper one of two.
func middle(x []float64) float64 {
	return slices.Sorted(slices.Values(x))[len(x)/2]
}
