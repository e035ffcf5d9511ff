package lora

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/torch/safetensors"
)

const (
	suffixBase       = ".base_layer.weight"
	suffixEmbeddingA = ".lora_embedding_A" // [r, V]
	suffixEmbeddingB = ".lora_embedding_B" // [H, r]
)

// tables are the last name components of embeddings and output layers, which have a row per token. PEFT stores such a
// module next to its adapter, or by itself if the vocabulary was resized.
var tables = []string{"embed_tokens", "lm_head", "wte", "embed_in", "embed_out"}

// isTable reports whether a tensor belongs to one of tables.
func isTable(name string) bool {
	module, ok := strings.CutSuffix(name, ".weight")
	if !ok {
		module, ok = strings.CutSuffix(name, ".bias")
	}
	return ok && slices.Contains(tables, module[strings.LastIndexByte(module, '.')+1:])
}

// mergeStored merges stored tables with their adapters. It removes these adapters from pairs and adds the merged weights to
// extra under their names. Embeddings are adapted in the other orientation, [V, H].
func mergeStored(f *safetensors.File, c Config, pairs []Pair, embeddings map[string]Pair, extra map[string]safetensors.Tensor) ([]Pair, error) {
	for _, name := range slices.Sorted(maps.Keys(extra)) {
		module, ok := strings.CutSuffix(name, suffixBase)
		if !ok {
			continue
		}
		weight, err := f.Float32s(wrapper + name)
		if err != nil {
			return nil, err
		}
		shape := extra[name].Shape
		p, embedding := embeddings[module]
		delete(embeddings, module)
		want := []int64{int64(p.In), int64(p.Out)}
		i := slices.IndexFunc(pairs, func(p Pair) bool { return c.Prefix+p.Module == module })
		if !embedding && i >= 0 {
			p = pairs[i]
			want = []int64{int64(p.Out), int64(p.In)}
			pairs = slices.Delete(pairs, i, i+1)
		}
		switch {
		case !embedding && i < 0:
		case !slices.Equal(shape, want):
			return nil, fmt.Errorf("tensor %.120q has shape %v, but its adapter is for %v", wrapper+name, shape, want)
		case embedding:
			weight = transposed(weight, p.In, p.Out)
			p.MergeInto(weight)
			weight = transposed(weight, p.Out, p.In)
		default:
			p.MergeInto(weight)
		}
		delete(extra, name)
		extra[module+".weight"] = safetensors.FromFloat32s(module+".weight", shape, weight)
	}
	for _, module := range slices.Sorted(maps.Keys(embeddings)) {
		return nil, fmt.Errorf("tensor %.120q adapts an embedding whose weights are not in the file; save the adapter with PEFT's save_embedding_layers=True", wrapper+module+suffixEmbeddingA)
	}
	return pairs, nil
}

// transposed transposes a row-major matrix [rows, columns].
func transposed(m []float32, rows, columns int) []float32 {
	out := make([]float32, len(m))
	for r := range rows {
		for c := range columns {
			out[c*rows+r] = m[r*columns+c]
		}
	}
	return out
}
