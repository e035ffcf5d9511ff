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
func mergeStored(f *safetensors.File, c Config, r *rule, pairs []Pair, extra map[string]safetensors.Tensor) ([]Pair, error) {
	embeddings, err := readEmbeddings(c, r, extra)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(extra)) {
		module, ok := strings.CutSuffix(name, suffixBase)
		if !ok {
			continue
		}
		weight, err := f.Float32s(wrapper + name)
		if err != nil {
			return nil, err
		}
		p, found := embeddings[module]
		delete(embeddings, module)
		if i := slices.IndexFunc(pairs, func(p Pair) bool { return c.Prefix+p.Module == module }); !found && i >= 0 {
			p, found = pairs[i], true
			pairs = slices.Delete(pairs, i, i+1)
		}
		shape := extra[name].Shape
		if found {
			if !slices.Equal(shape, []int64{int64(p.Out), int64(p.In)}) {
				return nil, fmt.Errorf("tensor %.120q has shape %v, but its adapter is for %v", wrapper+name, shape, [2]int{p.Out, p.In})
			}
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

// readEmbeddings removes the adapters of embeddings from extra and returns them.
func readEmbeddings(c Config, r *rule, extra map[string]safetensors.Tensor) (map[string]Pair, error) {
	embeddings := map[string]Pair{}
	for _, name := range slices.Sorted(maps.Keys(extra)) {
		module, ok := strings.CutSuffix(name, suffixEmbeddingA)
		if !ok {
			continue
		}
		a, b := extra[name], extra[module+suffixEmbeddingB]
		rank, scale := r.size(module)
		n := int64(rank)
		switch {
		case c.DoRA:
			return nil, fmt.Errorf("tensor %.120q: embeddings with use_dora are not supported", wrapper+name)
		case !r.means(module):
			return nil, fmt.Errorf("tensor %.120q belongs to no module of target_modules (%s)", wrapper+name, r.TargetModules)
		case len(a.Shape) != 2 || a.Shape[0] != n || a.Shape[1] < 1:
			return nil, fmt.Errorf("tensor %.120q has shape %v, want [%d tokens] from r and rank_pattern", wrapper+name, a.Shape, rank)
		case len(b.Shape) != 2 || b.Shape[1] != n || b.Shape[0] < 1:
			return nil, fmt.Errorf("tensor %.120q has shape %v, want [width %d] from r and rank_pattern", wrapper+module+suffixEmbeddingB, b.Shape, rank)
		}
		left, err := a.Float32s()
		if err != nil {
			return nil, fmt.Errorf("tensor %.120q: %w", wrapper+name, err)
		}
		right, err := b.Float32s()
		if err != nil {
			return nil, fmt.Errorf("tensor %.120q: %w", wrapper+module+suffixEmbeddingB, err)
		}
		tokens, width := int(a.Shape[1]), int(b.Shape[0])
		embeddings[module] = Pair{
			Module: module, R: rank, Scale: scale, In: width, Out: tokens,
			A: transposed(right, width, rank), B: transposed(left, rank, tokens),
		}
		delete(extra, name)
		delete(extra, module+suffixEmbeddingB)
	}
	return embeddings, nil
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
