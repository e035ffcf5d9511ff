// Package tokenizer converts between texts and tokens according to a model folder: tokenizer.json, and the special
// tokens of tokenizer_config.json and special_tokens_map.json.
package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/daulet/tokenizers"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/torch/transformers/jinja"
)

// Tokenizer converts text to token ids and back according to tokenizer.json. It is safe for concurrent use.
type Tokenizer struct {
	mu    sync.RWMutex // held for reading while tk or plain is used, for writing by Close
	tk    *tokenizers.Tokenizer
	plain *tokenizers.Tokenizer // reads special tokens as text; nil until it is needed
	vocab *vocabulary
	// prepared is what tk was built from.
	prepared []byte
	named    map[string]string
	// before and after count the special tokens around a text.
	before, after int
	opening       []int32 // the first of them
	cutLeft       bool
	// probe is a text that has tokens in any position.
	probe string
	bytes byteTokens
	llama bool
	// longest is the maximum number of bytes that the library is given at once.
	longest int
}

// Load reads tokenizer.json of the model folder dir, or spm.model of a DeBERTa without it, and, if present, tokenizer_config.json and
// special_tokens_map.json. It ignores the truncation and padding settings of tokenizer.json; the caller chooses
// lengths.
func Load(dir string) (*Tokenizer, error) {
	path := filepath.Join(dir, "tokenizer.json")
	data, err := readTokenizerJSON(path)
	if errors.Is(err, fs.ErrNotExist) {
		data, err = readSPM(dir, err)
	}
	if err != nil {
		return nil, fmt.Errorf("transformers: %w", err)
	}
	settings, err := readTokenizerConfig(dir)
	if err != nil {
		return nil, err
	}
	t, err := newTokenizer(data, settings)
	if err != nil {
		return nil, fmt.Errorf("transformers: %s: %w", path, err)
	}
	return t, nil
}

// tokenizerFile has the parts of tokenizer.json that this package reads.
type tokenizerFile struct {
	Truncation struct {
		Direction string `json:"direction"`
	} `json:"truncation"`
	Padding struct {
		Token string `json:"pad_token"`
	} `json:"padding"`
	Normalizer struct {
		Type      string `json:"type"`
		Lowercase bool   `json:"lowercase"`
	} `json:"normalizer"`
	AddedTokens   []addedToken `json:"added_tokens"`
	PostProcessor any          `json:"post_processor"`
	Decoder       any          `json:"decoder"`
	Model         struct {
		Vocab json.RawMessage `json:"vocab"`
	} `json:"model"`
}

// readTokenizerFile reads the parts of tokenizer.json.
func readTokenizerFile(parts map[string]json.RawMessage) (file tokenizerFile, err error) {
	for name, into := range map[string]any{
		"truncation": &file.Truncation, "padding": &file.Padding, "normalizer": &file.Normalizer, "added_tokens": &file.AddedTokens,
		"post_processor": &file.PostProcessor, "decoder": &file.Decoder, "model": &file.Model,
	} {
		if err := unmarshalField(parts, name, into); err != nil {
			return file, err
		}
	}
	return file, nil
}

func newTokenizer(data []byte, settings tokenizerConfig) (*Tokenizer, error) {
	raw, err := files.Object(data)
	if err != nil {
		return nil, err
	}
	llama := false
	if settings.llama != nil {
		if llama, err = settings.llama.rebuild(raw); err != nil {
			return nil, err
		}
	}
	file, err := readTokenizerFile(raw)
	if err != nil {
		return nil, err
	}
	// transformers builds BERT's normalizer from tokenizer_config.json. If the two files agree, there is nothing to
	// choose.
	if l := settings.doLowerCase; l != nil && file.Normalizer.Type == "BertNormalizer" && *l != file.Normalizer.Lowercase {
		return nil, fmt.Errorf("normalizer.lowercase is %t, but tokenizer_config.json has do_lower_case %t: make them agree", file.Normalizer.Lowercase, *l)
	}
	if len(file.Model.Vocab) == 0 {
		return nil, errors.New("model.vocab is missing")
	}
	base, err := parseVocab(file.Model.Vocab)
	if err != nil {
		return nil, fmt.Errorf("model.vocab: %w", err)
	}
	vocab, err := newVocabulary(base, file.AddedTokens, settings)
	if err != nil {
		return nil, err
	}
	longest, err := longestText(raw)
	if err != nil {
		return nil, err
	}
	raw["truncation"], raw["padding"] = json.RawMessage("null"), json.RawMessage("null")
	if raw["added_tokens"], err = json.Marshal(append([]addedToken{}, vocab.added...)); err != nil {
		return nil, err
	}
	if raw["post_processor"], err = json.Marshal(keepSpaces(file.PostProcessor)); err != nil {
		return nil, err
	}
	prepared, err := json.Marshal(raw)
	if err != nil {
		return nil, err
	}
	tk, err := build(prepared)
	if err != nil {
		return nil, err
	}
	t := &Tokenizer{tk: tk, prepared: prepared, vocab: vocab, llama: llama, longest: longest, named: map[string]string{}, bytes: findByteTokens(vocab, file.Decoder),
		cutLeft: settings.truncationSide == "left" || settings.truncationSide == "" && strings.EqualFold(file.Truncation.Direction, "left")}
	for _, named := range settings.named {
		t.named[named.name] = named.token.Content
	}
	if _, ok := t.named["pad_token"]; !ok && file.Padding.Token != "" {
		t.named["pad_token"] = file.Padding.Token
	}
	if err := t.countSpecials(); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

func build(file []byte, options ...tokenizers.TokenizerOption) (*tokenizers.Tokenizer, error) {
	tk, err := tokenizers.FromBytes(file, options...)
	if err != nil {
		return nil, errors.New(strings.Join(strings.Fields(err.Error()), " "))
	}
	return tk, nil
}

// keepSpaces makes the spans of tokens include the spaces before them. Some post-processors drop them; ids do not
// change.
func keepSpaces(processor any) any {
	switch p := processor.(type) {
	case map[string]any:
		if _, ok := p["trim_offsets"]; ok {
			p["trim_offsets"] = false
		}
		if list, ok := p["processors"]; ok {
			p["processors"] = keepSpaces(list)
		}
	case []any:
		for i := range p {
			p[i] = keepSpaces(p[i])
		}
	}
	return processor
}

// countSpecials finds how many special tokens come before and after a text. The empty text has only those; a short
// text shows where they are split.
func (t *Tokenizer) countSpecials() error {
	n := len(t.tk.EncodeWithOptions("", true).IDs)
	texts := slices.DeleteFunc(append([]string{"a"}, t.vocab.texts...), func(s string) bool {
		return s == "" || strings.ContainsRune(s, 0)
	})
	for _, text := range texts[:min(len(texts), 5000)] {
		probe := t.tk.EncodeWithOptions(text, true, tokenizers.WithReturnSpecialTokensMask())
		if len(probe.IDs) <= n {
			continue
		}
		own := slices.Index(probe.SpecialTokensMask, 0)
		if n == 0 {
			own = 0
		}
		if own >= 0 && own <= n {
			t.probe, t.before, t.after = text, own, n-own
			t.opening = signed(probe.IDs[:own])
			return nil
		}
	}
	return fmt.Errorf("cannot tell special tokens from those of a text: neither \"a\" nor a token of the vocabulary has ids of its own between %d special tokens", n)
}

// check refuses text that the library would cut or change.
func check(text string) error {
	if i := strings.IndexByte(text, 0); i >= 0 {
		return fmt.Errorf("transformers: the text has a NUL byte at byte %d", i)
	}
	if !utf8.ValidString(text) {
		return fmt.Errorf("transformers: the text is not valid UTF-8 at byte %d", invalidAt(text))
	}
	return nil
}

// encode is the library's encoding of text, with or without special tokens around it.
func (t *Tokenizer) encode(text string, special bool, options ...tokenizers.EncodeOption) (tokenizers.Encoding, error) {
	if err := check(text); err != nil {
		return tokenizers.Encoding{}, err
	}
	if len(text) > t.longest {
		return tokenizers.Encoding{}, fmt.Errorf("transformers: the text has %d bytes, more than the %d that this tokenizer is given at once", len(text), t.longest)
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.tk == nil {
		return tokenizers.Encoding{}, errors.New("transformers: the tokenizer is closed")
	}
	e := t.tk.EncodeWithOptions(text, special, options...)
	// The library reports errors as an empty list of ids, which is correct for some texts.
	failed := special && len(e.IDs) < t.before+t.after
	if len(e.IDs) == 0 && text != "" {
		failed = failed || len(t.tk.EncodeWithOptions(text+t.probe, false).IDs) == 0
	}
	if failed {
		return e, fmt.Errorf("transformers: the tokenizer cannot encode the text %.60q (has its model an unknown token?)", text)
	}
	return e, nil
}

// encodePart is encode of the part of text that has its first n tokens, or with left its last n. It may return more.
// Long texts need not be tokenized completely to be cut.
func (t *Tokenizer) encodePart(text string, n int, left, special bool, options ...tokenizers.EncodeOption) (tokenizers.Encoding, error) {
	if err := check(text); err != nil {
		return tokenizers.Encoding{}, err
	}
	for bytesPerToken := 8; ; bytesPerToken *= 4 {
		part := start(text, n, bytesPerToken, left)
		e, err := t.encode(part, special, options...)
		if err != nil || len(part) == len(text) || len(e.IDs) >= n+slack {
			return e, err
		}
	}
}

// Encode returns the ids of text between the special tokens of a single sequence. If there are more than maxLength, it
// cuts the text's own tokens and sets cut: at the end, unless the folder says left. Special tokens stay. It equals
// transformers with truncation=True, max_length=maxLength. A maxLength that leaves no room for the text, a NUL byte
// and invalid UTF-8 are errors.
func (t *Tokenizer) Encode(text string, maxLength int) (ids []int32, cut bool, err error) {
	specials := t.before + t.after
	if maxLength <= specials {
		return nil, false, fmt.Errorf("transformers: maxLength %d leaves no room beside %d special tokens", maxLength, specials)
	}
	e, err := t.encodePart(text, maxLength, t.cutLeft, true)
	if err != nil {
		return nil, false, err
	}
	full := e.IDs
	if len(full) > maxLength {
		room := maxLength - specials
		own := full[t.before : len(full)-t.after]
		if t.cutLeft {
			own = own[len(own)-room:]
		} else {
			own = own[:room]
		}
		full = slices.Concat(full[:t.before], own, full[len(full)-t.after:])
		cut = true
	}
	return signed(full), cut, nil
}

// EncodeRaw returns all ids of text, with or without the special tokens that the post_processor of tokenizer.json adds
// to a single sequence. Special tokens written in the text are tokens in both cases. A NUL byte and invalid UTF-8 are
// errors.
func (t *Tokenizer) EncodeRaw(text string, special bool) ([]int32, error) {
	e, err := t.encode(text, special)
	return signed(e.IDs), err
}

// Opening are the special tokens that the post_processor puts before a text, such as "<s>".
func (t *Tokenizer) Opening() []int32 { return slices.Clone(t.opening) }

// EncodeSpans is EncodeRaw without special tokens, plus the bytes of the text that each token covers. Tokens that
// share a character all have its bytes. A token that covers nothing has an empty span.
func (t *Tokenizer) EncodeSpans(text string) (ids []int32, spans []jinja.Span, err error) {
	return t.EncodeStart(text, math.MaxInt)
}

// EncodeStart is EncodeSpans of the first limit tokens. It tokenizes only the start of a text that is much longer.
func (t *Tokenizer) EncodeStart(text string, limit int) (ids []int32, spans []jinja.Span, err error) {
	e, err := t.encodePart(text, min(limit, math.MaxInt-slack), false, false, tokenizers.WithReturnOffsets())
	if err != nil {
		return nil, nil, err
	}
	n := min(limit, len(e.IDs))
	spans = make([]jinja.Span, n)
	for i, o := range e.Offsets[:n] {
		spans[i] = jinja.Span{Start: int(o[0]), End: int(o[1])}
	}
	return signed(e.IDs[:n]), spans, nil
}

// EncodeDocument returns the first limit ids of a text to train on: the opening special tokens, the text, and end, the
// token that ends texts (-1 for none). A text that already ends with that token gets no second one.
func (t *Tokenizer) EncodeDocument(text string, end int32, limit int) ([]int32, error) {
	written := ""
	if end >= 0 && int(end) < t.vocab.size() {
		written = t.vocab.texts[end]
	}
	_, added := t.vocab.at[written]
	if added && !strings.HasSuffix(text, written) {
		text += written // as part of the text, so that its flags apply: it may absorb the spaces before it
	}
	ids, _, err := t.EncodeStart(text, limit)
	if err != nil {
		return nil, err
	}
	ids = slices.Concat(t.opening, ids)
	if end >= 0 && !added && (len(ids) == 0 || ids[len(ids)-1] != end) {
		ids = append(ids, end)
	}
	return ids[:min(limit, len(ids))], nil
}

func signed(ids []uint32) []int32 {
	out := make([]int32, len(ids))
	for i, id := range ids {
		out[i] = int32(id)
	}
	return out
}

func invalidAt(text string) int {
	for i, r := range text {
		if r != utf8.RuneError {
			continue
		}
		if _, width := utf8.DecodeRuneInString(text[i:]); width == 1 {
			return i
		}
	}
	return len(text)
}

// TokenID finds a token of the vocabulary, including added tokens such as "[PAD]".
func (t *Tokenizer) TokenID(token string) (int32, bool) {
	id, ok := t.vocab.ids[token]
	return id, ok
}

// IDs returns a copy of the vocabulary, token to id, including added tokens. It contains every id that Encode can
// return.
func (t *Tokenizer) IDs() map[string]int32 { return maps.Clone(t.vocab.ids) }

// CheckModel returns an error if a token has no row in a model of vocabSize rows.
func (t *Tokenizer) CheckModel(vocabSize int) error {
	if token, id, found := t.vocab.beyond(vocabSize); found {
		return fmt.Errorf("transformers: the token %q has the id %d, but the model's vocab_size is %d", token, id, vocabSize)
	}
	return nil
}

// LlamaClass reports whether the folder names transformers' class LlamaTokenizer, which replaces how tokenizer.json
// starts a text.
func (t *Tokenizer) LlamaClass() bool { return t.llama }

// Special are the special tokens by name: "eos_token" to "</s>".
func (t *Tokenizer) Special() map[string]string { return maps.Clone(t.named) }

// SetSpecial names token a special token, such as "eos_token". It must not be called while others use the tokenizer.
func (t *Tokenizer) SetSpecial(name, token string) { t.named[name] = token }

// SpecialID is the id of a special token by name, such as "eos_token"; false if the folder does not name one.
func (t *Tokenizer) SpecialID(name string) (int32, bool) {
	token, ok := t.named[name]
	if !ok {
		return 0, false
	}
	return t.TokenID(token)
}

// Close frees the tokenizer. Encoding and decoding return errors afterwards.
func (t *Tokenizer) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.tk == nil {
		return nil
	}
	err := t.tk.Close()
	t.tk = nil
	if t.plain != nil {
		err = errors.Join(err, t.plain.Close())
		t.plain = nil
	}
	return err
}
