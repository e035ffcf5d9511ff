package app

import (
	"bufio"
	"context"
	"fmt"
	"os"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/options"
)

// chatSettings are what /set changes.
type chatSettings struct {
	samplingOptions `defaults:"max_new_tokens=512,temperature=0.7,top_p=0.9"`
}

func chatCommand() *cli.Command {
	s := &chatSession{}
	s.set = options.MustRead(&s.settings)
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
			ignoreGenerationFlag(),
		}, append(config.OptionFlags(s.set), languageModelFlags()...)...),
		Action: s.start,
	}
}

func (s *chatSession) start(c *cli.Context) error {
	s.system, s.out, s.notes = c.String("system"), bufio.NewWriter(c.App.Writer), c.App.ErrWriter
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
		s.policy, s.sampler = p, sampler
		sampleAsModel(c, p, &s.settings.samplingOptions)
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
