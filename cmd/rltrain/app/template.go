package app

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
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
func sampleAsModel(c *cli.Context, p *policy.CausalLM, s *torch.Sampling) {
	if c.Bool("ignore-generation-config") {
		return
	}
	g := p.Generation()
	var taken []string
	take := func(flag string, into *float64, value, off float64) {
		if value != off && !c.IsSet(flag) {
			*into = value
			taken = append(taken, fmt.Sprintf("%s=%s", strings.ReplaceAll(flag, "-", "_"), plainNumber(value)))
		}
	}
	topK := float64(s.TopK)
	take("temperature", &s.Temperature, g.Temperature, 1)
	take("top-k", &topK, float64(g.TopK), 0)
	take("top-p", &s.TopP, g.TopP, 1)
	take("min-p", &s.MinP, g.MinP, 0)
	take("repetition-penalty", &s.RepetitionPenalty, g.RepetitionPenalty, 1)
	s.TopK = int(topK)
	if len(taken) > 0 {
		fmt.Fprintf(c.App.ErrWriter, "rltrain: sampling defaults from generation_config.json: %s; --ignore-generation-config keeps rltrain's\n", strings.Join(taken, " "))
	}
}
