package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/rltrain/rltrain/rl/report"
)

// familiesResults is families.json, which scripts/families.py --speed writes: by model_type.
type familiesResults map[string]familySpeed

// encodersResults is encoders.json, which scripts/encoder_speed.py writes.
type encodersResults map[string]familySpeed

// familySpeed is the speed of a model of a family, in rounds beside a Llama or BERT and transformers.
type familySpeed struct {
	Weights       float64 `json:"weights"` // entries of matrices that a token meets, but for the embedding
	BesideWeights float64 `json:"beside_weights"`
	Rounds        []struct {
		Own, Beside, Transformers [2]float64 // seconds of a training step, and of a decoded token or a batch
	} `json:"rounds"`
}

func (r familiesResults) markdown() string {
	return speedTable(r, "llama", "SFT step, s", "decode step, s")
}
func (r encodersResults) markdown() string {
	return speedTable(r, "bert", "training step, s", "forward, s")
}

func speedTable(r map[string]familySpeed, beside, train, run string) string {
	var rows [][]string
	for _, family := range slices.Sorted(maps.Keys(r)) {
		s := r[family]
		row := []string{family, fmt.Sprintf("%.1f", s.Weights/1e6)}
		for _, i := range []int{0, 1} {
			var seconds, ratio, peer []float64
			for _, round := range s.Rounds {
				seconds = append(seconds, round.Own[i])
				ratio = append(ratio, round.Own[i]/round.Beside[i]*s.BesideWeights/s.Weights)
				peer = append(peer, round.Transformers[i]/round.Own[i])
			}
			row = append(row, fmt.Sprintf("%.4f", middle(seconds)), fmt.Sprintf("%.2f×", middle(ratio)), fmt.Sprintf("%.2f×", middle(peer)))
		}
		rows = append(rows, row)
	}
	than := "it / " + beside + ", by weight"
	return report.MarkdownTable([]string{"model_type", "M weights a token meets", train, than, "transformers / it", run, than, "transformers / it"}, rows)
}

// middle is the median; the upper one of two.
func middle(x []float64) float64 {
	return slices.Sorted(slices.Values(x))[len(x)/2]
}
