package jinja

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// ParseJSON reads one JSON value; objects keep the order of their keys, integers all their digits.
func ParseJSON(data []byte) (Value, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	v, err := parseJSON(d, 0)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("something follows the JSON value at byte %d", d.InputOffset())
	}
	return v, nil
}

func parseJSON(d *json.Decoder, depth int) (Value, error) {
	if depth > maxNest {
		return nil, fmt.Errorf("the JSON value nests more than %d deep", maxNest)
	}
	t, err := d.Token()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	switch t := t.(type) {
	case json.Delim:
		if t == '[' {
			l := &List{}
			for d.More() {
				v, err := parseJSON(d, depth+1)
				if err != nil {
					return nil, err
				}
				l.Items = append(l.Items, v)
			}
			_, err := d.Token()
			return l, err
		}
		out := NewDict()
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			v, err := parseJSON(d, depth+1)
			if err != nil {
				return nil, err
			}
			out.Set(key.(string), v)
		}
		_, err := d.Token()
		return out, err
	case json.Number:
		if n, err := strconv.ParseInt(t.String(), 10, 64); err == nil {
			return n, nil
		}
		if digits := strings.TrimPrefix(t.String(), "-"); len(digits) <= maxDigits && strings.Trim(digits, "0123456789") == "" {
			n, _ := new(big.Int).SetString(t.String(), 10)
			return n, nil
		}
		f, err := t.Float64()
		if err != nil && !math.IsInf(f, 0) {
			return nil, err
		}
		return f, nil
	}
	return t, nil
}

// JSON is v as the filter tojson writes it.
func JSON(v Value) (text string, err error) {
	defer catch(&err)
	w := &jsonWriter{r: &run{line: 1, out: &strings.Builder{}}, comma: ", ", colon: ": "}
	w.write(v, 0)
	return w.b.String(), nil
}

// maxDigits is the longest integer that Python reads; longer ones become floats.
const maxDigits = 4300

// jsonWriter is Python's json.dumps.
type jsonWriter struct {
	r      *run
	b      strings.Builder
	ascii  bool
	indent string // an indentation step, if pretty is set
	pretty bool
	comma  string
	colon  string
	sorted bool
}

func (w *jsonWriter) line(depth int) {
	if w.pretty {
		w.b.WriteByte('\n')
		for range depth {
			w.b.WriteString(w.indent)
		}
	}
}

func (w *jsonWriter) write(v Value, depth int) {
	w.r.nested(depth)
	before := w.b.Len()
	switch v := v.(type) {
	case nil:
		w.b.WriteString("null")
	case bool:
		w.b.WriteString(strconv.FormatBool(v))
	case int64:
		w.b.WriteString(strconv.FormatInt(v, 10))
	case *big.Int:
		w.b.WriteString(v.String())
	case float64:
		switch {
		case math.IsNaN(v):
			w.b.WriteString("NaN")
		case math.IsInf(v, 0):
			w.b.WriteString(map[bool]string{true: "Infinity", false: "-Infinity"}[v > 0])
		default:
			w.b.WriteString(formatFloat(v))
		}
	case string:
		w.quote(v)
	case *List:
		w.b.WriteByte('[')
		for i, item := range v.Items {
			if i > 0 {
				w.b.WriteString(w.comma)
			}
			w.line(depth + 1)
			w.write(item, depth+1)
		}
		if len(v.Items) > 0 {
			w.line(depth)
		}
		w.b.WriteByte(']')
	case *Dict:
		keys := v.keys
		if w.sorted {
			keys = slices.Sorted(slices.Values(keys))
		}
		w.b.WriteByte('{')
		for i, key := range keys {
			if i > 0 {
				w.b.WriteString(w.comma)
			}
			w.line(depth + 1)
			w.quote(key)
			w.b.WriteString(w.colon)
			w.write(v.values[key], depth+1)
		}
		if len(keys) > 0 {
			w.line(depth)
		}
		w.b.WriteByte('}')
	default:
		w.r.defined(v)
		w.r.fail("tojson cannot write a %s", typeName(v))
	}
	w.r.paid(&w.b, before)
}

var jsonEscapes = map[rune]string{'"': `\"`, '\\': `\\`, '\n': `\n`, '\r': `\r`, '\t': `\t`, '\b': `\b`, '\f': `\f`}

func (w *jsonWriter) quote(s string) {
	w.b.WriteByte('"')
	for _, c := range s {
		switch {
		case jsonEscapes[c] != "":
			w.b.WriteString(jsonEscapes[c])
		case c < 0x20 || w.ascii && c > 0x7e && c <= 0xffff:
			fmt.Fprintf(&w.b, `\u%04x`, c)
		case w.ascii && c > 0xffff:
			fmt.Fprintf(&w.b, `\u%04x\u%04x`, 0xd800+(c-0x10000)>>10, 0xdc00+(c-0x10000)&0x3ff)
		default:
			w.b.WriteRune(c)
		}
	}
	w.b.WriteByte('"')
}
