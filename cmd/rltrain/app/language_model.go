package app

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/internal/options"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/run"
)

// languageModelFlags select a language model, how its weights are kept, and its device.
func languageModelFlags() []cli.Flag {
	return append(storedModelFlags(),
		&cli.StringFlag{Name: "quantize", Usage: "quantize linear weights on loading: nf4 (4 bits) or int8; CPU only"},
		&cli.BoolFlag{Name: "load-in-4bit", Usage: "alias for --quantize nf4"},
		&cli.BoolFlag{Name: "load-in-8bit", Usage: "alias for --quantize int8"},
	)
}

// storedModelFlags are languageModelFlags without those that quantize weights on loading.
func storedModelFlags() []cli.Flag {
	return slices.Concat([]cli.Flag{
		&cli.StringFlag{Name: "model", Usage: "language model: smollm2, a model or adapter folder, a GGUF file, or org/name on the Hugging Face Hub"},
		ggufFlag(),
		&cli.StringFlag{Name: "adapter", Usage: "LoRA adapter for --model: a folder or a Hugging Face id"},
		&cli.StringFlag{Name: "dtype", Usage: "data type of weights: fp32, bf16 or fp16; GPUs, and CPUs that are fast in bf16, also compute in bf16, other CPUs in fp32", DefaultText: "bf16 on GPUs that support it, else as stored"},
		&cli.BoolFlag{Name: "bf16", Usage: "alias for --dtype bf16"},
	}, config.OptionFlags(options.MustRead(&config.Spoken{})), config.Flags("threads", "device"))
}

// languageModel loads the model of languageModelFlags.
func languageModel(c *cli.Context) (*policy.CausalLM, error) {
	name := c.String("model")
	if name == "" {
		return nil, shared.UsageErrorf("%s needs --model: the folder of a language model or adapter, or a Hugging Face id", c.Command.Name)
	}
	p, err := loadLanguageModel(c, name, c.String("adapter"))
	if err != nil {
		return nil, fmt.Errorf("--model: %w", err)
	}
	return p, nil
}

// loadLanguageModel loads a language model and, if adapter is not "", its adapter.
func loadLanguageModel(c *cli.Context, name, adapter string) (*policy.CausalLM, error) {
	dtype, err := weightType(c)
	if err != nil {
		return nil, err
	}
	return loadAs(c, name, adapter, dtype)
}

// loadAs is loadLanguageModel for weights kept as dtype.
func loadAs(c *cli.Context, name, adapter, dtype string) (*policy.CausalLM, error) {
	client, done := shared.HubOf(c)
	defer done()
	p, err := policy.LoadCausalLM(c.Context, client, name, adapter, dtype, false)
	if err != nil {
		if policy.IsClassifierFolder(name) {
			return nil, shared.UsageErrorf("%s is a classifier; use rltrain predict or rltrain eval", name)
		}
		if record, unread := run.ReadRun(name); unread == nil && record.Ending != "" {
			return nil, fmt.Errorf("%w; its run ended: %s", err, record.Ending)
		}
		return nil, fmt.Errorf("%w%s", err, suggestStage(name))
	}
	if note := p.Note(); note != "" {
		_, err = fmt.Fprintln(c.App.ErrWriter, "note: "+note)
	}
	if err := cmp.Or(err, speak(c, p)); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// speak has the model render conversations and end texts as the flags say.
func speak(c *cli.Context, p *policy.CausalLM) (err error) {
	o := config.Spoken{ChatTemplate: c.String("chat-template"), EOSToken: c.String("eos-token")}
	o.TemplateDate, o.TemplateArgs = c.String("template-date"), c.String("chat-template-kwargs")
	if err := o.Check(); err != nil {
		return usageFault(err)
	}
	p.Template.Args, _ = o.Args()
	if date, _ := o.Date(); !date.IsZero() {
		p.Template.Now = date
	}
	if o.ChatTemplate != "" {
		if err := p.SetTemplate(o.ChatTemplate); err != nil {
			return shared.UsageErrorf("--chat-template: %v", err)
		}
	}
	if o.EOSToken != "" {
		if err := p.EndAt(o.EOSToken); err != nil {
			return shared.UsageErrorf("--eos-token: %v", err)
		}
	}
	return nil
}

// withSampler loads a language model and calls work with a sampler of it.
func withSampler(c *cli.Context, name, adapter string, slots int, work func(sampler *policy.Sampler) error) error {
	p, err := loadLanguageModel(c, name, adapter)
	if err != nil {
		return fmt.Errorf("loading %s: %w", name, err)
	}
	defer p.Close()
	sampler, err := p.NewSampler(slots)
	if err != nil {
		return err
	}
	defer sampler.Close()
	return work(sampler)
}

// weightType is how the flags want weights kept, as policy.Config.DType has it.
func weightType(c *cli.Context) (dtype string, err error) {
	quantize := c.String("quantize")
	if quantize != "" && quantize != "nf4" && quantize != "int8" {
		return "", shared.UsageErrorf("--quantize: %q is neither nf4 nor int8", quantize)
	}
	return oneType(append(storedTypes(c), typeChoice{"--quantize", quantize, quantize != ""},
		typeChoice{"--load-in-4bit", "nf4", c.Bool("load-in-4bit")}, typeChoice{"--load-in-8bit", "int8", c.Bool("load-in-8bit")}))
}

// typeChoice is a flag that can choose how weights are kept.
type typeChoice struct {
	flag, dtype string
	given       bool
}

// storedTypes are the choices of storedModelFlags.
func storedTypes(c *cli.Context) []typeChoice {
	return []typeChoice{{"--dtype", c.String("dtype"), c.String("dtype") != ""}, {"--bf16", "bf16", c.Bool("bf16")}}
}

// oneType returns what the given choices agree on, "" if none is given.
func oneType(choices []typeChoice) (dtype string, err error) {
	by := "" // the flag that chose dtype
	for _, choice := range choices {
		if !choice.given {
			continue
		}
		if by != "" && dtype != choice.dtype {
			return "", shared.UsageErrorf("%s (%s) and %s (%s) conflict; keep one", by, dtype, choice.flag, choice.dtype)
		}
		by, dtype = choice.flag, choice.dtype
	}
	return dtype, nil
}
