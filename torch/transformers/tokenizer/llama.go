package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/internal/smallfile"
)

// ownTokenizer are the model types for which transformers 5 uses tokenizer.json unchanged, whatever class the folder
// names (models/auto/tokenization_auto.py: those that map to TokenizersBackend, and qwen2).
var ownTokenizer = []string{
	"glm4", "granite", "granitemoehybrid", "ministral", "ministral3", "mistral", "mistral3", "modernbert", "olmo2", "olmo3", "phi3",
	"qwen2", "stablelm",
}

// llamaClass reports whether transformers 5 builds the tokenizer of the model folder dir with LlamaTokenizer. fields
// are those of tokenizer_config.json.
func llamaClass(dir string, fields map[string]json.RawMessage) (bool, error) {
	path := filepath.Join(dir, "config.json")
	data, err := smallfile.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		data, err = []byte("{}"), nil
	}
	if err != nil {
		return false, fmt.Errorf("transformers: %w", err)
	}
	var model struct {
		Type  string `json:"model_type"`
		Class string `json:"tokenizer_class"`
	}
	if err := json.Unmarshal(data, &model); err != nil {
		return false, fmt.Errorf("transformers: %s: %w", path, err)
	}
	class := model.Class
	if err := unmarshalField(fields, "tokenizer_class", &class); err != nil {
		return false, fmt.Errorf("transformers: %s: %w", filepath.Join(dir, "tokenizer_config.json"), err)
	}
	return strings.TrimSuffix(class, "Fast") == "LlamaTokenizer" && !slices.Contains(ownTokenizer, model.Type), nil
}

// llamaSettings are the settings of LlamaTokenizer, with defaults for missing ones.
type llamaSettings struct {
	prepend string // where "▁" goes before a text: first, always or never
}

func parseLlama(fields map[string]json.RawMessage) (*llamaSettings, error) {
	var legacy bool
	space := true
	if err := unmarshalField(fields, "legacy", &legacy); err != nil {
		return nil, err
	}
	if err := unmarshalField(fields, "add_prefix_space", &space); err != nil {
		return nil, err
	}
	for name, token := range map[string]string{"unk_token": `"<unk>"`, "bos_token": `"<s>"`, "eos_token": `"</s>"`} {
		if _, ok := fields[name]; !ok {
			fields[name] = json.RawMessage(token)
		}
	}
	switch {
	case !space:
		return &llamaSettings{"never"}, nil
	case legacy:
		return &llamaSettings{"always"}, nil
	}
	return &llamaSettings{"first"}, nil
}

// rebuild changes tokenizer.json as LlamaTokenizer of transformers 5 does. It keeps vocabulary, merges and
// post-processor but replaces how "▁" is put before a text: many files do that with a normaliser, which acts again
// after each special token. It returns false and changes nothing for byte-level tokenizers and for models other than
// BPE.
func (l llamaSettings) rebuild(raw map[string]json.RawMessage) (bool, error) {
	var model map[string]json.RawMessage
	if err := json.Unmarshal(raw["model"], &model); err != nil {
		return false, fmt.Errorf("model: %w", err)
	}
	var kind string
	if err := unmarshalField(model, "type", &kind); err != nil {
		return false, fmt.Errorf("model: %w", err)
	}
	for _, part := range raw {
		if bytes.Contains(part, []byte(`"ByteLevel"`)) {
			return false, nil
		}
	}
	if kind != "BPE" {
		return false, nil
	}
	built := map[string]json.RawMessage{"type": model["type"], "vocab": model["vocab"], "merges": model["merges"]}
	built["fuse_unk"], built["byte_fallback"] = json.RawMessage("true"), json.RawMessage("true")
	decoders := []any{
		map[string]any{"type": "Replace", "pattern": map[string]string{"String": "▁"}, "content": " "},
		map[string]any{"type": "ByteFallback"}, map[string]any{"type": "Fuse"},
	}
	if l.prepend != "never" {
		decoders = append(decoders, map[string]any{"type": "Strip", "content": " ", "start": 1, "stop": 0})
	}
	for name, part := range map[string]any{
		"model": built, "normalizer": nil,
		"pre_tokenizer": map[string]any{"type": "Metaspace", "replacement": "▁", "prepend_scheme": l.prepend, "split": false},
		"decoder":       map[string]any{"type": "Sequence", "decoders": decoders},
	} {
		text, err := json.Marshal(part)
		if err != nil {
			return false, err
		}
		raw[name] = text
	}
	return true, nil
}
