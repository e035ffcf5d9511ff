package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/internal/nearest"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/torch/hub"
	"github.com/rltrain/rltrain/torch/transformers"
)

// modelFlag selects a classifier.
func modelFlag() cli.Flag {
	return &cli.StringFlag{Name: "model", Usage: "classifier: a folder, such as models/intent_classifier_rl, or a Hugging Face id"}
}

// dtypeFlag is the flag of a classifier's frozen weights.
func dtypeFlag() cli.Flag {
	return &cli.StringFlag{Name: "dtype", Usage: "data type of frozen weights: fp32, bf16 or fp16; GPUs, and CPUs that are fast in bf16, also compute in bf16, other CPUs in fp32", DefaultText: "bf16 on GPUs that support it, else fp32 for encoders, as stored for language models"}
}

// model returns --model, which must be set.
func model(c *cli.Context) (string, error) {
	if dir := c.String("model"); dir != "" {
		return dir, nil
	}
	return "", shared.UsageErrorf("%s needs --model: the folder of a classifier, or a Hugging Face id", c.Command.Name)
}

// loadPolicy loads a classifier by its folder or name.
func loadPolicy(c *cli.Context, name string) (*policy.Classifier, error) {
	client, done := shared.HubOf(c)
	defer done()
	p, err := policy.LoadClassifier(c.Context, client, name, c.String("dtype"), false)
	if err != nil {
		if other := noClassifier(c, name); other != nil {
			return nil, other
		}
		if found, unfound := client.Model(c.Context, name, hub.Weights); unfound == nil {
			if _, other := transformers.LoadCausalConfig(found.Dir); other == nil {
				return nil, shared.UsageErrorf("%s is a language model and not a classifier; use rltrain generate or rltrain chat, or train a classifier on it: rltrain train --model %[1]s --dataset FILE", name)
			}
		}
		return nil, fmt.Errorf("loading the model: %w%s", err, suggestStage(name))
	}
	return p, nil
}

// noClassifier returns an error that says what to do with dir if it is the run folder of a language model.
func noClassifier(c *cli.Context, dir string) error {
	record, err := run.ReadRun(dir)
	if err != nil || policy.IsClassifierFolder(dir) {
		return nil
	}
	hint := "use rltrain generate or rltrain chat"
	switch name := c.Command.Name; {
	case name != "eval" && name != "compare":
	case slices.Contains(preferenceTasks(), record.Task), slices.Contains(problemTasks(), record.Task), name == "eval" && slices.Contains(textTasks(), record.Task):
		hint = fmt.Sprintf("pass --task %s", record.Task)
	default:
		hint = "pass --task prompts with a --dataset of prompts and answers, or another --task"
	}
	return shared.UsageErrorf("%s is a language model, trained on task %s; %s", dir, record.Task, hint)
}

// suggestStage suggests the newest trained model in the --output-dir of a training run, or returns "".
func suggestStage(dir string) string {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return suggestSibling(dir)
	}
	if err != nil {
		return ""
	}
	best := ""
	var newest time.Time
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		record, err := run.ReadRun(path)
		trained := err == nil && record.Status == run.StatusFinished || policy.IsClassifierFolder(path)
		if trained && (best == "" || record.Started.After(newest)) {
			best, newest = path, record.Started
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// suggestSibling suggests a run with a similar name in the same folder, or lists its runs. Without any it returns "".
func suggestSibling(dir string) string {
	parent, name := filepath.Split(filepath.Clean(dir))
	entries, err := os.ReadDir(parent)
	if err != nil {
		return ""
	}
	var runs []string
	for _, e := range entries {
		if _, err := run.ReadRun(filepath.Join(parent, e.Name())); err == nil {
			runs = append(runs, e.Name())
		}
	}
	if near := nearest.Hint(name, runs, func(found string) string { return filepath.Join(parent, found) }); near != "" || runs == nil {
		return near
	}
	return "; " + filepath.Clean(parent) + " has " + shortList(runs)
}

// progressTexts is the number of texts between updates of the progress bar.
const progressTexts = 64

// predictAll returns π(·|x) of each sequence, [len(ids)][labels], with a progress bar.
func predictAll(ctx context.Context, c *cli.Context, label string, p *policy.Classifier, ids [][]int32) ([][]float32, error) {
	bar := report.NewConsole(c.App.Writer, c.App.ErrWriter, time.Now).Bar(label, "texts", 0, len(ids))
	defer bar.Done()
	probs := make([][]float32, 0, len(ids))
	for len(probs) < len(ids) {
		part, err := p.Probs(ctx, ids[len(probs):min(len(ids), len(probs)+progressTexts)])
		if err != nil {
			return nil, err
		}
		probs = append(probs, part...)
		bar.Set(len(probs), "")
	}
	return probs, nil
}

// makeDirs creates folders for results, before the work starts.
func makeDirs(dirs ...string) error {
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("results folder: %w; choose a writable folder", err)
		}
	}
	return nil
}

// inFolder returns the path of base in --output-dir, or in dir if that is not set.
func inFolder(c *cli.Context, dir, base string) string {
	if out := c.String("output-dir"); out != "" {
		dir = out
	}
	return filepath.Join(dir, base)
}

func rawFlag() cli.Flag {
	return &cli.BoolFlag{Name: "raw", Usage: "send text prompts unchanged, without the model's chat template"}
}

func ignoreGenerationFlag() cli.Flag {
	return &cli.BoolFlag{Name: "ignore-generation-config", Usage: "do not take sampling defaults from the model's generation_config.json"}
}

// promptOf turns a text prompt into tokens: a user message through the chat template where the model has one, unless --raw.
func promptOf(c *cli.Context, p *policy.CausalLM) func(text string) ([]int32, error) {
	if c.Bool("raw") {
		return p.EncodeText
	}
	return p.Ask
}

// sayTemplate tells that prompts go through a chat template.
func sayTemplate(c *cli.Context, p *policy.CausalLM) {
	if p.Templates != nil && !c.Bool("raw") {
		fmt.Fprintln(c.App.ErrWriter, "rltrain: text prompts go through the model's chat template; --raw sends them unchanged")
	}
}

// sampleAsModel takes sampling settings that were not given from generation_config.json, and tells which.
func sampleAsModel(c *cli.Context, p *policy.CausalLM, o *samplingOptions) {
	if c.Bool("ignore-generation-config") {
		return
	}
	g := p.Generation()
	var taken []string
	take := func(flag string, value, off float64, into func(float64)) {
		if value != off && !c.IsSet(flag) {
			into(value)
			taken = append(taken, fmt.Sprintf("%s=%s", strings.ReplaceAll(flag, "-", "_"), plainNumber(value)))
		}
	}
	take("temperature", g.Temperature, 1, func(x float64) { o.Temperature = x })
	take("top-k", float64(g.TopK), 0, func(x float64) { o.TopK = int(x) })
	take("top-p", g.TopP, 1, func(x float64) { o.TopP = x })
	take("min-p", g.MinP, 0, func(x float64) { o.MinP = x })
	take("repetition-penalty", g.RepetitionPenalty, 1, func(x float64) { o.RepetitionPenalty = x })
	if len(taken) > 0 {
		fmt.Fprintf(c.App.ErrWriter, "rltrain: sampling defaults from generation_config.json: %s; --ignore-generation-config keeps rltrain's\n", strings.Join(taken, " "))
	}
}
