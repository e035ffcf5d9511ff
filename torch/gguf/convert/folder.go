package convert

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/torch/gguf"
)

// WeightsFile is the name of a symbolic link to the GGUF file in a folder of [WriteFolder].
const WeightsFile = "model.gguf"

// WriteFolder fills dir, which must exist, with the files of a model folder except weights, from the metadata of the
// GGUF file at path, and links to the file for the weights. generation holds further fields of generation_config.json.
// Errors name the invalid key or tensor.
func WriteFolder(dir, path string, generation map[string]any) error {
	f, err := gguf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	texts, err := folder(f, generation)
	if err != nil {
		return fmt.Errorf("gguf: %s: %w", f.Path(), err)
	}
	if _, err := Weights(f); err != nil {
		return err
	}
	for name, text := range texts {
		target := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return fmt.Errorf("gguf: %w", err)
		}
		if err := outfile.Write(target, text, 0o644); err != nil {
			return fmt.Errorf("gguf: %w", err)
		}
	}
	absolute, err := filepath.Abs(f.Path())
	if err == nil {
		err = os.Symlink(absolute, filepath.Join(dir, WeightsFile))
	}
	if err != nil {
		return fmt.Errorf("gguf: %w", err)
	}
	return nil
}

// folder returns the contents of all files by name.
func folder(f *gguf.File, more map[string]any) (map[string][]byte, error) {
	c, err := config(f)
	if err != nil {
		return nil, err
	}
	v, err := readVocabulary(f)
	if err != nil {
		return nil, err
	}
	if size := c["vocab_size"].(int64); int64(len(v.tokens)) > size {
		return nil, fmt.Errorf("%stokens has %d tokens, %s has %d rows", ggml, len(v.tokens), embedding, size)
	}
	tokenizer, err := v.json()
	if err != nil {
		return nil, err
	}
	generation := map[string]any{"bos_token_id": c["bos_token_id"], "pad_token_id": c["pad_token_id"], "eos_token_id": nil}
	if ids := v.ending(); len(ids) > 0 {
		generation["eos_token_id"] = ids
	}
	maps.Copy(generation, more)
	texts := map[string][]byte{}
	for name, content := range map[string]any{
		"config.json": c, "generation_config.json": generation,
		"tokenizer_config.json": v.config(c["max_position_embeddings"]),
	} {
		if texts[name], err = files.EncodeJSON(content); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	if texts["tokenizer.json"], err = files.EncodeLine(tokenizer); err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	if v.template != "" {
		texts["chat_template.jinja"] = []byte(v.template)
	}
	for name, template := range v.alternate {
		if template == "" || strings.ContainsAny(name, `/\`) || slices.Contains([]string{"", ".", ".."}, name) {
			continue
		}
		texts["additional_chat_templates/"+name+".jinja"] = []byte(template)
	}
	return texts, nil
}
