package dataset

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/words"
)

// Object is a JSON object with ordered fields and unique names. Values in objects and records are
//
//   - nil, bool, string and int64;
//   - float64 for numbers written with a fraction or an exponent;
//   - json.Number for integers beyond int64 and for decimals of Parquet;
//   - []byte for binary columns of Parquet;
//   - []any and Object, at most 100 levels deep.
type Object []Field

// Field is a name and value of an Object.
type Field struct {
	Name  string
	Value any
}

// Get returns the value of a field.
func (o Object) Get(name string) (value any, ok bool) {
	for _, f := range o {
		if f.Name == name {
			return f.Value, true
		}
	}
	return nil, false
}

// With returns o with the field set, in place if it exists, else appended.
func (o Object) With(name string, value any) Object {
	out := slices.Clone(o)
	for i := range out {
		if out[i].Name == name {
			out[i].Value = value
			return out
		}
	}
	return append(out, Field{name, value})
}

// Names returns the field names in order.
func (o Object) Names() []string {
	names := make([]string, len(o))
	for i, f := range o {
		names[i] = f.Name
	}
	return names
}

// Equal reports whether two values are equal. As in Python dictionaries, the order of fields does not matter. Numbers are
// compared by value and by whether they are integers.
func Equal(a, b any) bool {
	switch a := a.(type) {
	case Object:
		b, ok := b.(Object)
		if !ok || len(a) != len(b) {
			return false
		}
		for _, f := range a {
			other, ok := b.Get(f.Name)
			if !ok || !Equal(f.Value, other) {
				return false
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for i := range a {
			if !Equal(a[i], b[i]) {
				return false
			}
		}
		return true
	case []byte:
		b, ok := b.([]byte)
		return ok && bytes.Equal(a, b)
	}
	switch b.(type) {
	case Object, []any, []byte:
		return false // not comparable with ==
	}
	return a == b
}

// MarshalJSON implements json.Marshaler. Fields keep their order, text is not HTML-escaped, and an integral float64 gets
// ".0". Bytes and numbers without a JSON form are errors.
func (o Object) MarshalJSON() ([]byte, error) { return appendJSON(nil, o) }

func appendJSON(out []byte, value any) ([]byte, error) {
	var err error
	switch v := value.(type) {
	case Object:
		out = append(out, '{')
		for i, f := range v {
			if i > 0 {
				out = append(out, ',')
			}
			if out, err = appendString(out, f.Name); err != nil {
				return nil, err
			}
			out = append(out, ':')
			if out, err = appendJSON(out, f.Value); err != nil {
				return nil, err
			}
		}
		return append(out, '}'), nil
	case []any:
		out = append(out, '[')
		for i, element := range v {
			if i > 0 {
				out = append(out, ',')
			}
			if out, err = appendJSON(out, element); err != nil {
				return nil, err
			}
		}
		return append(out, ']'), nil
	case string:
		return appendString(out, v)
	case int64:
		return strconv.AppendInt(out, v, 10), nil
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("JSON cannot represent %v", v)
		}
		return append(out, floatText(v)...), nil
	case nil, bool, json.Number:
		text, err := json.Marshal(v)
		return append(out, text...), err
	}
	return nil, fmt.Errorf("JSON cannot represent %s", Kind(value))
}

func appendString(out []byte, s string) ([]byte, error) {
	text, err := files.EncodeLine(s)
	return append(out, text...), err
}

// floatText formats a float so that it is read back as a float.
func floatText(v float64) string {
	s := strconv.FormatFloat(v, 'g', -1, 64)
	if !strings.ContainsAny(s, ".eIN") {
		s += ".0"
	}
	return s
}

// Kind describes the type of a value, for errors.
func Kind(value any) string {
	switch v := value.(type) {
	case nil:
		return "null"
	case bool:
		return "a boolean"
	case string:
		return "a string"
	case int64:
		return "the number " + words.Quote(strconv.FormatInt(v, 10))
	case float64:
		return "the number " + words.Quote(strconv.FormatFloat(v, 'g', -1, 64))
	case json.Number:
		return "the number " + words.Quote(v.String())
	case []byte:
		return "binary data"
	case []any:
		return "an array"
	default:
		return "an object"
	}
}
