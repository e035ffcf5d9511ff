package transformers

import (
	"fmt"
	"path/filepath"

	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/torch/safetensors"
)

// Default shape of the tiny model.
const (
	// The default shape of the tiny model.
	TinyLayers = 4
	TinyHidden = 128
)

// tinyHead is the size of a head.
const tinyHead = 32

// tinySpecials come first in the vocabulary, in the order of their ids.
var tinySpecials = []string{"<pad>", "<eos>", "<unk>"}

// tinyVocabulary is the special tokens, the line feed and the printable ASCII characters.
func tinyVocabulary() []string {
	tokens := append(tinySpecials[:len(tinySpecials):len(tinySpecials)], "\n")
	for c := ' '; c <= '~'; c++ {
		tokens = append(tokens, string(c))
	}
	return tokens
}

// WriteTiny writes a small character-level Llama to dir, with random weights from seed. hidden must be a multiple of
// 32, the head size; the MLP is four times as wide. The result is an ordinary model folder.
func WriteTiny(dir string, layers, hidden int, seed uint64) error {
	if layers < 1 || layers > maxLayers {
		return fmt.Errorf("transformers: tiny: %d layers, want 1 to %d", layers, maxLayers)
	}
	if hidden < tinyHead || hidden%tinyHead != 0 || hidden > maxWidth {
		return fmt.Errorf("transformers: tiny: hidden size %d, want a multiple of %d up to %d", hidden, tinyHead, maxWidth)
	}
	return WriteLlama(dir, LlamaShape{
		Vocab: len(tinyVocabulary()), Hidden: hidden, Layers: layers, Heads: hidden / tinyHead, KVHeads: hidden / tinyHead,
		Intermediate: 4 * hidden, RopeTheta: 1e4,
	}, safetensors.F32, seed)
}

// WriteTinyChat is WriteTiny with a chat template. For a model with a template, tasks use conversations, which are
// longer than plain texts.
func WriteTinyChat(dir string, layers, hidden int, seed uint64) error {
	if err := WriteTiny(dir, layers, hidden, seed); err != nil {
		return err
	}
	if err := outfile.Write(filepath.Join(dir, "chat_template.jinja"), []byte(tinyTemplate), 0o644); err != nil {
		return fmt.Errorf("transformers: tiny: %w", err)
	}
	return nil
}

// tinyTemplate is chat_template.jinja: one line per message, "user: Hi", and the end token after each assistant
// message.
const tinyTemplate = `{%- for message in messages -%}
{{ message['role'] + ': ' }}
{%- if message['role'] == 'assistant' -%}
{%- generation -%}{{ message['content'] + eos_token }}{%- endgeneration -%}
{%- else -%}
{{ message['content'] }}
{%- endif -%}
{{ '\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'assistant: ' }}{%- endif -%}
`

// tinyTokenizer is tokenizer.json: each character is a token.
func tinyTokenizer(vocabulary []string) map[string]any {
	ids := map[string]int{}
	for id, token := range vocabulary {
		ids[token] = id
	}
	var added []map[string]any
	for id, token := range tinySpecials {
		added = append(added, map[string]any{
			"id": id, "content": token, "special": true,
			"single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
		})
	}
	return map[string]any{
		"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": added, "normalizer": nil,
		"pre_tokenizer": map[string]any{
			"type": "Split", "pattern": map[string]string{"Regex": `[\s\S]`}, "behavior": "Isolated", "invert": false,
		},
		"post_processor": nil, "decoder": map[string]any{"type": "Fuse"},
		"model": map[string]any{"type": "WordLevel", "vocab": ids, "unk_token": "<unk>"},
	}
}
