package app

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch/gguf"
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

func export(c *cli.Context) error {
	at := slices.IndexFunc(quantizations, func(q struct {
		name string
		kind gguf.Type
	}) bool {
		return strings.EqualFold(q.name, c.String("quantize"))
	})
	format := c.String("format")
	switch {
	case c.String("model") == "":
		return shared.UsageErrorf("export needs --model NAME: a model, adapter or run folder, or a GGUF file")
	case c.String("output") == "":
		return shared.UsageErrorf("export needs --output PATH")
	case format != "gguf" && format != "hf":
		return shared.UsageErrorf("--format: %q is none of gguf and hf", format)
	case at < 0:
		return shared.UsageErrorf("--quantize: %q is none of %s", c.String("quantize"), quantizationNames())
	case format == "hf" && (c.IsSet("quantize") || c.Bool("adapter-only")):
		return shared.UsageErrorf("--quantize and --adapter-only apply only with --format gguf; --dtype sets the type of a folder's weights")
	case format == "gguf" && (c.IsSet("dtype") || c.Bool("bf16")):
		return shared.UsageErrorf("--dtype applies only with --format hf; --quantize sets the type of a GGUF file's matrices")
	}
	if format == "hf" && c.String("adapter") == "" && policy.IsClassifierFolder(c.String("model")) {
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
			if err := writeModelCard(c.String("output"), p); err != nil {
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
