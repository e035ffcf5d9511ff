package convert

import (
	"fmt"

	"github.com/rltrain/rltrain/torch/gguf"
)

// Kinds of tokens in tokenizer.ggml.token_type.
const (
	unknownToken = 2
	controlToken = 3
	definedToken = 4 // by the user: searched for in text, but not a control token
)

// vocabulary is the content of the tokenizer.ggml keys.
type vocabulary struct {
	m         *metadata
	model     string // "gpt2" or "llama"
	tokens    []string
	types     []int64
	scores    []float64
	merges    []string
	named     map[string]int64 // ids by name: "bos"
	bos, eos  bool             // added to a text
	prefix    bool             // a space goes before a text
	template  string
	alternate map[string]string // other chat templates by name
}

const ggml = "tokenizer.ggml."

func readVocabulary(f *gguf.File) (*vocabulary, error) {
	_, arch, err := architectureOf(f)
	if err != nil {
		return nil, err
	}
	m := &metadata{file: f, arch: arch}
	v := &vocabulary{
		m: m, model: read(m, ggml+"model", "", f.Text), tokens: read(m, ggml+"tokens", nil, f.Texts), types: read(m, ggml+"token_type", nil, f.Ints),
		scores: read(m, ggml+"scores", nil, f.Floats), merges: read(m, ggml+"merges", nil, f.Texts), named: map[string]int64{},
		template: read(m, "tokenizer.chat_template", "", f.Text), alternate: map[string]string{},
	}
	for _, name := range read(m, "tokenizer.chat_templates", nil, f.Texts) {
		v.alternate[name] = read(m, "tokenizer.chat_template."+name, "", f.Text)
	}
	n := len(v.tokens)
	switch {
	case m.err != nil:
		return nil, m.err
	case v.model != "gpt2" && v.model != "llama":
		return nil, fmt.Errorf("%smodel %.40q is not supported, want gpt2 or llama", ggml, v.model)
	case n == 0:
		return nil, fmt.Errorf("%stokens is missing", ggml)
	case len(v.types) != 0 && len(v.types) != n:
		return nil, fmt.Errorf("%stoken_type has %d entries for %d tokens", ggml, len(v.types), n)
	case len(v.scores) != 0 && len(v.scores) != n:
		return nil, fmt.Errorf("%sscores has %d entries for %d tokens", ggml, len(v.scores), n)
	}
	seen := make(map[string]int, n)
	for i, token := range v.tokens {
		if j, ok := seen[token]; ok {
			return nil, fmt.Errorf("%stokens: %.40q is both token %d and token %d", ggml, token, j, i)
		}
		seen[token] = i
	}
	for _, name := range []string{"bos", "eos", "unknown", "padding", "eot"} {
		if id := read(m, ggml+name+"_token_id", -1, f.Int); id >= 0 && id < int64(n) {
			v.named[name] = id
		}
	}
	spm := v.model == "llama"
	v.bos = read(m, ggml+"add_bos_token", spm || splits[v.pre()].bos, f.Bool)
	v.eos = read(m, ggml+"add_eos_token", false, f.Bool)
	v.prefix = read(m, ggml+"add_space_prefix", spm, f.Bool)
	return v, m.err
}

// pre names how a byte-level vocabulary splits text.
func (v *vocabulary) pre() string { return read(v.m, ggml+"pre", "default", v.m.file.Text) }

func (v *vocabulary) is(id int, kind int64) bool { return len(v.types) > 0 && v.types[id] == kind }

// added are the tokens that are searched for before a text is split.
func (v *vocabulary) added() []map[string]any {
	list := []map[string]any{}
	for id, token := range v.tokens {
		special := v.is(id, controlToken) || v.is(id, unknownToken) && v.model == "llama"
		if !special && !v.is(id, definedToken) {
			continue
		}
		list = append(list, map[string]any{
			"id": id, "content": token, "special": special, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
		})
	}
	return list
}

// json returns tokenizer.json.
func (v *vocabulary) json() (map[string]any, error) {
	file := map[string]any{
		"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": v.added(), "normalizer": nil, "post_processor": v.processor(),
	}
	if v.model == "gpt2" {
		return file, v.byteLevel(file)
	}
	return file, v.sentencePiece(file)
}

// processor adds the tokens around a text.
func (v *vocabulary) processor() any {
	var single []any
	specials := map[string]any{}
	add := func(on bool, name string) {
		id, ok := v.named[name]
		if !on || !ok {
			return
		}
		token := v.tokens[id]
		single = append(single, map[string]any{"SpecialToken": map[string]any{"id": token, "type_id": 0}})
		specials[token] = map[string]any{"id": token, "ids": []int64{id}, "tokens": []string{token}}
	}
	sequence := func(name string) {
		single = append(single, map[string]any{"Sequence": map[string]any{"id": name, "type_id": 0}})
	}
	add(v.bos, "bos")
	sequence("A")
	add(v.eos, "eos")
	if len(specials) == 0 {
		return nil
	}
	alone := single
	single = nil
	for _, name := range []string{"A", "B"} {
		add(v.bos, "bos")
		sequence(name)
		add(v.eos, "eos")
	}
	return map[string]any{"type": "TemplateProcessing", "single": alone, "pair": single, "special_tokens": specials}
}

// config returns tokenizer_config.json.
func (v *vocabulary) config(maxLength any) map[string]any {
	c := map[string]any{
		"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": maxLength, "clean_up_tokenization_spaces": false,
		"add_bos_token": v.bos, "add_eos_token": v.eos,
	}
	for name, field := range map[string]string{"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"} {
		if id, ok := v.named[name]; ok {
			c[field] = v.tokens[id]
		}
	}
	if v.model == "llama" && v.m.arch == "llama" {
		c["tokenizer_class"], c["legacy"], c["add_prefix_space"] = "LlamaTokenizer", false, v.prefix
	}
	return c
}

// ends are control tokens that end a chat turn, whatever eos_token_id says; llama.cpp also knows them by name.
var ends = []string{"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>"}

// ending returns the tokens that end a text.
func (v *vocabulary) ending() []int64 {
	var ids []int64
	have := map[int64]bool{}
	add := func(id int64) {
		if !have[id] {
			ids, have[id] = append(ids, id), true
		}
	}
	for _, name := range []string{"eos", "eot"} {
		if id, ok := v.named[name]; ok {
			add(id)
		}
	}
	for id, token := range v.tokens {
		for _, end := range ends {
			if token == end && v.is(id, controlToken) {
				add(int64(id))
			}
		}
	}
	return ids
}
