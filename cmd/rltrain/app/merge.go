package app

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/torch/hub"
)

func mergeCommand() *cli.Command {
	return &cli.Command{
		Name:  "merge",
		Usage: "merge an adapter into its base model",
		Description: `The result loads in transformers without peft:
  - language model: AutoModelForCausalLM, and vLLM
  - classifier and reward model, pooling family or on a language model: AutoModelForSequenceClassification
  - classifier, pooling mean: AutoModel with head.safetensors; its README.md shows how
  - classifier, policy score: AutoModelForCausalLM`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "model", Usage: "classifier, reward model or adapter of a language model: a folder or a Hugging Face id"},
			&cli.StringFlag{Name: "output-dir", Aliases: []string{"output"}, Usage: "new or empty folder for the merged model"},
			&cli.StringFlag{Name: "dtype", Usage: "data type of a language model's weights: fp32, bf16 or fp16", DefaultText: "that of the base model"},
		},
		Action: merge,
	}
}

func merge(c *cli.Context) error {
	dir, output, dtype := c.String("model"), c.String("output-dir"), c.String("dtype")
	switch {
	case dir == "":
		return shared.UsageErrorf("merge needs --model: a classifier, a reward model or an adapter of a language model")
	case output == "":
		return shared.UsageErrorf("merge needs --output-dir DIR for the merged model")
	case dtype != "" && !slices.Contains([]string{"fp32", "bf16", "fp16"}, dtype):
		return shared.UsageErrorf("--dtype: %q is not one of fp32, bf16, fp16", dtype)
	}
	client, done := shared.HubOf(c)
	defer done()
	found, err := client.Model(c.Context, dir, hub.Weights)
	if err != nil {
		return fmt.Errorf("--model: %w%s", err, suggestStage(dir))
	}
	reward := policy.IsRewardFolder(found.Dir)
	classifier := reward || policy.IsClassifierFolder(found.Dir)
	if !classifier && !shared.IsAdapter(found.Dir) {
		return fmt.Errorf("%s has no adapter to merge: no label_policy.json and no %s%s", dir, lora.ConfigFile, suggestStage(dir))
	}
	return shared.OnThread(c, func(ctx context.Context) error {
		var card report.Card
		var err error
		if classifier {
			card, err = mergeClassifier(ctx, client, dir, output, dtype, reward)
		} else {
			card, err = mergeLanguageModel(ctx, client, dir, output, dtype, c.App.ErrWriter)
		}
		if err == nil {
			err = writeModelCard(output, card)
		}
		if err == nil {
			_, err = fmt.Fprintln(c.App.Writer, output)
		}
		return err
	})
}

func mergeClassifier(ctx context.Context, client *hub.Client, model, output, dtype string, reward bool) (card report.Card, err error) {
	var p *policy.Classifier
	if reward {
		var m *policy.RewardModel
		if m, err = policy.LoadRewardModel(ctx, client, model); err == nil {
			p = m.Classifier
		}
	} else {
		p, err = policy.LoadClassifier(ctx, client, model, "fp32", false)
	}
	if err != nil {
		return card, err
	}
	defer p.Close()
	if dtype != "" && !p.OnLanguageModel() {
		return card, shared.UsageErrorf("--dtype: does not apply; %s is a classifier on an encoder", model)
	}
	return report.Card{BaseModel: p.BaseModel, Merged: true, Labels: p.Labels, Pooling: p.Pooling, MaxLength: p.MaxLength}, p.Merge(output, dtype)
}

func mergeLanguageModel(ctx context.Context, client *hub.Client, model, output, dtype string, notes io.Writer) (card report.Card, err error) {
	p, err := policy.LoadCausalLM(ctx, client, model, "", "", false)
	if err != nil {
		return card, err
	}
	defer p.Close()
	if quantized := p.Quantized(); len(quantized) > 0 {
		if _, err := fmt.Fprintf(notes, "note: the base model is quantized (%s); %s holds its dequantized weights, several times as large. Quantizing that again loses changes of the adapter that are smaller than a step.\n", strings.Join(quantized, ", "), output); err != nil {
			return card, err
		}
	}
	return languageCard(p), p.Merge(output, dtype)
}
