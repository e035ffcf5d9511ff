package app

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/rl/policy"
)

func rawFlag() cli.Flag {
	return &cli.BoolFlag{Name: "raw", Usage: "send text prompts unchanged, without the model's chat template"}
}

func ignoreGenerationFlag() cli.Flag {
	return &cli.BoolFlag{Name: "ignore-generation-config", Usage: "do not take sampling defaults from the model's generation_config.json"}
}

// promptOf turns a text prompt into tokens: a user message through the chat template where the model has one, unless --raw.
func promptOf(c *cli.Context, p *policy.CausalLM) func(text string) ([]int32, error) {
	if c.Bool("raw") {
		return func(text string) ([]int32, error) { return p.EncodePrompt(chat.Content{Text: text}) }
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
