package dataset

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/rltrain/rltrain/internal/words"
)

const (
	// maxDepth bounds the nesting of arrays and objects, so that recursion cannot exhaust the stack.
	maxDepth = 100
	// smallObject is the number of keys up to which duplicates are found by linear search.
	smallObject = 16
	// maxNames bounds the field names shared among objects.
	maxNames = 1024
)

// decoder decodes valid JSON.
type decoder struct {
	names map[string]string // interned field names
	seen  [][]byte          // keys of the top-level object, for errors
}

// object decodes the wanted fields of value, which is valid JSON.
func (d *decoder) object(where place, value []byte, want *wanted) (Object, error) {
	if value[0] != '{' {
		v, err := d.value(value, 0)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", where, err)
		}
		return nil, fmt.Errorf("%s: got %s, want an object%s", where, Kind(v), want.columns())
	}
	fields := make(Object, 0, 4)
	d.seen = d.seen[:0]
	for rest := nextMember(value[1:]); len(rest) > 0; {
		var literal, member []byte
		literal, rest = cutValue(rest)
		member, rest = cutValue(bytes.TrimLeft(rest, " \t\r\n:"))
		rest = nextMember(rest)

		key, err := keyOf(literal)
		if err != nil {
			return nil, fmt.Errorf("%s: key %s: %w", where, words.Quote(string(literal)), err)
		}
		d.seen = append(d.seen, key)
		if !want.has(key) {
			continue
		}
		v, err := d.value(member, 1)
		if err != nil {
			return nil, fmt.Errorf("%s: column %s: %w", where, words.Quote(string(key)), err)
		}
		fields = append(fields, Field{d.name(key), v})
	}
	if twice := repeated(d.seen); twice != nil {
		return nil, fmt.Errorf("%s: key %s occurs twice; remove one", where, words.Quote(string(twice)))
	}
	if err := want.check(where, fields, d.keys); err != nil {
		return nil, err
	}
	return fields, nil
}

// keys returns the keys of the last object, in order.
func (d *decoder) keys() []string {
	var keys []string
	for _, key := range d.seen {
		keys = append(keys, string(key))
	}
	return keys
}

func (d *decoder) name(key []byte) string {
	if name, ok := d.names[string(key)]; ok {
		return name
	}
	if d.names == nil {
		d.names = map[string]string{}
	}
	name := string(key)
	if len(d.names) < maxNames {
		d.names[name] = name
	}
	return name
}

// value decodes a value at nesting depth. The result shares no memory with p.
func (d *decoder) value(p []byte, depth int) (any, error) {
	switch p[0] {
	case 'n':
		return nil, nil
	case 't':
		return true, nil
	case 'f':
		return false, nil
	case '"':
		return stringOf(p)
	case '{', '[':
		if depth == maxDepth {
			return nil, fmt.Errorf("arrays and objects are nested deeper than %d", maxDepth)
		}
		if p[0] == '{' {
			return d.fields(p, depth+1)
		}
		return d.elements(p, depth+1)
	}
	return numberOf(string(p))
}

func (d *decoder) fields(p []byte, depth int) (any, error) {
	fields := Object{}
	var keys [][]byte
	for rest := nextMember(p[1:]); len(rest) > 0; {
		var literal, member []byte
		literal, rest = cutValue(rest)
		member, rest = cutValue(bytes.TrimLeft(rest, " \t\r\n:"))
		rest = nextMember(rest)
		key, err := keyOf(literal)
		if err != nil {
			return nil, err
		}
		v, err := d.value(member, depth)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
		fields = append(fields, Field{d.name(key), v})
	}
	if twice := repeated(keys); twice != nil {
		return nil, fmt.Errorf("key %s occurs twice; remove one", words.Quote(string(twice)))
	}
	return fields, nil
}

func (d *decoder) elements(p []byte, depth int) (any, error) {
	elements := []any{}
	for rest := bytes.TrimLeft(p[1:], " \t\r\n"); rest[0] != ']'; rest = bytes.TrimLeft(rest, " \t\r\n,") {
		var element []byte
		element, rest = cutValue(rest)
		v, err := d.value(element, depth)
		if err != nil {
			return nil, err
		}
		elements = append(elements, v)
	}
	return elements, nil
}

// repeated returns a duplicate key, or nil.
func repeated(keys [][]byte) []byte {
	if len(keys) <= smallObject {
		for i, key := range keys {
			for _, other := range keys[:i] {
				if bytes.Equal(key, other) {
					return key
				}
			}
		}
		return nil
	}
	sorted := slices.Clone(keys)
	slices.SortFunc(sorted, bytes.Compare)
	for i := 1; i < len(sorted); i++ {
		if bytes.Equal(sorted[i-1], sorted[i]) {
			return sorted[i]
		}
	}
	return nil
}

// numberOf keeps integers exact. "-0" is a float, because an integer would lose the sign.
func numberOf(text string) (any, error) {
	if i, err := strconv.ParseInt(text, 10, 64); err == nil && text != "-0" {
		return i, nil
	} else if err != nil && digits(text) {
		return json.Number(text), nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return nil, fmt.Errorf("number %s is out of range for a float64", words.Quote(text))
	}
	return f, nil
}

func digits(text string) bool {
	for i := range len(text) {
		if (text[i] < '0' || text[i] > '9') && (i > 0 || text[i] != '-') {
			return false
		}
	}
	return true
}

// nextMember skips to the next key of an object; the result is empty at its end.
func nextMember(p []byte) []byte {
	p = bytes.TrimLeft(p, " \t\r\n,")
	if len(p) == 0 || p[0] == '}' {
		return nil
	}
	return p
}

// cutValue splits p after the JSON value at its start.
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

// stringEnd is the length of the string literal at the start of p.
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

// keyOf returns the decoded bytes of a string literal, without a copy if it has no escapes.
func keyOf(literal []byte) ([]byte, error) {
	if bytes.IndexByte(literal, '\\') < 0 {
		return literal[1 : len(literal)-1], nil
	}
	s, err := stringOf(literal)
	return []byte(s), err
}

func stringOf(value []byte) (string, error) {
	inner := value[1 : len(value)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return string(inner), nil
	}
	if unpairedSurrogate(inner) {
		return "", fmt.Errorf("unpaired surrogate escape in %s; write the character itself", words.Quote(string(value)))
	}
	var s string
	err := json.Unmarshal(value, &s)
	return s, err
}

// unpairedSurrogate reports whether the content of a valid string literal has half a surrogate pair, which encoding/json
// would replace by U+FFFD.
func unpairedSurrogate(s []byte) bool {
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			continue
		}
		i++ // to the escaped character
		if s[i] != 'u' {
			continue
		}
		unit := codeUnit(s[i:])
		i += 4 // to the last hexadecimal digit
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

// codeUnit reads the four digits after the leading u.
func codeUnit(s []byte) uint64 {
	unit, _ := strconv.ParseUint(string(s[1:5]), 16, 16) // valid JSON has four digits
	return unit
}

// Parse decodes a JSON value, for example from a text column. Objects keep their order. It refuses what Records refuses.
func Parse(text string) (any, error) {
	p := bytes.Trim([]byte(text), " \t\r\n")
	if !json.Valid(p) {
		var value json.RawMessage
		return nil, fmt.Errorf("invalid JSON: %w", json.Unmarshal(p, &value))
	}
	return new(decoder).value(p, 0)
}
