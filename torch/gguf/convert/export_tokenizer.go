package convert

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/internal/smallfile"
	"github.com/rltrain/rltrain/torch/gguf"
)

// Kinds of tokens used only by exports.
const (
	normalToken = 1
	unusedToken = 5
	byteToken   = 6
)

// TokenizerPairs returns the tokenizer metadata of the model folder dir: that of its GGUF file if it has one, else from
// tokenizer.json and tokenizer_config.json. rows is the number of embedding rows. Errors name the file and the part
// that GGUF cannot represent.
func TokenizerPairs(dir string, rows int) ([]gguf.Pair, error) {
	source := filepath.Join(dir, WeightsFile)
	if _, err := os.Stat(source); err == nil {
		f, err := gguf.Open(source)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return f.Pairs(func(key string) bool { return strings.HasPrefix(key, "tokenizer.") })
	}
	path := filepath.Join(dir, "tokenizer.json")
	data, err := smallfile.ReadAll(path)
	if err != nil {
		return nil, fmt.Errorf("gguf: %w", err)
	}
	var file tokenizerFile
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("gguf: %s: %w", path, err)
	}
	settings, err := readSettings(dir)
	if err != nil {
		return nil, fmt.Errorf("gguf: %w", err)
	}
	pairs, err := file.pairs(settings, rows)
	if err != nil {
		return nil, fmt.Errorf("gguf: %s: %w", path, err)
	}
	return pairs, nil
}

// tokenizerFile is the part of tokenizer.json that exports read.
type tokenizerFile struct {
	AddedTokens []struct {
		ID      int    `json:"id"`
		Content string `json:"content"`
		Special bool   `json:"special"`
	} `json:"added_tokens"`
	Normalizer   json.RawMessage `json:"normalizer"`
	PreTokenizer json.RawMessage `json:"pre_tokenizer"`
	Processor    json.RawMessage `json:"post_processor"`
	Model        struct {
		Type         string            `json:"type"`
		Vocab        json.RawMessage   `json:"vocab"`
		Merges       []json.RawMessage `json:"merges"`
		ByteFallback bool              `json:"byte_fallback"`
	} `json:"model"`
}

// settings are the parts of tokenizer_config.json, chat_template.jinja and generation_config.json that exports read.
type settings struct {
	special  map[string]string // "bos_token"
	template string
}

func readSettings(dir string) (s settings, err error) {
	s.special = map[string]string{}
	data, err := smallfile.Read(filepath.Join(dir, "tokenizer_config.json"))
	if errors.Is(err, fs.ErrNotExist) {
		data, err = []byte("{}"), nil
	}
	if err != nil {
		return s, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return s, fmt.Errorf("tokenizer_config.json: %w", err)
	}
	for _, name := range []string{"bos_token", "eos_token", "unk_token", "pad_token"} {
		var text string
		var token struct {
			Content string `json:"content"`
		}
		if json.Unmarshal(fields[name], &text) == nil && text != "" {
			s.special[name] = text
		} else if json.Unmarshal(fields[name], &token) == nil && token.Content != "" {
			s.special[name] = token.Content
		}
	}
	_ = json.Unmarshal(fields["chat_template"], &s.template) // a list of named templates has its default in a separate file
	data, err = smallfile.Read(filepath.Join(dir, "chat_template.jinja"))
	if err == nil {
		s.template = string(data)
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return s, err
}

func (t tokenizerFile) pairs(s settings, rows int) ([]gguf.Pair, error) {
	if t.Model.Type != "BPE" {
		return nil, fmt.Errorf("model.type %.40q has no form in GGUF, want BPE", t.Model.Type)
	}
	var vocab map[string]int
	if err := json.Unmarshal(t.Model.Vocab, &vocab); err != nil {
		return nil, fmt.Errorf("model.vocab: %w", err)
	}
	ids := map[string]int{}
	tokens, types := make([]string, rows), make([]int32, rows)
	put := func(token string, id int, kind int32) error {
		if id < 0 || id >= rows {
			return fmt.Errorf("token %.60q has the id %d, the embedding %d rows", token, id, rows)
		}
		tokens[id], types[id], ids[token] = token, kind, id
		return nil
	}
	for token, id := range vocab {
		kind := int32(normalToken)
		if t.Model.ByteFallback && len(token) == 6 && strings.HasPrefix(token, "<0x") && token[5] == '>' {
			kind = byteToken
		}
		if err := put(token, id, kind); err != nil {
			return nil, err
		}
	}
	for _, added := range t.AddedTokens {
		kind := int32(definedToken)
		if added.Special {
			kind = controlToken
		}
		if t.Model.ByteFallback && added.Content == s.special["unk_token"] {
			kind = unknownToken
		}
		if err := put(added.Content, added.ID, kind); err != nil {
			return nil, err
		}
	}
	for id := range tokens {
		if types[id] == 0 {
			tokens[id], types[id] = fmt.Sprintf("[PAD%d]", id), unusedToken
		}
	}
	pairs, err := t.model(tokens, ids)
	if err != nil {
		return nil, err
	}
	pairs = append(pairs, gguf.Pair{Key: ggml + "tokens", Value: tokens}, gguf.Pair{Key: ggml + "token_type", Value: types})
	for _, name := range []struct{ token, key string }{{"bos_token", "bos"}, {"eos_token", "eos"}, {"unk_token", "unknown"}, {"pad_token", "padding"}} {
		if id, ok := ids[s.special[name.token]]; ok {
			pairs = append(pairs, gguf.Pair{Key: ggml + name.key + "_token_id", Value: uint32(id)})
		}
	}
	before, after := t.around()
	pairs = append(pairs, gguf.Pair{Key: ggml + "add_bos_token", Value: before}, gguf.Pair{Key: ggml + "add_eos_token", Value: after})
	if s.template != "" {
		pairs = append(pairs, gguf.Pair{Key: "tokenizer.chat_template", Value: s.template})
	}
	return pairs, nil
}

// around reports whether special tokens go before and after a text.
func (t tokenizerFile) around() (before, after bool) {
	var p struct {
		Type   string           `json:"type"`
		Single []map[string]any `json:"single"`
		List   []struct {
			Type   string           `json:"type"`
			Single []map[string]any `json:"single"`
		} `json:"processors"`
	}
	if json.Unmarshal(t.Processor, &p) != nil {
		return false, false
	}
	for _, part := range p.List {
		if part.Type == "TemplateProcessing" {
			p.Single = part.Single
		}
	}
	isSpecial := func(i int) bool { _, ok := p.Single[i]["SpecialToken"]; return ok }
	n := len(p.Single)
	return n > 1 && isSpecial(0), n > 1 && isSpecial(n-1)
}

// mergeList reads merges, which are texts or pairs.
func (t tokenizerFile) mergeList() ([][2]string, error) {
	merges := make([][2]string, len(t.Model.Merges))
	for i, raw := range t.Model.Merges {
		var text string
		if json.Unmarshal(raw, &merges[i]) == nil {
			continue
		}
		if err := json.Unmarshal(raw, &text); err != nil {
			return nil, fmt.Errorf("model.merges: entry %d: %w", i, err)
		}
		left, right, ok := strings.Cut(text, " ")
		if !ok {
			return nil, fmt.Errorf("model.merges: entry %d is %.60q, want two tokens", i, text)
		}
		merges[i] = [2]string{left, right}
	}
	return merges, nil
}

// model is the part of the metadata that differs between the two kinds of BPE.
func (t tokenizerFile) model(tokens []string, ids map[string]int) ([]gguf.Pair, error) {
	merges, err := t.mergeList()
	if err != nil {
		return nil, err
	}
	if t.Model.ByteFallback {
		// llama.cpp merges by token scores: earlier merges have higher scores.
		scores := make([]float32, len(tokens))
		ranked := map[string]bool{}
		for rank, m := range merges {
			token := m[0] + m[1]
			if id, ok := ids[token]; ok && !ranked[token] {
				ranked[token] = true
				scores[id] = -float32(rank)
			}
		}
		prefix := strings.Contains(string(t.Normalizer), `"Prepend"`) ||
			strings.Contains(string(t.PreTokenizer), `"Metaspace"`) && !strings.Contains(string(t.PreTokenizer), `"never"`)
		return []gguf.Pair{
			{Key: ggml + "model", Value: "llama"}, {Key: ggml + "pre", Value: "default"}, {Key: ggml + "scores", Value: scores},
			{Key: ggml + "add_space_prefix", Value: prefix},
		}, nil
	}
	pre, err := t.preName()
	if err != nil {
		return nil, err
	}
	lines := make([]string, len(merges))
	for i, m := range merges {
		if strings.Contains(m[0]+m[1], " ") {
			return nil, fmt.Errorf("model.merges: entry %d, %.60q, has a space, which has no form in GGUF", i, m)
		}
		lines[i] = m[0] + " " + m[1]
	}
	return []gguf.Pair{{Key: ggml + "model", Value: "gpt2"}, {Key: ggml + "pre", Value: pre}, {Key: ggml + "merges", Value: lines}}, nil
}

// preName is llama.cpp's name for the way the pre-tokenizer splits text.
func (t tokenizerFile) preName() (string, error) {
	type part struct {
		Type    string            `json:"type"`
		Pattern map[string]string `json:"pattern"`
		Alone   bool              `json:"individual_digits"`
		List    []json.RawMessage `json:"pretokenizers"`
	}
	var top part
	if err := json.Unmarshal(t.PreTokenizer, &top); err != nil {
		return "", fmt.Errorf("pre_tokenizer: %w", err)
	}
	parts := []part{top}
	for _, raw := range top.List {
		var p part
		if err := json.Unmarshal(raw, &p); err != nil {
			return "", fmt.Errorf("pre_tokenizer: %w", err)
		}
		parts = append(parts, p)
	}
	digits, bytes, regexes := false, false, []string{}
	for _, p := range parts {
		switch p.Type {
		case "Digits":
			digits = p.Alone
		case "ByteLevel":
			bytes = true
		case "Split":
			regexes = append(regexes, p.Pattern["Regex"])
		}
	}
	if !bytes {
		return "", errors.New("pre_tokenizer has no ByteLevel: its BPE has no form in GGUF")
	}
	for name, s := range splits {
		if s.canonical && s.digits == digits && slices.Equal(regexes, slices.DeleteFunc([]string{s.regex}, func(r string) bool { return r == "" })) {
			return name, nil
		}
	}
	return "", fmt.Errorf("pre_tokenizer splits text in a way that has no name in GGUF here (%.120q)", regexes)
}
