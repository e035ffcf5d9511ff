package app

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/torch/gguf"
	"github.com/rltrain/rltrain/torch/transformers/chat"
)

// quantizations are the choices of --quantize.
var quantizations = []struct {
	name string
	kind gguf.Type
}{
	{"f32", gguf.F32}, {"f16", gguf.F16}, {"bf16", gguf.BF16}, {"q8_0", gguf.Q8_0}, {"q4_0", gguf.Q4_0}, {"q4_1", gguf.Q4_1}, {"q4_k", gguf.Q4_K},
}

func quantizationNames() string {
	var names []string
	for _, q := range quantizations {
		names = append(names, q.name)
	}
	return strings.Join(names, ", ")
}

func exportCommand() *cli.Command {
	return &cli.Command{
		Name:  "export",
		Usage: "write a trained model for llama.cpp, Ollama, vLLM or transformers",
		Description: `--format gguf writes one file for llama.cpp and Ollama, with the tokenizer and chat template inside and any adapter
merged, and an Ollama Modelfile in the same folder. --adapter-only writes the adapter as a GGUF file for
llama.cpp's --lora. --format hf writes a model folder for transformers, vLLM and SGLang with the adapter merged.

   rltrain export --model models/prompts_rl --output out/                  # out/prompts_rl-q8_0.gguf, out/Modelfile
   rltrain export --model models/prompts_rl --format hf --output merged/`,
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "format", Value: "gguf", Usage: "gguf or hf"},
			&cli.StringFlag{Name: "quantize", Value: "q8_0", Usage: "type of the GGUF file's matrices: " + quantizationNames()},
			&cli.BoolFlag{Name: "adapter-only", Usage: "write the adapter alone, not merged"},
			&cli.StringFlag{Name: "output", Aliases: []string{"output-dir"}, Usage: "gguf: a file name that ends in .gguf, or a folder; hf: a new or empty folder"},
		}, storedModelFlags()...),
		Action: export,
	}
}

// checkExport reads the flags; at is the index of --quantize.
func checkExport(c *cli.Context) (at int, err error) {
	at = slices.IndexFunc(quantizations, func(q struct {
		name string
		kind gguf.Type
	}) bool {
		return strings.EqualFold(q.name, c.String("quantize"))
	})
	format := c.String("format")
	switch {
	case c.String("model") == "":
		return at, shared.UsageErrorf("export needs --model NAME: a model, adapter or run folder, or a GGUF file")
	case c.String("output") == "":
		return at, shared.UsageErrorf("export needs --output PATH, such as --output out/")
	case format != "gguf" && format != "hf":
		return at, shared.UsageErrorf("--format: %q is none of gguf and hf", format)
	case at < 0:
		return at, shared.UsageErrorf("--quantize: %q is none of %s", c.String("quantize"), quantizationNames())
	case format == "hf" && (c.IsSet("quantize") || c.Bool("adapter-only")):
		return at, shared.UsageErrorf("--quantize and --adapter-only apply only with --format gguf; --dtype sets the type of a folder's weights")
	case format == "gguf" && (c.IsSet("dtype") || c.Bool("bf16")):
		return at, shared.UsageErrorf("--dtype applies only with --format hf; --quantize sets the type of a GGUF file's matrices")
	}
	return at, nil
}

func export(c *cli.Context) error {
	at, err := checkExport(c)
	if err != nil {
		return err
	}
	format := c.String("format")
	if model := c.String("model"); format == "hf" && c.String("adapter") == "" && (policy.IsClassifierFolder(model) || policy.IsRewardFolder(model)) {
		return merge(c)
	}
	dtype, err := oneType(storedTypes(c))
	if err != nil {
		return err
	}
	return shared.OnThread(c, func(ctx context.Context) error {
		p, err := loadAs(c, c.String("model"), c.String("adapter"), dtype)
		if err != nil {
			return fmt.Errorf("--model: %w", err)
		}
		defer p.Close()
		if format == "hf" {
			if err := p.SaveFull(c.String("output"), dtype); err != nil {
				return err
			}
			if err := writeModelCard(c.String("output"), languageCard(p)); err != nil {
				return err
			}
			_, err = fmt.Fprintln(c.App.Writer, c.String("output"))
			return err
		}
		return exportGGUF(c, p, quantizations[at].name, quantizations[at].kind)
	})
}

// unsafeName is what the name of a file does without.
var unsafeName = regexp.MustCompile(`[^\w.-]+`)

// exportName names the model after what --adapter or --model says.
func exportName(c *cli.Context) string {
	name := cmp.Or(c.String("adapter"), c.String("model"))
	if path, err := filepath.Abs(name); err == nil {
		name = path
	}
	return cmp.Or(strings.Trim(unsafeName.ReplaceAllString(strings.TrimSuffix(filepath.Base(name), ".gguf"), "-"), "-."), "model")
}

func exportGGUF(c *cli.Context, p *policy.CausalLM, quantize string, kind gguf.Type) error {
	path, name := c.String("output"), exportName(c)
	if !strings.HasSuffix(path, ".gguf") {
		end := quantize
		if c.Bool("adapter-only") {
			end = "lora"
		}
		path = filepath.Join(path, name+"-"+end+".gguf")
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	if c.Bool("adapter-only") {
		if err := p.SaveAdapterGGUF(path, name); err != nil {
			return err
		}
		_, err := fmt.Fprintln(c.App.Writer, path)
		return err
	}
	if err := p.SaveGGUF(path, name, kind); err != nil {
		return err
	}
	modelfile := filepath.Join(filepath.Dir(path), "Modelfile")
	if err := writeModelfile(modelfile, filepath.Base(path), p); err != nil {
		return err
	}
	_, err := fmt.Fprintln(c.App.Writer, path+"\n"+modelfile)
	return err
}

// writeModelCard writes README.md into the folder of a full model.
func writeModelCard(dir string, card report.Card) error {
	path, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	card.Name = filepath.Base(path)
	_, err = report.WriteCard(dir, card)
	return err
}

// languageCard is the card of a full language model that p is written as.
func languageCard(p *policy.CausalLM) report.Card {
	return report.Card{BaseModel: p.BaseModel, Merged: p.Adapted(), Chat: p.Templates != nil}
}

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
