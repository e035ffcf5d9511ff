package transformers

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"

	"github.com/rltrain/rltrain/torch/unpack"
)

// fields reads the members of a JSON object and keeps the first error.
type fields struct {
	raw   map[string]json.RawMessage
	at    string            // the object's position in the file, "rope_parameters."; "" for the file itself
	own   map[string]string // the family's spelling of renamed fields
	older map[string]string // the family's spelling of fields in older files
	read  map[string]bool   // members that were asked for; nil if nobody wants to know
	err   error
}

func (f *fields) fail(format string, args ...any) {
	if f.err == nil {
		f.err = fmt.Errorf(f.at+format, args...)
	}
}

// spelled returns the name of a field in the file.
func (f *fields) spelled(key string) string {
	key = cmp.Or(f.own[key], key)
	if old := f.older[key]; f.raw[key] == nil && f.raw[old] != nil {
		key = old
	}
	if f.read != nil {
		f.read[key] = true
	}
	return key
}

// value reads a member; absent is the default for a missing or null one.
func value[T any](f *fields, key string, absent T) T {
	key = f.spelled(key)
	raw, ok := f.raw[key]
	if !ok || string(raw) == "null" {
		return absent
	}
	var v T
	if err := json.Unmarshal(raw, &v); err != nil {
		f.fail("%s: %.60s is not a %s", key, oneLine(raw), kindOf(v))
		return absent
	}
	return v
}

func text(f *fields, key, absent string) string { return value(f, key, absent) }

// required, as the default of a size or a positive number, makes the field mandatory.
const required = -1

// size reads an integer from 1 to limit.
func (f *fields) size(key string, absent, limit int) int {
	key = f.spelled(key)
	n := value(f, key, absent)
	switch {
	case f.err != nil:
	case n == required && !f.has(key):
		f.fail("%s is missing", key)
	case n < 1 || n > limit:
		f.fail("%s %d is not between 1 and %d", key, n, limit)
	}
	return n
}

// positive reads a finite number above 0.
func (f *fields) positive(key string, absent float64) float64 {
	key = f.spelled(key)
	x := value(f, key, absent)
	switch {
	case f.err != nil:
	case x == required && !f.has(key):
		f.fail("%s is missing", key)
	case !(x > 0) || math.IsInf(x, 0):
		f.fail("%s %g is not above 0", key, x)
	}
	return x
}

func (f *fields) has(key string) bool {
	raw, ok := f.raw[f.spelled(key)]
	return ok && string(raw) != "null"
}

// isNull reports whether a member exists and is null.
func (f *fields) isNull(key string) bool { return string(f.raw[f.spelled(key)]) == "null" }

// object reads a member that is itself an object; its raw is nil if missing.
func (f *fields) object(key string) *fields {
	return &fields{raw: value(f, key, map[string]json.RawMessage(nil)), at: f.at + key + "."}
}

// quantised reads how the weights are stored, nil if they are not quantised.
func (f *fields) quantised() []unpack.Format {
	raw := f.raw[quantKey]
	if len(raw) == 0 || f.isNull(quantKey) {
		return nil
	}
	formats, err := unpack.Read(raw)
	if err != nil {
		f.fail("%s: %v", quantKey, err)
	}
	return formats
}

func kindOf(v any) string {
	switch v.(type) {
	case int, int32:
		return "whole number"
	case float64:
		return "number"
	case string:
		return "string"
	case bool:
		return "boolean"
	case map[string]string:
		return "map of strings"
	case []int32:
		return "list of whole numbers"
	case []float64:
		return "list of numbers"
	case []string:
		return "list of strings"
	}
	return "JSON object"
}

// oneLine is raw JSON without line breaks.
func oneLine(raw []byte) string {
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return fmt.Sprintf("%q", raw)
	}
	return b.String()
}
