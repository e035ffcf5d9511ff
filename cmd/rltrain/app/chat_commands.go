package app

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/torch"
)

// chatSettings are what /set changes.
type chatSettings struct {
	sampling torch.Sampling
	maxNew   int
	seed     uint64
}

func newChatSettings(c *cli.Context) chatSettings {
	return chatSettings{
		sampling: torch.Sampling{
			Temperature: c.Float64("temperature"), TopK: c.Int("top-k"), TopP: c.Float64("top-p"), MinP: c.Float64("min-p"),
			RepetitionPenalty: c.Float64("repetition-penalty"),
		},
		maxNew: c.Int("max-new-tokens"), seed: c.Uint64("seed"),
	}
}

// A chatSetting is one of chatSettings: its value now, and the values that it takes.
type chatSetting struct {
	name      string
	value     float64
	low, high float64
	whole     bool
	set       func(s *chatSettings, x float64)
}

func (s chatSettings) list() []chatSetting {
	return []chatSetting{
		{"temperature", s.sampling.Temperature, 0, 1e6, false, func(s *chatSettings, x float64) { s.sampling.Temperature = x }},
		{"top_p", s.sampling.TopP, 0, 1, false, func(s *chatSettings, x float64) { s.sampling.TopP = x }},
		{"top_k", float64(s.sampling.TopK), 0, 1 << 30, true, func(s *chatSettings, x float64) { s.sampling.TopK = int(x) }},
		{"min_p", s.sampling.MinP, 0, 1, false, func(s *chatSettings, x float64) { s.sampling.MinP = x }},
		{"repetition_penalty", s.sampling.RepetitionPenalty, 0, 1e6, false, func(s *chatSettings, x float64) { s.sampling.RepetitionPenalty = x }},
		{"max_new_tokens", float64(s.maxNew), 1, 1 << 30, true, func(s *chatSettings, x float64) { s.maxNew = int(x) }},
		{"seed", float64(s.seed), 0, 1 << 53, true, func(s *chatSettings, x float64) { s.seed = uint64(x) }},
	}
}

// check finds a setting out of range.
func (s chatSettings) check() error {
	for _, setting := range s.list() {
		if setting.name != "seed" { // any is one
			if err := setting.fits(setting.value); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s chatSetting) fits(x float64) error {
	if !(x >= s.low && x <= s.high) || s.whole && x != float64(int64(x)) {
		return fmt.Errorf("%s: %s is out of range; it must be %s to %s", s.name, plainNumber(x), plainNumber(s.low), plainNumber(s.high))
	}
	return nil
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
		s.set(strings.Fields(strings.ReplaceAll(rest, "=", " ")))
	case "/adapter":
		s.adapter(rest)
	default:
		s.note("unknown command %s; /help lists the commands", name)
	}
	return false
}

// set changes a setting, or shows all.
func (s *chatSession) set(words []string) {
	if len(words) == 0 {
		for _, setting := range s.settings.list() {
			s.note("%s %s", setting.name, plainNumber(setting.value))
		}
		return
	}
	for _, setting := range s.settings.list() {
		if setting.name != strings.ReplaceAll(words[0], "-", "_") {
			continue
		}
		if len(words) != 2 {
			s.note("%s %s; to change it: /set %s VALUE", setting.name, plainNumber(setting.value), setting.name)
			return
		}
		x, err := strconv.ParseFloat(words[1], 64)
		if err != nil {
			s.note("%s: %q is not a number", setting.name, words[1])
			return
		}
		if err := setting.fits(x); err != nil {
			s.note("%v", err)
			return
		}
		setting.set(&s.settings, x)
		s.note("[%s %s]", setting.name, plainNumber(x))
		return
	}
	s.note("unknown setting %s; /set lists them", words[0])
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
