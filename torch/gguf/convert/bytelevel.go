package convert

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Regular expressions by which byte-level vocabularies split text, as published.
const (
	gpt2Split   = "" // the one of the ByteLevel pre-tokenizer
	llama3Split = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	qwen2Split  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	tekkenSplit = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	gpt4oSplit  = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// A split is one way to split text.
type split struct {
	regex     string
	digits    bool // each digit is separate
	nfc       bool // text is normalised first
	whole     bool // a word that is a token stays one, whatever the merges
	bos       bool // default for adding the beginning token to a text
	canonical bool // the name to write for it
}

// splits by tokenizer.ggml.pre.
var splits = map[string]split{
	"default": {regex: gpt2Split}, "gpt-2": {regex: gpt2Split, canonical: true}, "phi-2": {regex: gpt2Split}, "olmo": {regex: gpt2Split},
	"mpt": {regex: gpt2Split}, "jina-es": {regex: gpt2Split}, "jina-de": {regex: gpt2Split}, "roberta-bpe": {regex: gpt2Split},
	"smollm": {digits: true, canonical: true}, "starcoder": {digits: true}, "refact": {digits: true}, "command-r": {digits: true}, "codeshell": {digits: true},
	"llama-bpe": {regex: llama3Split, whole: true, bos: true, canonical: true}, "llama3": {regex: llama3Split, whole: true, bos: true},
	"llama-v3": {regex: llama3Split, whole: true, bos: true}, "falcon3": {regex: llama3Split, whole: true}, "pixtral": {regex: llama3Split, whole: true},
	"lfm2": {regex: llama3Split, whole: true}, "dbrx": {regex: llama3Split}, "smaug-bpe": {regex: llama3Split},
	"qwen2": {regex: qwen2Split, nfc: true, canonical: true}, "deepseek-r1-qwen": {regex: qwen2Split}, "megrez": {regex: qwen2Split},
	"tekken": {regex: tekkenSplit, whole: true, canonical: true},
	"gpt-4o": {regex: gpt4oSplit, canonical: true}, "llama4": {regex: gpt4oSplit},
}

// byteLevel fills in tokenizer.json for a vocabulary of bytes.
func (v *vocabulary) byteLevel(file map[string]any) error {
	s, ok := splits[v.pre()]
	if !ok {
		return fmt.Errorf("%spre %.40q is not supported, want one of %s", ggml, v.pre(), strings.Join(slices.Sorted(maps.Keys(splits)), ", "))
	}
	merges := make([][2]string, len(v.merges))
	for i, merge := range v.merges {
		left, right, ok := strings.Cut(merge, " ")
		if !ok || left == "" || right == "" || strings.Contains(right, " ") {
			return fmt.Errorf("%smerges: entry %d is %.60q, want two tokens", ggml, i, merge)
		}
		merges[i] = [2]string{left, right}
	}
	vocab := make(map[string]int, len(v.tokens))
	for id, token := range v.tokens {
		vocab[token] = id
	}
	file["model"] = map[string]any{
		"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil, "end_of_word_suffix": nil,
		"fuse_unk": false, "byte_fallback": false, "ignore_merges": s.whole, "vocab": vocab, "merges": merges,
	}
	bytes := map[string]any{"type": "ByteLevel", "add_prefix_space": v.prefix, "trim_offsets": true, "use_regex": s.regex == gpt2Split}
	var before []any
	if s.digits {
		before = append(before, map[string]any{"type": "Digits", "individual_digits": true})
	}
	if s.regex != gpt2Split {
		before = append(before, map[string]any{
			"type": "Split", "pattern": map[string]string{"Regex": s.regex}, "behavior": "Isolated", "invert": false,
		})
	}
	if s.nfc {
		file["normalizer"] = map[string]any{"type": "NFC"}
	}
	file["pre_tokenizer"] = map[string]any{"type": "Sequence", "pretokenizers": append(before, bytes)}
	file["decoder"] = map[string]any{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}
	if file["post_processor"] == nil {
		file["post_processor"] = map[string]any{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true}
	}
	return nil
}
