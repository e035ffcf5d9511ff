package envs

import (
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

func TestNewAction(t *testing.T) {
	for _, c := range []struct {
		message        string
		stop           StopReason
		opened         bool
		thinking, text string
		closed         bool
	}{
		{"<think>\nWhy?\n</think>\n\nYes.", StopEnd, false, "Why?", "Yes.", true},
		{"Why?\n</think>\nYes.", StopEnd, true, "Why?", "Yes.", true},
		{"Why?</think>Yes.", StopEnd, false, "Why?", "Yes.", true}, // the prompt of another template
		{"[THINK]Why?[/THINK]Yes.", StopEnd, false, "Why?", "Yes.", true},
		{"<|channel>thought\nWhy?\n<channel|>Yes.", StopEnd, false, "Why?", "Yes.", true},
		{"<|channel>thought\n<channel|>Yes.", StopEnd, false, "", "Yes.", true},
		{"\n<think>Why", StopLength, false, "Why", "", false},
		{"Why", StopLength, true, "Why", "", false},
		{"Why\n", StopString, true, "", "Why\n", false}, // a line of a thought
		{"<think>a</think>b\n", StopString, false, "a", "b\n", true},
		{"A < b <think>", StopEnd, false, "", "A < b <think>", false},
		{"", StopEnd, true, "", "", false},
	} {
		a, thought, closed := NewAction(c.message, c.stop, c.opened)
		expect.Equal(t, Action{Text: c.text, Thinking: c.thinking, Stop: c.stop}, a, c.message)
		expect.True(t, c.message[thought:] == c.text && closed == c.closed, "%q: the text begins at %d, closed %v", c.message, thought, closed)
		m := a.Message()
		thinking, _ := m.Fields.Get("reasoning_content")
		expect.True(t, m.Content == c.text && (c.thinking == "" && m.Fields == nil || thinking == c.thinking), "%q: %+v", c.message, m)
	}
}

// FuzzThoughtReader: the pieces of a message give the same thought and content as the message, which are those of an action.
func FuzzThoughtReader(f *testing.F) {
	for _, text := range []string{"<think>a\n b</think>\n\nc </think> d", " \n<think>\n\n</think>\n\nx", "plain <think>", "<thin", "[THINK]a[/THI", "<|channel>thought\na\n<channel|>b", "<|channel>a", "a</think>\nb", "", "<think>a<", "\n"} {
		f.Add(text, false, uint8(1))
		f.Add(text, true, uint8(3))
	}
	f.Fuzz(func(t *testing.T, text string, opened bool, size uint8) {
		var got [2]string
		r := NewThoughtReader(opened)
		for rest := text; ; {
			n := min(len(rest), int(size)+1)
			thinking, content := r.Add(rest[:n], n == len(rest))
			got[0], got[1] = got[0]+thinking, got[1]+content
			if rest = rest[n:]; rest == "" {
				break
			}
		}
		thinking, content := NewThoughtReader(opened).Add(text, true)
		expect.Require(t, got == [2]string{thinking, content}, "%q in pieces: %q, at once: %q and %q", text, got, thinking, content)
		closings := strings.Count(text, "</think>") + strings.Count(text, "[/THINK]") + strings.Count(text, "<channel|>")
		begins := strings.HasPrefix(strings.TrimLeft(text, " \n"), "<think>") && !strings.Contains(text, "THINK") && !strings.Contains(text, "channel")
		a, _, closed := NewAction(text, StopEnd, opened)
		expect.Require(t, closings != 1 || !begins || !closed || opened || a.Thinking == strings.TrimSpace(thinking) && a.Text == content, "%q: %q and %q, but the action has %q and %q", text, thinking, content, a.Thinking, a.Text)
	})
}
