package app

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/options"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
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
	s.terminal = shared.IsTerminal(c.App.Reader)
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

const chatHelp = `/system TEXT      set the system prompt (/system alone shows it, /system - removes it)
/reset            forget the conversation
/set NAME VALUE   change temperature, top_p, top_k, min_p, repetition_penalty, max_new_tokens or seed
/set              show these settings
/adapter on|off   answer with the adapter, or with its base model to compare
/quit             end the chat, as Ctrl-D does
//TEXT            send a message that begins with /
Ctrl-C            stop a response`

// command runs a line that begins with a slash.
func (s *chatSession) command(line string) (quit bool) {
	name, rest, _ := strings.Cut(line, " ")
	rest = strings.TrimSpace(rest)
	switch name {
	case "/quit", "/exit", "/bye":
		return true
	case "/help", "/?":
		s.note(chatHelp)
	case "/reset", "/clear":
		s.history = nil
		s.note("[conversation forgotten]")
	case "/system":
		switch rest {
		case "":
			s.note("system: %s", cmp.Or(s.system, "(none)"))
		case "-":
			s.system = ""
			s.note("[system prompt removed]")
		default:
			s.system = rest
			s.note("[system prompt set; /reset to start the conversation anew]")
		}
	case "/set":
		s.change(strings.Fields(strings.ReplaceAll(rest, "=", " ")))
	case "/adapter":
		s.adapter(rest)
	default:
		s.note("unknown command %s; /help lists the commands", name)
	}
	return false
}

// change changes a setting, or shows all.
func (s *chatSession) change(words []string) {
	if len(words) == 0 {
		for _, o := range s.set.All() {
			s.note("%s %v", o.Name, o.Get())
		}
		return
	}
	o := s.set.Find(strings.ReplaceAll(words[0], "-", "_"))
	switch {
	case o == nil:
		s.note("unknown setting %s; /set lists them", words[0])
	case len(words) != 2:
		s.note("%s %v; to change it: /set %s VALUE", o.Name, o.Get(), o.Name)
	default:
		value, err := o.Parse(options.Value{Text: words[1]})
		if err != nil {
			s.note("%s: %v", o.Name, err)
			return
		}
		o.Set(value)
		s.note("[%s %v]", o.Name, value)
	}
}

// adapter chooses between the adapter and the base model.
func (s *chatSession) adapter(word string) {
	switch {
	case !s.policy.Adapted():
		s.note("the model has no adapter that can be switched off")
	case word == "on" || word == "off":
		s.base = word == "off"
		s.note("[adapter %s]", word)
	case s.base:
		s.note("adapter off; /adapter on")
	default:
		s.note("adapter on; /adapter off")
	}
}

// chatSession is a conversation with a model.
type chatSession struct {
	policy   *policy.CausalLM
	sampler  *policy.Sampler
	settings chatSettings
	set      *options.Set // of settings
	system   string
	history  []envs.Message // the user's and the assistant's, in turns
	turns    uint64         // responses so far: each has a random stream of its own
	base     bool           // without the adapter

	out      *bufio.Writer
	notes    io.Writer
	terminal bool

	mu     sync.Mutex
	cancel context.CancelFunc // of the response under way
}

// note tells the user something that is no response.
func (s *chatSession) note(format string, args ...any) { fmt.Fprintf(s.notes, format+"\n", args...) }

func (s *chatSession) prompt() {
	if s.terminal {
		_, _ = s.out.WriteString("> ")
	}
	_ = s.out.Flush() // an error comes again with the response
}

// interrupt is Ctrl-C: it stops the response under way.
func (s *chatSession) interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancel != nil {
		s.cancel()
		return
	}
	s.note("\n(nothing to stop; Ctrl-D or /quit ends the chat)")
	if s.terminal {
		fmt.Fprint(s.notes, "> ")
	}
}

// line handles a line of input.
func (s *chatSession) line(ctx context.Context, text string) (quit bool, err error) {
	switch trimmed := strings.TrimSpace(text); {
	case trimmed == "":
		return false, nil
	case strings.HasPrefix(trimmed, "//"):
		return false, s.respond(ctx, strings.Replace(text, "/", "", 1))
	case strings.HasPrefix(trimmed, "/"):
		return s.command(trimmed), nil
	}
	return false, s.respond(ctx, text)
}

// respond adds the user's message and the model's response to the conversation.
func (s *chatSession) respond(ctx context.Context, text string) error {
	s.history = append(s.history, userMessage(text))
	ids, err := s.fit()
	if err != nil {
		s.history = s.history[:len(s.history)-1]
		s.note("%v", err)
		return nil
	}
	answering, cancel := context.WithCancel(ctx)
	s.setCancel(cancel)
	var said strings.Builder
	o := policy.GenerateOptions{
		Samples: 1, MaxNew: s.settings.MaxNew, Sampling: s.settings.torch(), Seed: s.settings.Seed, Streams: []uint64{s.turns}, Base: s.base,
		OnText: func(_, _ int, text string) {
			said.WriteString(text)
			_, _ = s.out.WriteString(text)
			_ = s.out.Flush() // an error comes again with the line feed
		},
	}
	reason := torch.ReasonStop
	err = s.sampler.Generate(answering, [][]int32{ids}, o, func(_ int, completions []policy.Completion) error {
		reason = completions[0].Reason
		return nil
	})
	s.setCancel(nil)
	stopped := answering.Err() != nil && ctx.Err() == nil
	cancel()
	s.turns++
	switch {
	case err != nil && !stopped:
		return err
	case stopped:
		s.note(" [stopped]")
	case reason == torch.ReasonLength:
		s.note(" [cut at %d tokens; /set max_new_tokens N]", s.settings.MaxNew)
	}
	s.history = append(s.history, envs.Message{Role: envs.RoleAssistant, Content: said.String()})
	_, _ = s.out.WriteString("\n")
	return s.out.Flush()
}

func (s *chatSession) setCancel(cancel context.CancelFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancel = cancel
}

// fit is the tokens of the conversation. The oldest turns are forgotten where it is longer than the model allows.
func (s *chatSession) fit() ([]int32, error) {
	room, forgotten := s.policy.MaxLength()-s.settings.MaxNew, 0
	for {
		ids, err := s.tokens()
		if err != nil || len(ids) <= room {
			if err == nil && len(ids) == 0 {
				err = errors.New("the message has no tokens")
			}
			if forgotten > 0 && err == nil {
				s.note("[the conversation is too long: the first %d messages are forgotten]", forgotten)
			}
			return ids, err
		}
		if len(s.history) < 3 {
			return nil, fmt.Errorf("the message has %d tokens; with %d for the response, the model's %d positions leave %d", len(ids), s.settings.MaxNew, s.policy.MaxLength(), room)
		}
		s.history = slices.Clone(s.history[2:])
		forgotten += 2
	}
}

// tokens renders the conversation: by the chat template, or as plain text where the model has none.
func (s *chatSession) tokens() ([]int32, error) {
	if s.policy.Templates != nil {
		messages := s.history
		if s.system != "" {
			messages = slices.Concat([]envs.Message{{Role: envs.RoleSystem, Content: s.system}}, messages)
		}
		return s.policy.EncodeObservation(envs.Observation{Messages: messages})
	}
	parts := []string{s.system}
	for _, m := range s.history {
		parts = append(parts, m.Content)
	}
	return s.policy.EncodeText(strings.TrimLeft(strings.Join(parts, "\n"), "\n"))
}
