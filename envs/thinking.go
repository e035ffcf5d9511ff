package envs

import (
	"strings"

	"github.com/rltrain/rltrain/envs/dataset"
)

// ThoughtTags begin and end the thoughts of models that think before they answer: most models', Magistral's, and Gemma 4's.
var ThoughtTags = [][2]string{{"<think>", "</think>"}, {"[THINK]", "[/THINK]"}, {"<|channel>thought", "<channel|>"}}

// ThoughtMarks are the texts of tokens in the tags.
var ThoughtMarks = []string{"<think>", "</think>", "[THINK]", "[/THINK]", "<|channel>", "<channel|>"}

// SplitThought splits a message of a model after its thought, whose end tag belongs to the thought. opened says that the prompt
// ended with the tag that begins one. A thought without an end tag is all of the text, and not closed. The first at bytes are
// the thought, 0 if there is none; thinking is its text without tags.
func SplitThought(text string, opened bool) (thinking string, at int, closed bool) {
	for _, tags := range ThoughtTags {
		begun := strings.TrimLeft(text, " \n")
		inside, tagged := strings.CutPrefix(begun, tags[0])
		end := strings.LastIndex(text, tags[1])
		switch {
		case end >= 0:
			return strings.TrimSpace(strings.TrimPrefix(strings.TrimLeft(text[:end], " \n"), tags[0])), end + len(tags[1]), true
		case tagged:
			return strings.TrimSpace(inside), len(text), false
		}
	}
	if opened && text != "" {
		return strings.TrimSpace(text), len(text), false
	}
	return "", 0, false
}

// ThoughtReader splits a message into its thought and the rest while it is generated. It ends the thought at the first end tag.
type ThoughtReader struct {
	opened, decided, closed bool
	thought, content        bool   // some of it was returned
	rest                    string // that is neither yet
}

// NewThoughtReader begins a message; opened says that the prompt ended with the tag that begins a thought.
func NewThoughtReader(opened bool) *ThoughtReader {
	return &ThoughtReader{opened: opened, decided: opened}
}

// Add appends a piece of the message, and returns what is certain so far of the thought, without white space around it, and of the
// content. over says that no other piece follows.
func (r *ThoughtReader) Add(piece string, over bool) (thinking, content string) {
	r.rest += piece
	if !r.decided && !r.decide(over) {
		return "", ""
	}
	if r.opened && !r.closed {
		thinking = r.think(over)
	}
	if r.opened && !r.closed {
		return thinking, ""
	}
	if r.opened && !r.content {
		r.rest = strings.TrimLeft(r.rest, "\n")
	}
	if r.rest == "" {
		return thinking, ""
	}
	content, r.rest, r.content = r.rest, "", true
	return thinking, content
}

// decide looks for the tag that begins a thought.
func (r *ThoughtReader) decide(over bool) bool {
	begun := strings.TrimLeft(r.rest, " \n")
	for _, tags := range ThoughtTags {
		rest, found := strings.CutPrefix(begun, tags[0])
		switch {
		case found:
			r.opened, r.decided, r.rest = true, true, rest
			return true
		case !over && strings.HasPrefix(tags[0], begun):
			return false
		}
	}
	r.decided = true
	return true
}

// think takes what is certain to be thought from the rest: all but white space and a part of an end tag at its end.
func (r *ThoughtReader) think(over bool) (thinking string) {
	end, after := len(r.rest), len(r.rest)
	for _, tags := range ThoughtTags {
		if at := strings.Index(r.rest, tags[1]); at >= 0 && at < end {
			end, after, r.closed = at, at+len(tags[1]), true
		}
	}
	if !r.closed && !over {
		for _, tags := range ThoughtTags {
			for n := range tags[1] {
				if n > 0 && strings.HasSuffix(r.rest, tags[1][:n]) {
					end = min(end, len(r.rest)-n)
				}
			}
		}
	}
	thinking = strings.TrimRight(r.rest[:end], " \n")
	if !r.closed && !over {
		after = len(thinking)
	}
	r.rest = r.rest[after:]
	if !r.thought {
		thinking = strings.TrimLeft(thinking, " \n")
		r.thought = thinking != ""
	}
	return thinking
}

// OpensThought reports whether a prompt ends with the tag that begins a thought.
func OpensThought(prompt string) bool {
	prompt = strings.TrimSpace(prompt)
	for _, tags := range ThoughtTags {
		if strings.HasSuffix(prompt, tags[0]) {
			return true
		}
	}
	return false
}

// NewAction makes an action of a message. Its first thought bytes, with the newlines after the end tag, are not in its Text. A
// message that a stop string ends within its thought is text. opened is that of SplitThought.
func NewAction(text string, stop StopReason, opened bool) (a Action, thought int, closed bool) {
	a = Action{Text: text, Stop: stop}
	thinking, at, closed := SplitThought(text, opened)
	if at == 0 || stop == StopString && !closed {
		return a, 0, false
	}
	a.Thinking, a.Text = thinking, strings.TrimLeft(text[at:], "\n")
	return a, len(text) - len(a.Text), closed
}

// Message is the action as a message of the conversation. It has the thought as reasoning_content, which chat templates read.
func (a Action) Message() Message {
	m := Message{Role: RoleAssistant, Content: a.Text}
	if a.Thinking != "" {
		m.Fields = dataset.Object{{Name: "role", Value: m.Role}, {Name: "content", Value: m.Content}, {Name: "reasoning_content", Value: a.Thinking}}
	}
	return m
}

// ThinkingUse counts the thoughts of an episode.
type ThinkingUse struct {
	Tokens   int `json:"tokens"`   // sampled in thoughts
	Thoughts int `json:"thoughts"` // messages with one
	Closed   int `json:"closed"`   // thoughts that the model ended
}
