package dataset

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// objectReader turns JSON objects into rows.
type objectReader struct {
	collector *collector
	// last holds the number of the object in which each key was last seen: one
	// map for the whole file finds repeated keys without allocating.
	last   map[string]*int
	number int
}

// add keeps the row that value, valid JSON, describes.
func (o *objectReader) add(where place, value []byte) error {
	if value[0] != '{' {
		return fmt.Errorf("%s: %s, want an object with the columns %s and %s", where, kind(value), quote(o.collector.cols.Text), quote(o.collector.cols.Label))
	}
	if o.last == nil {
		o.last = map[string]*int{}
	}
	o.number++
	cols := o.collector.cols
	var text, label, split []byte
	for rest := nextMember(value[1:]); len(rest) > 0; {
		var literal, member []byte
		literal, rest = cutValue(rest)
		member, rest = cutValue(bytes.TrimLeft(rest, " \t\r\n:"))
		rest = nextMember(rest)

		key, err := keyOf(literal)
		if err != nil {
			return fmt.Errorf("%s: key %s: %w", where, quote(string(literal)), err)
		}
		last := o.last[string(key)]
		if last == nil {
			last = new(int)
			o.last[string(key)] = last
		}
		if *last == o.number {
			return fmt.Errorf("%s: key %s occurs twice: remove one", where, quote(string(key)))
		}
		*last = o.number
		// Not a switch: one column may serve as text and as label.
		if string(key) == cols.Text {
			text = member
		}
		if string(key) == cols.Label {
			label = member
		}
		if string(key) == cols.Split {
			split = member
		}
	}
	for _, v := range []struct {
		name  string
		value []byte
	}{{cols.Text, text}, {cols.Label, label}} {
		if v.value == nil {
			return missing(where, v.name, o.keys(value))
		}
	}
	if split == nil && o.collector.needSplit {
		return missing(where, cols.Split, o.keys(value))
	}
	t, err := stringOf(text)
	if err != nil {
		return fmt.Errorf("%s: column %s: %w", where, quote(cols.Text), err)
	}
	l, err := labelOf(label)
	if err != nil {
		return fmt.Errorf("%s: column %s: %w", where, quote(cols.Label), err)
	}
	part := ""
	if split != nil && string(split) != "null" {
		if part, err = stringOf(split); err != nil {
			return fmt.Errorf("%s: column %s: %w", where, quote(cols.Split), err)
		}
	}
	return o.collector.add(where, t, l, part)
}

// keys lists an object's keys in order, for an error.
func (o *objectReader) keys(object []byte) []string {
	var keys []string
	for rest := nextMember(object[1:]); len(rest) > 0; {
		var literal []byte
		literal, rest = cutValue(rest)
		_, rest = cutValue(bytes.TrimLeft(rest, " \t\r\n:"))
		rest = nextMember(rest)
		if key, err := keyOf(literal); err == nil {
			keys = append(keys, string(key))
		}
	}
	return keys
}

// nextMember skips to the next key of an object; nothing is left at its end.
func nextMember(p []byte) []byte {
	p = bytes.TrimLeft(p, " \t\r\n,")
	if len(p) == 0 || p[0] == '}' {
		return nil
	}
	return p
}

// cutValue splits p, which starts with a valid JSON value, behind that value.
func cutValue(p []byte) (value, rest []byte) {
	switch p[0] {
	case '"':
		n := stringEnd(p)
		return p[:n], p[n:]
	case '{', '[':
		depth := 0
		for i := 0; i < len(p); i++ {
			switch p[i] {
			case '"':
				i += stringEnd(p[i:]) - 1
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return p[:i+1], p[i+1:]
				}
			}
		}
		return p, nil
	}
	if n := bytes.IndexAny(p, ",}] \t\r\n"); n >= 0 {
		return p[:n], p[n:]
	}
	return p, nil
}

// stringEnd returns the length of the string literal at the start of p.
func stringEnd(p []byte) int {
	for i := 1; i < len(p); i++ {
		switch p[i] {
		case '"':
			return i + 1
		case '\\':
			i++
		}
	}
	return len(p)
}

// keyOf returns the decoded bytes of a string literal, without a copy where it
// has no escapes.
func keyOf(literal []byte) ([]byte, error) {
	if bytes.IndexByte(literal, '\\') < 0 {
		return literal[1 : len(literal)-1], nil
	}
	s, err := stringOf(literal)
	return []byte(s), err
}

func stringOf(value []byte) (string, error) {
	if value[0] != '"' {
		return "", fmt.Errorf("%s, want a string", kind(value))
	}
	inner := value[1 : len(value)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return string(inner), nil
	}
	if unpairedSurrogate(inner) {
		return "", fmt.Errorf("unpaired surrogate escape in %s: write the character itself", quote(string(value)))
	}
	var s string
	err := json.Unmarshal(value, &s)
	return s, err
}

func labelOf(value []byte) (string, error) {
	if value[0] == '"' {
		return stringOf(value)
	}
	digits := bytes.TrimPrefix(value, []byte("-"))
	if strings.Trim(string(digits), "0123456789") != "" || string(value) == "-0" {
		return "", fmt.Errorf("%s, want a string or an integer", kind(value))
	}
	return string(value), nil
}

func kind(value []byte) string {
	switch value[0] {
	case 'n':
		return "null"
	case 't', 'f':
		return "a boolean"
	case '"':
		return "a string"
	case '{':
		return "an object"
	case '[':
		return "an array"
	default:
		return "the number " + quote(string(value))
	}
}

// unpairedSurrogate reports whether the inside of a valid string literal has a
// \u escape of half a character, which encoding/json would replace by U+FFFD.
func unpairedSurrogate(s []byte) bool {
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			continue
		}
		i++ // at the character escaped
		if s[i] != 'u' {
			continue
		}
		unit := codeUnit(s[i:])
		i += 4 // at the last hexadecimal digit
		if unit < 0xD800 || unit > 0xDFFF {
			continue
		}
		if unit >= 0xDC00 || len(s) < i+7 || s[i+1] != '\\' || s[i+2] != 'u' {
			return true
		}
		if low := codeUnit(s[i+2:]); low < 0xDC00 || low > 0xDFFF {
			return true
		}
		i += 6
	}
	return false
}

// codeUnit reads the four digits behind the u that s starts with.
func codeUnit(s []byte) uint64 {
	unit, _ := strconv.ParseUint(string(s[1:5]), 16, 16) // valid JSON: four digits
	return unit
}
