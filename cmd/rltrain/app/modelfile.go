package app

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch/transformers/chat"
)

// An ollamaTemplate is a chat template in Ollama's form, and what it writes.
type ollamaTemplate struct {
	template         string
	before, mid, end string // around the role and the content of a message
}

func (t ollamaTemplate) render(messages ...envs.Message) string {
	var b strings.Builder
	for _, m := range messages {
		b.WriteString(t.before + m.Role + t.mid + m.Content + t.end)
	}
	return b.String() + t.before + envs.RoleAssistant + t.mid
}

// ollamaTemplates are those that most models share. For other models Ollama recognises the template inside the file.
var ollamaTemplates = []ollamaTemplate{
	{"{{- range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}<|im_start|>assistant\n", "<|im_start|>", "\n", "<|im_end|>\n"},
	{
		"{{- range .Messages }}<|start_header_id|>{{ .Role }}<|end_header_id|>\n\n{{ .Content }}<|eot_id|>{{ end }}<|start_header_id|>assistant<|end_header_id|>\n\n",
		"<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>",
	},
}

// writeModelfile writes an Ollama Modelfile for the GGUF file of a model: the tokens that end a response, the sampling of
// generation_config.json, and the template where it renders as one of ollamaTemplates, with the system prompt that it has
// where a conversation has none.
func writeModelfile(path, file string, p *policy.CausalLM) error {
	var b strings.Builder
	fmt.Fprintf(&b, "FROM ./%s\n", file)
	if p.Templates != nil {
		template, system, err := findOllama(p)
		if err != nil {
			return err
		}
		if template != "" {
			fmt.Fprintf(&b, "TEMPLATE \"\"\"%s\"\"\"\n", template)
		}
		if system != "" && !strings.Contains(system, `"""`) {
			fmt.Fprintf(&b, "SYSTEM \"\"\"%s\"\"\"\n", system)
		}
	}
	for _, id := range p.EOS() {
		if text, err := p.Tokenizer.Decode([]int32{id}, false); err == nil && text != "" {
			fmt.Fprintf(&b, "PARAMETER stop %s\n", strconv.Quote(text))
		}
	}
	g := p.Generation()
	for _, s := range []struct {
		name       string
		value, off float64
	}{
		{"temperature", g.Temperature, 1}, {"top_k", float64(g.TopK), 0}, {"top_p", g.TopP, 1}, {"min_p", g.MinP, 0},
		{"repeat_penalty", g.RepetitionPenalty, 1},
	} {
		if s.value != s.off {
			fmt.Fprintf(&b, "PARAMETER %s %s\n", s.name, plainNumber(s.value))
		}
	}
	return outfile.Write(path, []byte(b.String()), 0o644)
}

// findOllama finds the template that renders a conversation as the model's own does, and the model's own system prompt.
func findOllama(p *policy.CausalLM) (template, system string, err error) {
	render := func(messages ...envs.Message) (string, error) {
		special := p.Tokenizer.Special()
		converted := make([]chat.Message, len(messages))
		for i, m := range messages {
			converted[i] = chat.NewMessage(m.Role, m.Content)
		}
		rendered, err := p.Templates.Render(converted, chat.Options{AddGenerationPrompt: true, Special: special})
		return strings.TrimPrefix(rendered.Text, special["bos_token"]), err
	}
	said := []envs.Message{
		{Role: envs.RoleSystem, Content: "S s"}, userMessage("U u"), {Role: envs.RoleAssistant, Content: "A a"}, userMessage("V v"),
	}
	whole, err := render(said...)
	if err != nil { // some templates refuse a system prompt: none of the common ones
		return "", "", nil
	}
	alone, err := render(said[1])
	if err != nil {
		return "", "", fmt.Errorf("the chat template: %w", err)
	}
	for _, t := range ollamaTemplates {
		// A beginning-of-text token may be the first mark of the template itself.
		if want := t.render(said...); whole != want && whole != strings.TrimPrefix(want, p.Tokenizer.Special()["bos_token"]) {
			continue
		}
		if rest, ok := strings.CutSuffix(t.before+strings.TrimPrefix(alone, t.before), t.render(said[1])); ok {
			system, _ = strings.CutPrefix(rest, t.before+"system"+t.mid)
			system = strings.TrimSuffix(system, t.end)
		}
		return t.template, system, nil
	}
	return "", "", nil
}
