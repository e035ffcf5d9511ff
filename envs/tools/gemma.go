package tools

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/rltrain/rltrain/internal/files"
)

// gemmaQuote is around the strings of Gemma 4, which escapes nothing in them.
const gemmaQuote = `<|"|>`

// gemmaDepth is the deepest nesting of arguments that gemma reads.
const gemmaDepth = 100

// gemma reads call:name{key:value,…} between tags. The end tag of the last call may be missing, as for hermes.
func gemma(text string) (calls []Call, rest string, ok bool) {
	for {
		body, more := strings.CutPrefix(strings.TrimLeft(text, space), "<|tool_call>")
		if !more {
			return calls, text, true
		}
		body, found := strings.CutPrefix(strings.TrimLeft(body, space), "call:")
		at := strings.IndexByte(body, '{')
		if !found || at < 0 {
			return nil, "", false
		}
		name := strings.TrimSpace(body[:at])
		r := gemmaReader{text: body[at:]}
		if !isName(name) || !r.value(0) {
			return nil, "", false
		}
		calls = append(calls, Call{name, r.json})
		r.skip()
		end, closed := strings.CutPrefix(r.text, "<tool_call|>")
		if !closed && r.text != "" {
			return nil, "", false
		}
		text = end
	}
}

// gemmaReader turns a value as Gemma 4 writes it into JSON. Strings and names may also be those of JSON.
type gemmaReader struct {
	text string // what follows
	json []byte
}

func (r *gemmaReader) skip() { r.text = strings.TrimLeft(r.text, space) }

// take removes mark from the start of the text, and white space before it.
func (r *gemmaReader) take(mark string) (found bool) {
	r.skip()
	r.text, found = strings.CutPrefix(r.text, mark)
	return found
}

func (r *gemmaReader) value(depth int) bool {
	switch {
	case depth > gemmaDepth:
		return false
	case r.take("{"):
		return r.list('{', '}', depth)
	case r.take("["):
		return r.list('[', ']', depth)
	}
	return r.quoted() || r.literal()
}

// list reads the members of an object or the elements of a list, and the end of it.
func (r *gemmaReader) list(begin, end byte, depth int) bool {
	r.json = append(r.json, begin)
	for first := true; !r.take(string(end)); first = false {
		if !first {
			if !r.take(",") {
				return false
			}
			r.json = append(r.json, ',')
		}
		if end == '}' && !r.name() || !r.value(depth+1) {
			return false
		}
	}
	r.json = append(r.json, end)
	return true
}

// name reads the name of a member and the colon after it.
func (r *gemmaReader) name() bool {
	if !r.quoted() {
		end := strings.IndexAny(r.text, ":,{}[]<>\"\n")
		if end < 1 {
			return false
		}
		r.string(strings.TrimRight(r.text[:end], space))
		r.text = r.text[end:]
	}
	if !r.take(":") {
		return false
	}
	r.json = append(r.json, ':')
	return true
}

// quoted reads a string.
func (r *gemmaReader) quoted() bool {
	if r.take(gemmaQuote) {
		text, rest, closed := strings.Cut(r.text, gemmaQuote)
		r.string(text)
		r.text = rest
		return closed
	}
	if !strings.HasPrefix(r.text, `"`) {
		return false
	}
	value, rest, ok := valueAt(r.text)
	r.json, r.text = append(r.json, value...), rest
	return ok
}

// literal reads a number, true, false or null.
func (r *gemmaReader) literal() bool {
	end := strings.IndexAny(r.text, ",}]"+space)
	if end < 1 || strings.ContainsAny(r.text[:1], `{["`) || !json.Valid([]byte(r.text[:end])) {
		return false
	}
	r.json = append(r.json, r.text[:end]...)
	r.text = r.text[end:]
	return true
}

func (r *gemmaReader) string(text string) {
	line, _ := files.EncodeLine(text) // never fails
	r.json = append(r.json, line...)
}

// asGemma is a JSON value as Gemma 4 writes it.
func asGemma(value json.RawMessage) string {
	var b strings.Builder
	from := json.NewDecoder(bytes.NewReader(value))
	from.UseNumber()
	writeGemma(&b, from)
	return b.String()
}

// writeGemma writes the next value, of which there is one.
func writeGemma(b *strings.Builder, from *json.Decoder) {
	token, _ := from.Token()
	switch token := token.(type) {
	case json.Delim:
		b.WriteString(token.String())
		for separator := ""; from.More(); separator = "," {
			b.WriteString(separator)
			if token == '{' {
				name, _ := from.Token()
				text, _ := name.(string)
				b.WriteString(text + ":")
			}
			writeGemma(b, from)
		}
		end, _ := from.Token()
		delim, _ := end.(json.Delim)
		b.WriteString(delim.String())
	case string:
		b.WriteString(gemmaQuote + token + gemmaQuote)
	default: // a number, true, false or null
		text, _ := json.Marshal(token)
		b.Write(text)
	}
}
