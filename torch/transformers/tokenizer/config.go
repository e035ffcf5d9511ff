package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/smallfile"
)

// addedToken is a token outside of the model's vocabulary. Text is searched for it before splitting.
type addedToken struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// tokenizerConfig holds the settings of tokenizer_config.json and, for transformers 4, special_tokens_map.json that
// affect token ids. add_bos_token and add_eos_token are ignored: as in transformers 5 the post_processor of
// tokenizer.json decides.
type tokenizerConfig struct {
	truncationSide string
	doLowerCase    *bool
	llama          *llamaSettings // nil if the class is another
	// named are the special tokens by name, such as bos_token, in the order in which transformers adds them.
	named []namedToken
	// extra are special tokens without names; declared are those of added_tokens_decoder, by index.
	extra, declared []addedToken
}

type namedToken struct {
	name  string
	token addedToken
}

// specialNames are the special tokens that every tokenizer may have.
var specialNames = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

// readTokenizerConfig reads the settings of a model folder; they are empty if the files are missing.
func readTokenizerConfig(dir string) (tokenizerConfig, error) {
	path := filepath.Join(dir, "tokenizer_config.json")
	data, err := smallfile.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		data, err = []byte("{}"), nil
	}
	if err != nil {
		return tokenizerConfig{}, fmt.Errorf("transformers: %w", err)
	}
	config, err := files.Object(data)
	if err != nil {
		return tokenizerConfig{}, fmt.Errorf("transformers: %s: %w", path, err)
	}
	// If tokenizer_config.json lists the added tokens itself, transformers ignores the older file.
	if _, ok := config["added_tokens_decoder"]; !ok {
		older := filepath.Join(dir, "special_tokens_map.json")
		switch data, err := smallfile.Read(older); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return tokenizerConfig{}, fmt.Errorf("transformers: %w", err)
		default:
			fields, err := files.Object(data)
			if err != nil {
				return tokenizerConfig{}, fmt.Errorf("transformers: %s: %w", older, err)
			}
			maps.Copy(config, fields)
		}
	}
	llama, err := llamaClass(dir, config)
	if err != nil {
		return tokenizerConfig{}, err
	}
	c, err := parseTokenizerConfig(config, llama)
	if err != nil {
		return c, fmt.Errorf("transformers: %s: %w", path, err)
	}
	return c, nil
}

func parseTokenizerConfig(fields map[string]json.RawMessage, llama bool) (c tokenizerConfig, err error) {
	if llama {
		if c.llama, err = parseLlama(fields); err != nil {
			return c, err
		}
	}
	for name, into := range map[string]any{"truncation_side": &c.truncationSide, "do_lower_case": &c.doLowerCase} {
		if err := unmarshalField(fields, name, into); err != nil {
			return c, err
		}
	}
	if c.truncationSide != "" && c.truncationSide != "left" && c.truncationSide != "right" {
		return c, fmt.Errorf("truncation_side %.40q, want left or right", c.truncationSide)
	}

	names := slices.Clone(specialNames)
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if strings.HasSuffix(name, "_token") && !slices.Contains(names, name) && isToken(fields[name]) {
			names = append(names, name)
		}
	}
	for _, name := range names {
		if err := c.addNamed(name, fields[name]); err != nil {
			return c, err
		}
	}

	extra := fields["extra_special_tokens"]
	if isEmpty(extra) {
		extra = fields["additional_special_tokens"]
	}
	if err := c.addExtra(extra); err != nil {
		return c, err
	}
	return c, c.addDeclared(fields["added_tokens_decoder"])
}

func unmarshalField(fields map[string]json.RawMessage, name string, into any) error {
	if raw, ok := fields[name]; ok {
		if err := json.Unmarshal(raw, into); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func isEmpty(raw json.RawMessage) bool {
	return slices.Contains([]string{"", "null", "[]", "{}"}, string(bytes.TrimSpace(raw)))
}

// isToken distinguishes a token from a setting such as add_bos_token.
func isToken(raw json.RawMessage) bool { return len(raw) > 0 && (raw[0] == '"' || raw[0] == '{') }

// parseSpecial reads a special token: its text, or an object with content and matching rules.
func parseSpecial(raw json.RawMessage) (addedToken, error) {
	t := addedToken{Special: true}
	if raw[0] == '"' {
		return t, json.Unmarshal(raw, &t.Content)
	}
	if err := json.Unmarshal(raw, &t); err != nil {
		return t, err
	}
	if t.Content == "" {
		return t, errors.New("the token has no content")
	}
	t.Special = true
	return t, nil
}

func (c *tokenizerConfig) addNamed(name string, raw json.RawMessage) error {
	if isEmpty(raw) || string(raw) == `""` {
		return nil
	}
	if !isToken(raw) {
		return fmt.Errorf("%s is %.40s, want a string or an object with content", name, raw)
	}
	token, err := parseSpecial(raw)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	c.named = append(c.named, namedToken{name, token})
	return nil
}

// addExtra reads a list of tokens or an object of named tokens.
func (c *tokenizerConfig) addExtra(raw json.RawMessage) error {
	if isEmpty(raw) {
		return nil
	}
	if raw[0] == '{' {
		var named map[string]json.RawMessage
		if err := json.Unmarshal(raw, &named); err != nil {
			return fmt.Errorf("extra_special_tokens: %w", err)
		}
		for _, name := range slices.Sorted(maps.Keys(named)) {
			if err := c.addNamed(name, named[name]); err != nil {
				return fmt.Errorf("extra_special_tokens: %w", err)
			}
		}
		return nil
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return fmt.Errorf("extra_special_tokens: %w", err)
	}
	for i, entry := range list {
		if !isToken(entry) {
			return fmt.Errorf("extra_special_tokens: entry %d is %.40s, want a string or an object with content", i, entry)
		}
		token, err := parseSpecial(entry)
		if err != nil {
			return fmt.Errorf("extra_special_tokens: entry %d: %w", i, err)
		}
		c.extra = append(c.extra, token)
	}
	return nil
}

// addDeclared reads added_tokens_decoder: index to token.
func (c *tokenizerConfig) addDeclared(raw json.RawMessage) error {
	if isEmpty(raw) {
		return nil
	}
	var byIndex map[string]addedToken
	if err := json.Unmarshal(raw, &byIndex); err != nil {
		return fmt.Errorf("added_tokens_decoder: %w", err)
	}
	for index, token := range byIndex {
		id, err := strconv.ParseInt(index, 10, 32)
		if err != nil || id < 0 {
			return fmt.Errorf("added_tokens_decoder: %.40q is not an id", index)
		}
		token.ID = int32(id)
		c.declared = append(c.declared, token)
	}
	slices.SortFunc(c.declared, func(a, b addedToken) int { return int(a.ID) - int(b.ID) })
	return nil
}
