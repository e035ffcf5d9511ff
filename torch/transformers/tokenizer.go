package transformers

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/daulet/tokenizers"
)

// Tokenizer turns text into token ids as the tokenizer.json of a model folder
// says. It may be used from several goroutines at once.
type Tokenizer struct {
	mu  sync.RWMutex // held for reading while tk is used, for writing by Close
	tk  *tokenizers.Tokenizer
	ids map[string]int32
	// before and after count the special tokens around a text's own.
	before, after int
	cutLeft       bool
}

// LoadTokenizer reads tokenizer.json of the model folder dir, and
// tokenizer_config.json where there is one. The truncation and padding that
// tokenizer.json carries are dropped: lengths are the caller's to choose.
func LoadTokenizer(dir string) (*Tokenizer, error) {
	path := filepath.Join(dir, "tokenizer.json")
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("transformers: %w", err)
	}
	settings, err := readTokenizerConfig(filepath.Join(dir, "tokenizer_config.json"))
	if err != nil {
		return nil, err
	}
	t, err := newTokenizer(data, settings)
	if err != nil {
		return nil, fmt.Errorf("transformers: %s: %w", path, err)
	}
	return t, nil
}

// tokenizerConfig is what tokenizer_config.json says about the ids of a text.
type tokenizerConfig struct {
	TruncationSide string `json:"truncation_side"`
	DoLowerCase    *bool  `json:"do_lower_case"`
}

func readTokenizerConfig(path string) (tokenizerConfig, error) {
	var c tokenizerConfig
	data, err := readSmall(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, fmt.Errorf("transformers: %w", err)
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return c, fmt.Errorf("transformers: %s: %w", path, err)
	}
	if c.TruncationSide != "" && c.TruncationSide != "left" && c.TruncationSide != "right" {
		return c, fmt.Errorf("transformers: %s: truncation_side %.40q, want left or right", path, c.TruncationSide)
	}
	return c, nil
}

func newTokenizer(data []byte, settings tokenizerConfig) (*Tokenizer, error) {
	raw, err := parseObject(data)
	if err != nil {
		return nil, err
	}
	var file struct {
		Truncation struct {
			Direction string `json:"direction"`
		} `json:"truncation"`
		Normalizer struct {
			Type      string `json:"type"`
			Lowercase bool   `json:"lowercase"`
		} `json:"normalizer"`
		AddedTokens []struct {
			ID      int32  `json:"id"`
			Content string `json:"content"`
		} `json:"added_tokens"`
		Model struct {
			Vocab json.RawMessage `json:"vocab"`
		} `json:"model"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, err
	}
	// transformers builds BERT's normalizer from tokenizer_config.json. Where the two
	// files agree there is nothing to choose.
	if l := settings.DoLowerCase; l != nil && file.Normalizer.Type == "BertNormalizer" && *l != file.Normalizer.Lowercase {
		return nil, fmt.Errorf("normalizer.lowercase is %t, but tokenizer_config.json has do_lower_case %t: make them agree", file.Normalizer.Lowercase, *l)
	}
	if len(file.Model.Vocab) == 0 {
		return nil, errors.New("model.vocab is missing")
	}
	ids, err := parseVocab(file.Model.Vocab)
	if err != nil {
		return nil, fmt.Errorf("model.vocab: %w", err)
	}
	for _, added := range file.AddedTokens {
		ids[added.Content] = added.ID
	}
	raw["truncation"], raw["padding"] = json.RawMessage("null"), json.RawMessage("null")
	stripped, err := json.Marshal(raw)
	if err != nil {
		return nil, err
	}
	tk, err := tokenizers.FromBytes(stripped)
	if err != nil {
		return nil, errors.New(strings.Join(strings.Fields(err.Error()), " "))
	}
	t := &Tokenizer{tk: tk, ids: ids, cutLeft: settings.TruncationSide == "left" ||
		settings.TruncationSide == "" && strings.EqualFold(file.Truncation.Direction, "left")}
	if err := t.countSpecials(); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// parseVocab reads the two spellings of a vocabulary: token to id, or, for Unigram
// models, a list of [token, score] in the order of ids.
func parseVocab(raw json.RawMessage) (map[string]int32, error) {
	if !strings.HasPrefix(string(raw), "[") {
		var ids map[string]int32
		if err := json.Unmarshal(raw, &ids); err != nil {
			return nil, err
		}
		if ids == nil {
			return nil, errors.New("found null")
		}
		return ids, nil
	}
	var pieces [][2]any
	if err := json.Unmarshal(raw, &pieces); err != nil {
		return nil, err
	}
	ids := make(map[string]int32, len(pieces))
	for i, piece := range pieces {
		token, ok := piece[0].(string)
		if !ok {
			return nil, fmt.Errorf("piece %d has no text", i)
		}
		ids[token] = int32(i)
	}
	return ids, nil
}

// countSpecials finds how many special tokens stand before and after a text. The
// empty text has all of them and nothing else; a short one shows where they part.
func (t *Tokenizer) countSpecials() error {
	n := len(t.tk.EncodeWithOptions("", true).IDs)
	probe := t.tk.EncodeWithOptions("a", true, tokenizers.WithReturnSpecialTokensMask())
	own := slices.Index(probe.SpecialTokensMask, 0)
	if own < 0 || own > n || len(probe.IDs) <= n {
		return fmt.Errorf("cannot tell special tokens from those of a text: \"a\" is encoded as %v", probe.IDs)
	}
	t.before, t.after = own, n-own
	return nil
}

// Encode is the ids of text between the special tokens of a single sequence. Where
// they are more than maxLength, the text's own tokens are cut, at the end unless
// the folder says left, so that the special tokens stay; cut tells. This is what
// transformers does for truncation=True, max_length=maxLength. A maxLength without
// room for one token of the text, a NUL byte and invalid UTF-8 are errors.
func (t *Tokenizer) Encode(text string, maxLength int) (ids []int32, cut bool, err error) {
	specials := t.before + t.after
	if maxLength <= specials {
		return nil, false, fmt.Errorf("transformers: maxLength %d leaves no room beside %d special tokens", maxLength, specials)
	}
	if i := strings.IndexByte(text, 0); i >= 0 {
		return nil, false, fmt.Errorf("transformers: the text has a NUL byte at byte %d", i)
	}
	if !utf8.ValidString(text) {
		return nil, false, fmt.Errorf("transformers: the text is not valid UTF-8 at byte %d", invalidAt(text))
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.tk == nil {
		return nil, false, errors.New("transformers: the tokenizer is closed")
	}
	full := t.tk.EncodeWithOptions(text, true).IDs
	if len(full) < specials {
		return nil, false, fmt.Errorf("transformers: the tokenizer cannot encode the text %.60q (has its model an unknown token?)", text)
	}
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
	ids = make([]int32, len(full))
	for i, id := range full {
		ids[i] = int32(id)
	}
	return ids, cut, nil
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

// TokenID finds a token of the vocabulary, added tokens such as "[PAD]" included.
func (t *Tokenizer) TokenID(token string) (int32, bool) {
	id, ok := t.ids[token]
	return id, ok
}

// IDs is a copy of the vocabulary: token to id, added tokens included. Every id of
// Encode is among them, so a model whose vocab_size is above their greatest has a
// row for each.
func (t *Tokenizer) IDs() map[string]int32 { return maps.Clone(t.ids) }

// Close frees the tokenizer; Encode is an error from then on.
func (t *Tokenizer) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.tk == nil {
		return nil
	}
	err := t.tk.Close()
	t.tk = nil
	return err
}
