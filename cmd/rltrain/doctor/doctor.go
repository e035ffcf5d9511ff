package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/hub"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/transformers"
)

// Command describes a model.
func Command() *cli.Command {
	return &cli.Command{
		Name:  "doctor",
		Usage: "describe a model before it is used or trained, without loading its weights, or this machine",
		Description: `rltrain doctor train, with the options of a run, tries it and describes it, as train --dry-run does.
Without --model: which devices compute and how, how far the log-probabilities of sampler and training are apart there, and which sandbox this machine offers for programs, why no better one, and what would help.

Of a language model: family, size, context, the tokens that end a text, chat template, the first prompt of a task
and the tokens of it that supervised training trains, and what memory to expect. Of an adapter also: which fields
of PEFT are in use, whether it loads here, and what vLLM would refuse. Of a classifier: labels and base model.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "model", Usage: "folder of a model, an adapter or a classifier, or a name on the hub or in the cache"},
			shared.TaskFlag(exampleTasks()...),
		},
		Action: doctor,
	}
}

func doctor(c *cli.Context) error {
	name := c.String("model")
	if name == "" {
		if c.IsSet("task") {
			return shared.UsageErrorf("--task: applies with --model DIR, the folder of a language model")
		}
		return describeMachine(c)
	}
	// The weights of a model on the hub are left there.
	client, done := shared.HubOf(c)
	defer done()
	find := func(name string) (hub.Model, error) { return client.Model(c.Context, name, hub.NoWeights) }
	found, err := find(name)
	if err != nil {
		return fmt.Errorf("--model: %w", err)
	}
	var s shared.Sheet
	switch {
	case policy.IsClassifierFolder(found.Dir):
		if c.IsSet("task") {
			return shared.UsageErrorf("--task: does not apply to %s, a classifier", name)
		}
		err = describeClassifier(&s, found.Dir)
	case shared.IsAdapter(found.Dir):
		err = describeAdapter(&s, find, found.Dir, c.String("task"))
	default:
		err = describeLanguageModel(&s, found.Dir, c.String("task"), 0)
	}
	if _, printErr := fmt.Fprint(c.App.Writer, s.String()); printErr != nil {
		return printErr
	}
	return err
}

// describeMachine tells what there is to compute with, and what programs would run in.
func describeMachine(c *cli.Context) error {
	var s shared.Sheet
	device, err := torch.ParseDevice("auto")
	if err != nil {
		return err
	}
	torch.UseDevice(device)
	err = shared.OnThread(c, func(ctx context.Context) error {
		describeDevices(&s)
		describeMismatch(&s)
		return describeSandbox(ctx, &s)
	})
	if _, printErr := fmt.Fprint(c.App.Writer, s.String()); printErr != nil {
		return printErr
	}
	return err
}

func describeClassifier(s *shared.Sheet, dir string) error {
	policy, err := policy.ReadClassifier(dir)
	if err != nil {
		return err
	}
	base := "its own weights: the adapter is merged"
	if shared.IsAdapter(dir) {
		inUse, err := lora.InUse(dir)
		if err != nil {
			return err
		}
		base = baseOf(dir, inUse)
	}
	s.Head("Text classifier %s", dir)
	s.Row("labels", "%d: %s", len(policy.Labels), strings.Join(policy.Labels, ", "))
	s.Row("pooling", "%s", policy.Pooling)
	s.Row("texts", "cut at %d tokens", policy.MaxLength)
	s.Row("base model", "%s", base)
	return nil
}

// textOf is a JSON string's text, and other JSON as it is.
func textOf(value string) string {
	var text string
	if json.Unmarshal([]byte(value), &text) == nil {
		return text
	}
	return value
}

// describeLanguageModel reads config, tokenizer and the list of tensors. adapter is the number of weights of an
// adapter that belongs to it, 0 for none.
func describeLanguageModel(s *shared.Sheet, dir, task string, adapter int64) error {
	c, err := languageConfig(dir)
	if err != nil {
		return err
	}
	policy, err := policy.ReadCausalLM(dir)
	if err != nil {
		return err
	}
	defer policy.Close()
	parameters, tied := int64(0), ""
	for _, spec := range c.TensorNames() {
		if spec.Group == "tied" {
			tied = "; the output layer is the embedding"
			continue
		}
		parameters += elements(spec.Shape)
	}
	weights, stored, err := storedWeights(dir, c)
	if err != nil {
		return err
	}
	s.Head("Language model %s", dir)
	s.Row("family", "%s: %d layers, %d wide, %d heads of %d (%d of keys and values), MLP %s, vocabulary %s", c.ModelType, c.NumHiddenLayers,
		c.HiddenSize, c.NumAttentionHeads, c.HeadDim, c.NumKeyValueHeads, report.Count(int64(c.IntermediateSize)), report.Count(int64(c.VocabSize)))
	s.Row("parameters", "%s%s", millions(parameters), tied)
	s.Row("weights", "%s", weights)
	context := "what it was trained for"
	if c.MaxLength() > 0 {
		context = "more are impossible"
	}
	s.Row("context", "%s tokens, %s", report.Count(int64(c.MaxPositionEmbeddings)), context)
	s.Row("texts end at", "%s", shared.EOSNames(policy))
	s.Row("special tokens", "%s", specialTokens(policy))
	s.Row("texts begin with", "%s", shared.TokenNames(policy, policy.Tokenizer.Opening(), "no token of their own"))
	if policy.Templates == nil {
		s.Row("chat template", "none: messages are refused, texts are used as they are")
	} else {
		s.Row("chat template", "%s", strings.Join(policy.Templates.Names(), ", "))
	}
	if err := describeExample(s, policy, task); err != nil {
		return err
	}
	s.Head("Memory, estimated")
	return memoryRows(s, c, parameters, stored, adapter)
}

// languageConfig is transformers.LoadCausalConfig with a word about encoders.
func languageConfig(dir string) (*transformers.Config, error) {
	c, err := transformers.LoadCausalConfig(dir)
	if err == nil {
		return c, nil
	}
	if encoder, encoderErr := transformers.LoadConfig(dir); encoderErr == nil {
		return nil, fmt.Errorf("%s is an encoder (%s), which classifiers are trained on: it is no language model", dir, encoder.ModelType)
	}
	return nil, err
}

// storedWeights describes the weights in a folder and counts their bytes: 0 where there are none.
func storedWeights(dir string, c *transformers.Config) (text string, bytes int64, err error) {
	found := false
	for _, pattern := range []string{"model*.safetensors", "pytorch_model*.bin"} {
		names, err := filepath.Glob(filepath.Join(dir, pattern))
		found = found || err == nil && len(names) > 0
	}
	if !found {
		return "no safetensors and no pytorch_model.bin in the folder", 0, nil
	}
	files, err := safetensors.OpenModel(dir)
	if err != nil {
		return "", 0, err
	}
	defer files.Close()
	if _, err := c.Resolve(files); err != nil {
		return "", 0, err
	}
	counts := map[safetensors.DType]int64{}
	for _, name := range files.Names() {
		_, e, _ := files.Entry(name)
		counts[e.DType] += e.Size
		bytes += e.Size
	}
	var parts []string
	for _, dtype := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s %s", mebibytes(counts[dtype]), dtype))
	}
	return strings.Join(parts, ", "), bytes, nil
}

func elements(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

// millions writes a count with commas, and large ones in millions too.
func millions(n int64) string {
	text := report.Count(n)
	if n >= 1e6 {
		text += fmt.Sprintf(" (%.1f M)", float64(n)/1e6)
	}
	return text
}

func specialTokens(p *policy.CausalLM) string {
	special := p.Tokenizer.Special()
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(special)) {
		id := "no id"
		if n, ok := p.Tokenizer.SpecialID(name); ok {
			id = strconv.Itoa(int(n))
		}
		parts = append(parts, fmt.Sprintf("%s %s %s", name, id, strconv.Quote(special[name])))
	}
	if parts == nil {
		return "none are named"
	}
	return strings.Join(parts, ", ")
}
