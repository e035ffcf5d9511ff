package convert

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

const space = "▁"

// sentencePiece fills in tokenizer.json for a SentencePiece BPE vocabulary, whose scores imply its merges.
func (v *vocabulary) sentencePiece(file map[string]any) error {
	if len(v.scores) == 0 {
		return fmt.Errorf("%sscores is missing", ggml)
	}
	gemma := strings.HasPrefix(v.m.arch, "gemma")
	tokens, rank := v.tokens, v.scores
	if gemma {
		// Runs of spaces are stored as spaces, and merges follow the order of the tokens, not the scores.
		tokens, rank = slices.Clone(tokens), make([]float64, len(tokens))
		for id, token := range tokens {
			if token != "" && strings.Trim(token, " ") == "" {
				tokens[id] = strings.Repeat(space, len(token))
			}
			rank[id] = -float64(id)
		}
	}
	vocab := make(map[string]int, len(tokens))
	for id, token := range tokens {
		vocab[token] = id
	}
	var unknown any
	if id, ok := v.named["unknown"]; ok {
		unknown = v.tokens[id]
	}
	file["model"] = map[string]any{
		"type": "BPE", "dropout": nil, "unk_token": unknown, "continuing_subword_prefix": nil, "end_of_word_suffix": nil,
		"fuse_unk": true, "byte_fallback": true, "ignore_merges": false, "vocab": vocab, "merges": impliedMerges(tokens, vocab, rank),
	}
	replace := func(from, to string) map[string]any {
		return map[string]any{"type": "Replace", "pattern": map[string]string{"String": from}, "content": to}
	}
	decoders := []any{replace(space, " "), map[string]any{"type": "ByteFallback"}, map[string]any{"type": "Fuse"}}
	file["pre_tokenizer"] = nil
	switch {
	case gemma:
		file["normalizer"] = replace(" ", space)
		file["pre_tokenizer"] = map[string]any{"type": "Split", "pattern": map[string]string{"String": " "}, "behavior": "MergedWithPrevious", "invert": false}
	case !v.prefix:
		file["normalizer"] = replace(" ", space)
	case v.m.arch == "phi3":
		file["normalizer"] = map[string]any{"type": "Sequence", "normalizers": []any{
			map[string]any{"type": "Prepend", "prepend": space}, replace(" ", space),
		}}
		decoders = append(decoders, map[string]any{"type": "Strip", "content": " ", "start": 1, "stop": 0})
	default:
		file["pre_tokenizer"] = map[string]any{"type": "Metaspace", "replacement": space, "prepend_scheme": "first", "split": false}
		decoders = append(decoders, map[string]any{"type": "Strip", "content": " ", "start": 1, "stop": 0})
	}
	file["decoder"] = map[string]any{"type": "Sequence", "decoders": decoders}
	return nil
}

// maxPiece is the maximum length in bytes of a token that is split into pairs; real ones have about 50.
const maxPiece = 512

// impliedMerges returns all pairs of tokens that make a token, best token first. Ties are broken as in transformers:
// shorter left part, then shorter right part, then id.
func impliedMerges(tokens []string, vocab map[string]int, rank []float64) [][2]string {
	type merge struct {
		pair        [2]string
		rank        float64
		left, right int // in characters
	}
	var all []merge
	for id, token := range tokens {
		if len(token) > maxPiece {
			continue
		}
		from, n := len(all), len([]rune(token))
		left := 0
		for at := range token {
			if at == 0 {
				continue
			}
			left++
			_, okLeft := vocab[token[:at]]
			_, okRight := vocab[token[at:]]
			if okLeft && okRight {
				all = append(all, merge{[2]string{token[:at], token[at:]}, rank[id], left, n - left})
			}
		}
		slices.SortFunc(all[from:], func(a, b merge) int {
			return cmp.Or(vocab[a.pair[0]]-vocab[b.pair[0]], vocab[a.pair[1]]-vocab[b.pair[1]])
		})
	}
	// Python's reversed sort keeps equal elements in order, and lengths decrease too.
	slices.SortStableFunc(all, func(a, b merge) int {
		return cmp.Or(cmp.Compare(b.rank, a.rank), b.left-a.left, b.right-a.right)
	})
	pairs := make([][2]string, len(all))
	for i, m := range all {
		pairs[i] = m.pair
	}
	return pairs
}
