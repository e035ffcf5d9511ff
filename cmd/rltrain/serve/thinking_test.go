package serve

import (
	"testing"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/tools"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/rl/policy"
)

// TestReasoning: a model's thought is reasoning_content, streamed or not, and no tool call is read from it.
func TestReasoning(t *testing.T) {
	const call = `<tool_call>{"name": "time", "arguments": {}}</tool_call>`
	for _, c := range []struct {
		pieces             []string
		opened             bool
		reasoning, content string
		calls              int
	}{
		{[]string{"<thi", "nk>\nWhy ", call, "? </th", "ink>\n\nYes", "."}, false, "Why " + call + "?", "Yes.", 0},
		{[]string{"Why?\n</think>\n", "\n" + call}, true, "Why?", "", 1},
		{[]string{"no", " end <"}, true, "no end <", "", 0},
		{[]string{"Yes", ", 1 < 2."}, false, "", "Yes, 1 < 2.", 0},
	} {
		for _, stream := range []bool{false, true} {
			pieces := c.pieces
			if !stream {
				whole := ""
				for _, piece := range pieces {
					whole += piece
				}
				pieces = []string{whole}
			}
			q := &chatBody{sampling: sampling{Stream: stream}}
			choice := q.choice(nil, &toolUse{format: tools.Hermes, readers: map[int]*tools.Reader{}}, &thinking{opened: c.opened, readers: map[int]*envs.ThoughtReader{}})
			reasoning, content, calls := "", "", 0
			for i, piece := range pieces {
				p := &part{text: piece}
				if i == len(pieces)-1 {
					p.done = &policy.Completion{}
				}
				one := choice(p).(chatChoice)
				said := one.Message
				if stream {
					said = one.Delta
				}
				reasoning += said.Reasoning
				if said.Content != nil {
					content += *said.Content
				}
				calls += len(said.Calls)
			}
			expect.True(t, reasoning == c.reasoning && content == c.content && calls == c.calls, "%q, streamed: %t: thought %q, content %q, %d calls", c.pieces, stream, reasoning, content, calls)
		}
	}
}
