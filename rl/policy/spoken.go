package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/internal/smallfile"
	"github.com/rltrain/rltrain/internal/words"
	"github.com/rltrain/rltrain/torch/gguf"
	"github.com/rltrain/rltrain/torch/transformers"
	"github.com/rltrain/rltrain/torch/transformers/chat"
)

// EndAt makes token, which the vocabulary must have, the end of texts that training appends and templates see. Save
// writes it to generation_config.json and tokenizer_config.json.
func (p *CausalLM) EndAt(token string) error {
	id, ok := p.Tokenizer.TokenID(token)
	if !ok {
		return fmt.Errorf("the model has no token %s", words.Quote(token))
	}
	p.Tokenizer.SetSpecial("eos_token", token)
	if !slices.Contains(p.eos, id) {
		p.added = append(p.added, id)
	}
	p.eos = append([]int32{id}, slices.DeleteFunc(p.eos, func(other int32) bool { return other == id })...)
	p.endToken = token
	return nil
}

// SetTemplate replaces the chat templates by the one in a file, or in a model folder. Save writes it as chat_template.jinja.
func (p *CausalLM) SetTemplate(path string) error {
	templates, err := chat.Load(path)
	if info, wrong := os.Stat(path); wrong != nil || !info.IsDir() {
		var data []byte
		if data, err = smallfile.Read(path); err == nil {
			templates, err = chat.Parse(path, string(data))
		}
	}
	if err == nil && templates.Default() == nil {
		err = fmt.Errorf("%s has no default chat template", path)
	}
	if err != nil {
		return err
	}
	return p.useTemplates(templates, templates.Default())
}

// readTemplate takes over the chat template of an adapter's folder, if it has one of its own.
func (p *CausalLM) readTemplate(dir string) error {
	templates, err := chat.Load(dir)
	switch {
	case errors.Is(err, chat.ErrNone):
		return nil
	case err != nil:
		return err
	case p.Templates != nil && templates.Source() == p.Templates.Source():
		return nil
	}
	return p.useTemplates(templates, templates.Default())
}

// readText takes over the chat template and the ends that saveText wrote into an adapter's folder.
func (p *CausalLM) readText(dir string) error {
	if err := p.readTemplate(dir); err != nil {
		return err
	}
	data, err := smallfile.Read(filepath.Join(dir, "tokenizer_config.json"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var named struct {
		EOS json.RawMessage `json:"eos_token"`
	}
	token := ""
	if err == nil && json.Unmarshal(data, &named) == nil && json.Unmarshal(named.EOS, &token) == nil && token != p.Tokenizer.Special()["eos_token"] {
		if err := p.EndAt(token); err != nil {
			return fmt.Errorf("%s: eos_token of tokenizer_config.json: %w", dir, err)
		}
	}
	return p.readEnds(dir)
}

// readEnds adds the ends in a folder's generation_config.json to the model's.
func (p *CausalLM) readEnds(dir string) error {
	generation, err := transformers.LoadGenerationConfig(dir, p.config)
	if err != nil {
		return err
	}
	for _, id := range generation.EOS {
		if !slices.Contains(p.eos, id) {
			p.eos, p.added = append(p.eos, id), append(p.added, id)
		}
	}
	return nil
}

// saveText writes the policy's own chat template and the added ends to the files of a saved model.
func (p *CausalLM) saveText(dir string) error {
	if p.template != nil {
		if err := os.RemoveAll(filepath.Join(dir, "additional_chat_templates")); err != nil {
			return err
		}
		if err := outfile.Write(filepath.Join(dir, "chat_template.jinja"), p.template, 0o644); err != nil {
			return err
		}
	}
	if len(p.added) > 0 {
		ids := make([]any, len(p.eos))
		for i, id := range p.eos {
			ids[i] = int64(id)
		}
		if err := setField(filepath.Join(dir, "generation_config.json"), "eos_token_id", ids); err != nil {
			return err
		}
	}
	if p.endToken == "" {
		return nil
	}
	return setField(filepath.Join(dir, "tokenizer_config.json"), "eos_token", p.endToken)
}

// ggufText are the policy's own chat template and end token as a GGUF file has them.
func (p *CausalLM) ggufText() (pairs []gguf.Pair) {
	if p.template != nil {
		pairs = append(pairs, gguf.Pair{Key: "tokenizer.chat_template", Value: string(p.template)})
	}
	if p.endToken != "" {
		pairs = append(pairs, gguf.Pair{Key: "tokenizer.ggml.eos_token_id", Value: uint32(p.eos[0])})
	}
	return pairs
}

// setField sets a field of a JSON file, which may be missing, and keeps the others.
func setField(path, name string, value any) error {
	data, err := smallfile.ReadAll(path)
	if errors.Is(err, fs.ErrNotExist) {
		data, err = []byte("{}"), nil
	}
	if err != nil {
		return err
	}
	parsed, err := dataset.Parse(string(data))
	object, ok := parsed.(dataset.Object)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if !ok {
		return fmt.Errorf("%s: got %s, want an object", path, dataset.Kind(parsed))
	}
	text, err := indented(object.With(name, value))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return outfile.Write(path, text, 0o644)
}

// indented is the text of a file with an object, whose fields keep their order.
func indented(object dataset.Object) ([]byte, error) {
	line, err := object.MarshalJSON()
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	err = json.Indent(&text, line, "", "  ")
	return append(text.Bytes(), '\n'), err
}
