package transformers

import (
	"fmt"
	"maps"
	"slices"

	"github.com/rltrain/rltrain/torch"
)

// ModelTypes are the families of language models and of encoders, sorted.
func ModelTypes() (decoding, encoding []string) {
	return slices.Sorted(maps.Keys(decoders)), slices.Sorted(maps.Keys(encoders))
}

// Choices describes the blocks of a family in words: norms, positions, MLP. Fields of config.json decide the rest.
func Choices(modelType string) []string {
	fam := families[modelType]
	norm := map[torch.NormKind]string{torch.NormRMS: "RMS norms", torch.NormRMSPlusOne: "RMS norms by 1 + w", torch.NormLayer: "layer norms"}[fam.normKind]
	switch {
	case fam.normAfter:
		norm += " of sums"
	case fam.postNorms() == torch.PostNormsOnly:
		norm += " of outputs"
	case fam.postNorms() == torch.PostNormsAlso:
		norm += " of inputs and outputs"
	}
	choices := []string{norm}
	if kind := fam.qkNorm(); kind != torch.QKNormNone {
		choices = append(choices, map[torch.QKNorm]string{torch.QKNormHeads: "norms of q and k by head", torch.QKNormAll: "norms of all of q and k"}[kind])
	}
	switch {
	case fam.encoder != nil && fam.encoder.positions != "":
		choices = append(choices, "biases by distance (ALiBi)")
	case fam.partial < 0:
		choices = append(choices, "learned positions")
	case fam.ropePairs:
		choices = append(choices, "RoPE of pairs")
	default:
		choices = append(choices, "RoPE")
	}
	if fam.partial > 0 && fam.partial < 1 {
		choices[len(choices)-1] += fmt.Sprintf(" (%g of a head)", fam.partial)
	}
	if fam.residual != torch.ResidualSequential {
		choices = append(choices, "attention and MLP in parallel")
	}
	if fam.kinds[sparse] != nil && fam.kinds[dense] != nil {
		choices = append(choices, "experts")
	}
	if !fam.gated() {
		choices = append(choices, "plain MLP")
	}
	return choices
}
