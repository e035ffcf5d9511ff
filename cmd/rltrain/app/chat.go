package app

import (
	"bufio"
	"context"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs"
)

// The sampling of a chat where neither an option nor generation_config.json says otherwise.
const (
	chatTemperature = 0.7
	chatTopP        = 0.9
)

func chatCommand() (*cli.Command, error) {
	flags, err := languageModelFlags()
	if err != nil {
		return nil, err
	}
	return &cli.Command{
		Name:  "chat",
		Usage: "talk to a language model in the terminal",
		Description: `Works with a base model, an adapter, a merged model or a GGUF file. Type a message and press Enter; the response
streams. Ctrl-C stops a response, Ctrl-D or /quit ends the chat, /help lists the commands. If standard input is not a
terminal, each line is a message and only the responses go to standard output.

   rltrain chat --model smollm2
   rltrain chat --model models/text_rl          # an adapter; /adapter off compares it with its base`,
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "system", Usage: "system prompt"},
			&cli.IntFlag{Name: "max-new-tokens", Value: 512, Usage: "maximum tokens of a response"},
			&cli.Float64Flag{Name: "temperature", Value: chatTemperature, Usage: "sampling temperature (0 = greedy)"},
			&cli.Float64Flag{Name: "top-p", Value: chatTopP, Usage: "sample from the most likely tokens with this total probability (0 = all)"},
			&cli.IntFlag{Name: "top-k", Usage: "sample from the k most likely tokens (0 = all)"},
			&cli.Float64Flag{Name: "min-p", Usage: "sample from tokens with at least this fraction of the most likely one's probability (0 = all)"},
			&cli.Float64Flag{Name: "repetition-penalty", Usage: "divide the logits of earlier tokens by this (0 = off)"},
			&cli.Uint64Flag{Name: "seed", Value: 42, Usage: "random seed"},
			ignoreGenerationFlag(),
		}, flags...),
		Action: runChat,
	}, nil
}

func runChat(c *cli.Context) error {
	s := &chatSession{settings: newChatSettings(c), system: c.String("system"), out: bufio.NewWriter(c.App.Writer), notes: c.App.ErrWriter}
	if err := s.settings.check(); err != nil {
		return shared.UsageErrorf("--%v", err)
	}
	if file, ok := c.App.Reader.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		s.terminal = true
	}
	return shared.OnThread(c, func(ctx context.Context) error {
		p, err := languageModel(c)
		if err != nil {
			return err
		}
		defer p.Close()
		sampler, err := p.NewSampler(1)
		if err != nil {
			return err
		}
		defer sampler.Close()
		s.policy, s.sampler, s.base = p, sampler, false
		sampleAsModel(c, p, &s.settings.sampling)
		if p.Templates == nil {
			s.note("%s has no chat template: it continues the text of the conversation instead of answering", p.BaseModel)
		}
		if s.terminal {
			s.note("Chat with %s. /help lists the commands, Ctrl-D ends.", c.String("model"))
		}
		defer onInterrupt(ctx, s.interrupt)()
		return s.run(ctx, c)
	})
}

// run reads lines until the input ends or the user quits.
func (s *chatSession) run(ctx context.Context, c *cli.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines := make(chan line)
	go readLines(ctx, c.App.Reader, lines)
	for {
		s.prompt()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case l, ok := <-lines:
			if !ok {
				if s.terminal {
					fmt.Fprintln(s.out)
				}
				return s.out.Flush()
			}
			if l.err != nil {
				return fmt.Errorf("reading standard input: %w", l.err)
			}
			if quit, err := s.line(ctx, l.text); err != nil || quit {
				return err
			}
		}
	}
}

// userMessage is a message of the user.
func userMessage(text string) envs.Message {
	return envs.Message{Role: envs.RoleUser, Content: text}
}
