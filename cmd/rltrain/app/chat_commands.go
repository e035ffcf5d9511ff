package app

import (
	"cmp"
	"strings"

	"github.com/rltrain/rltrain/internal/options"
)

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
