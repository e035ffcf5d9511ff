package envs

import (
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
