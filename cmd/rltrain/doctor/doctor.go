package doctor

import (
	"context"
	"encoding/json"
	"errors"
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

// Signal measures what RL on --task can learn from --model, with some flags of its own.
type Signal struct {
	Flags    []cli.Flag
	Tasks    []string
	Describe func(*cli.Context, *shared.Sheet) error
}

// Command returns the command doctor.
func Command(signal Signal) *cli.Command {
	examples := exampleTasks()
	tasks := slices.Clone(examples)
	for _, task := range signal.Tasks {
		if !slices.Contains(tasks, task) {
			tasks = append(tasks, task)
		}
	}
	return &cli.Command{
		Name:  "doctor",
		Usage: "check this machine, or describe a model without loading its weights",
		Description: `Without --model: what the machine has and lacks (glibc, CPU, libtorch, cache, GPU driver), each fault with its fix; then
devices, implementations of operators, agreement of sampling and training log-probs, and the sandbox for programs, with
the reasons if a better one is unavailable.

With --model:
  - language model: family, size, context, stop tokens, chat template, first prompt of a task, which tokens SFT trains
    on, and memory estimates
  - adapter: also the PEFT fields in use, and whether rltrain and vLLM load it
  - classifier: labels and base model

With --model and --task NAME (and --dataset FILE if the task needs one), it also loads the weights and samples completions:
pass@1 and pass@8 before training, truncated completions, and whether RL has something to learn from.

"rltrain doctor train" with the options of a run does the same as train --dry-run.`,
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "model", Usage: "model, adapter or classifier: a folder or a Hugging Face id"},
			shared.TaskFlag(tasks...),
		}, signal.Flags...),
		Action: func(c *cli.Context) error { return doctor(c, signal, examples) },
	}
}

func doctor(c *cli.Context, signal Signal, examples []string) error {
	name := c.String("model")
	if name == "" {
		if c.IsSet("task") {
			return shared.UsageErrorf("--task: needs --model with a language model")
		}
		return describeMachine(c)
	}
	// Fetch only the configuration from the hub, not the weights.
	client, done := shared.HubOf(c)
	defer done()
	find := func(name string) (hub.Model, error) { return client.Model(c.Context, name, hub.NoWeights) }
	found, err := find(name)
	if err != nil {
		return fmt.Errorf("--model: %w", err)
	}
	var s shared.Sheet
	example := c.String("task")
	if !slices.Contains(examples, example) {
		example = examples[0] // the task needs data
	}
	switch {
	case policy.IsClassifierFolder(found.Dir):
		if c.IsSet("task") {
			return shared.UsageErrorf("--task: does not apply; %s is a classifier", name)
		}
		err = describeClassifier(&s, found.Dir)
	case shared.IsAdapter(found.Dir):
		err = describeAdapter(&s, find, found.Dir, example)
	default:
		err = describeLanguageModel(&s, found.Dir, example, 0)
	}
	if err == nil && c.IsSet("task") && slices.Contains(signal.Tasks, c.String("task")) {
		err = signal.Describe(c, &s)
	}
	if _, printErr := fmt.Fprint(c.App.Writer, s.String()); printErr != nil {
		return printErr
	}
	return err
}

// describeMachine describes the system, devices, numerics and the sandbox. Without libtorch it skips what needs it.
func describeMachine(c *cli.Context) error {
	var s shared.Sheet
	if fault := describeSystem(&s); fault != nil {
		err := describeSandbox(c.Context, &s)
		if _, printErr := fmt.Fprint(c.App.Writer, s.String()); printErr != nil {
			return printErr
		}
		return errors.Join(fault, err)
	}
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
	base := "merged into the weights"
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
	s.Row("max length", "%d tokens", policy.MaxLength)
	s.Row("base model", "%s", base)
	return nil
}

// textOf decodes a JSON string and returns other JSON unchanged.
func textOf(value string) string {
	var text string
	if json.Unmarshal([]byte(value), &text) == nil {
		return text
	}
	return value
}

// describeLanguageModel describes the model in dir from its config, tokenizer and tensor names. adapter is the number of
// weights of its adapter, or 0.
func describeLanguageModel(s *shared.Sheet, dir, task string, adapter int64) error {
	c, err := languageConfig(dir)
	if err != nil {
		return err
	}
	lm, err := policy.ReadCausalLM(dir)
	if err != nil {
		return err
	}
	defer lm.Close()
	parameters, tied := int64(0), ""
	for _, spec := range c.TensorNames() {
		if spec.Group == "tied" {
			tied = " (tied embeddings)"
			continue
		}
		parameters += elements(spec.Shape)
	}
	weights, stored, err := storedWeights(dir, c)
	if err != nil {
		return err
	}
	s.Head("Language model %s", dir)
	s.Row("family", "%s: %d layers, hidden size %d, %d heads of size %d (%d KV heads), MLP size %s, vocabulary %s", c.ModelType, c.NumHiddenLayers,
		c.HiddenSize, c.NumAttentionHeads, c.HeadDim, c.NumKeyValueHeads, report.Count(int64(c.IntermediateSize)), report.Count(int64(c.VocabSize)))
	for _, u := range c.Unknown {
		s.Row("unknown field", "%s %.60s of config.json is not read; it does not look as if it changed what the model computes", u.Name, u.Value)
	}
	s.Row("parameters", "%s%s", millions(parameters), tied)
	s.Row("weights", "%s", weights)
	limit := "in training; longer texts are possible"
	if c.MaxLength() > 0 {
		limit = "at most"
	}
	s.Row("context", "%s tokens %s", report.Count(int64(c.MaxPositionEmbeddings)), limit)
	s.Row("end tokens", "%s", shared.EOSNames(lm))
	s.Row("special tokens", "%s", specialTokens(lm))
	s.Row("start tokens", "%s", shared.TokenNames(lm, lm.Tokenizer.Opening(), "none"))
	if lm.Templates == nil {
		s.Row("chat template", "none: accepts plain text only, no messages")
	} else {
		s.Row("chat template", "%s", strings.Join(lm.Templates.Names(), ", "))
	}
	if err := describeExample(s, lm, task); err != nil {
		return err
	}
	s.Row("learning rate", "for SFT about %s with LoRA of any rank, %s with --tuning full (rule of thumb of LoRA Without Regret)", advised(c, false), advised(c, true))
	s.Head("Memory estimates")
	return memoryRows(s, c, parameters, stored, adapter)
}

// advised is policy.AdvisedRate as text.
func advised(c *transformers.Config, full bool) string {
	low, high := policy.AdvisedRate(c, full)
	if low == high {
		return fmt.Sprintf("%.1e", low)
	}
	return fmt.Sprintf("%.1e to %.1e", low, high)
}

// languageConfig is transformers.LoadCausalConfig with a better error for encoders.
func languageConfig(dir string) (*transformers.Config, error) {
	c, err := transformers.LoadCausalConfig(dir)
	if err == nil {
		return c, nil
	}
	if encoder, encoderErr := transformers.LoadConfig(dir); encoderErr == nil {
		return nil, fmt.Errorf("%s is an encoder (%s), not a language model; use it for classification tasks", dir, encoder.ModelType)
	}
	return nil, err
}

// storedWeights describes the weights in a folder and returns their size in bytes, or 0 if there are none.
func storedWeights(dir string, c *transformers.Config) (text string, bytes int64, err error) {
	found := false
	for _, pattern := range []string{"model*.safetensors", "pytorch_model*.bin"} {
		names, err := filepath.Glob(filepath.Join(dir, pattern))
		found = found || err == nil && len(names) > 0
	}
	if !found {
		return "missing: no model*.safetensors and no pytorch_model*.bin in the folder", 0, nil
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

// millions formats a count with commas, and large ones also in millions.
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
		return "none"
	}
	return strings.Join(parts, ", ")
}
