package tools

import "strings"

// Reader splits a message into content and tool calls while it is generated.
type Reader struct {
	format *Format
	text   string
	sent   int // bytes of text that were returned as content
}

// NewReader begins a message.
func NewReader(f *Format) *Reader { return &Reader{format: f} }

// Add appends a piece of the message and returns the content that is certain so far. What may belong to a call is held back,
// and so is white space that calls may follow.
func (r *Reader) Add(piece string) (content string) {
	r.text += piece
	end := r.format.begins(r.text, false)
	if end < 0 {
		end = len(r.text)
	}
	end = len(strings.TrimRight(r.text[:end], space))
	if end <= r.sent {
		return ""
	}
	content = r.text[r.sent:end]
	r.sent = end
	return content
}

// End returns the rest of the content and the calls.
func (r *Reader) End() (content string, calls []Call) {
	content, calls = r.format.Parse(r.text)
	return content[r.sent:], calls
}
