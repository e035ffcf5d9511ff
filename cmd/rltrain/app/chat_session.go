package app

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/internal/options"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
)

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
	return s.policy.EncodePrompt(chat.Content{Text: strings.TrimLeft(strings.Join(parts, "\n"), "\n")})
}
