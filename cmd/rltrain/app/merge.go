package app

import (
	"context"
	"fmt"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch/hub"
)

func mergeCommand() *cli.Command {
	return &cli.Command{
		Name:  "merge",
		Usage: "write a classifier, a reward model or a language model as a full model without an adapter",
		Description: `The result loads in transformers without peft. A classifier: in AutoModelForSequenceClassification for pooling
family, in AutoModel with head.safetensors for pooling mean; its README.md shows how. A language model: in
AutoModelForCausalLM, and in vLLM.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "model", Usage: "trained classifier, reward model or adapter of a language model: a folder, or a name on the hub"},
			&cli.StringFlag{Name: "output-dir", Aliases: []string{"output"}, Usage: "folder of the full model, new or empty"},
			&cli.StringFlag{Name: "dtype", Usage: "of a language model's weights: fp32, bf16 or fp16", DefaultText: "as the base model is stored"},
		},
		Action: merge,
	}
}

func merge(c *cli.Context) error {
	dir, output, dtype := c.String("model"), c.String("output-dir"), c.String("dtype")
	switch {
	case dir == "":
		return shared.UsageErrorf("merge needs --model DIR, the folder of a trained classifier or of a language model's adapter")
	case output == "":
		return shared.UsageErrorf("merge needs --output-dir DIR, the folder of the full model")
	case dtype != "" && !slices.Contains([]string{"fp32", "bf16", "fp16"}, dtype):
		return shared.UsageErrorf("--dtype: %q is none of fp32, bf16 and fp16", dtype)
	}
	client, done := shared.HubOf(c)
	defer done()
	found, err := client.Model(c.Context, dir, hub.Weights)
	if err != nil {
		return fmt.Errorf("--model: %w%s", err, stagesIn(dir))
	}
	work := mergeLanguageModel
	if reward := policy.IsRewardFolder(found.Dir); reward || policy.IsClassifierFolder(found.Dir) {
		if dtype != "" {
			return shared.UsageErrorf("--dtype: does not apply to %s, a classifier", dir)
		}
		if work = mergeClassifier; reward {
			work = mergeReward
		}
	} else if !shared.IsAdapter(found.Dir) {
		return fmt.Errorf("%s has no adapter to merge: neither label_policy.json nor %s%s", dir, lora.ConfigFile, stagesIn(dir))
	}
	return shared.OnThread(c, func(ctx context.Context) error {
		if err := work(ctx, client, dir, output, dtype); err != nil {
			return err
		}
		_, err := fmt.Fprintln(c.App.Writer, output)
		return err
	})
}

func mergeClassifier(ctx context.Context, client *hub.Client, model, output, _ string) error {
	policy, err := policy.LoadClassifier(ctx, client, model, false)
	if err != nil {
		return err
	}
	defer policy.Close()
	return policy.Merge(output)
}

func mergeReward(ctx context.Context, client *hub.Client, model, output, _ string) error {
	m, err := policy.LoadRewardModel(ctx, client, model)
	if err != nil {
		return err
	}
	defer m.Close()
	return m.Merge(output)
}

func mergeLanguageModel(ctx context.Context, client *hub.Client, model, output, dtype string) error {
	policy, err := policy.LoadCausalLM(ctx, client, model, "", "", false)
	if err != nil {
		return err
	}
	defer policy.Close()
	return policy.Merge(output, dtype)
}
