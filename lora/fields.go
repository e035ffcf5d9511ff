package lora

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Modules selects linear modules in one of PEFT's two ways.
type Modules struct {
	Names []string // full names, or suffixes that start at a dot
	// Pattern is a regular expression for full names. As a target, "all-linear" selects all linear modules except the
	// output layer.
	Pattern string
}

func (m Modules) all() bool { return strings.EqualFold(m.Pattern, "all-linear") }

func (m Modules) empty() bool { return len(m.Names) == 0 && m.Pattern == "" }

// String describes the modules for errors.
func (m Modules) String() string {
	if m.Pattern != "" {
		return fmt.Sprintf("%.120q", m.Pattern)
	}
	return strings.Join(m.Names, ", ")
}

// MarshalJSON writes the pattern or the names.
func (m Modules) MarshalJSON() ([]byte, error) {
	if m.Pattern != "" {
		return json.Marshal(m.Pattern)
	}
	return json.Marshal(m.Names)
}

// UnmarshalJSON reads a pattern or names.
func (m *Modules) UnmarshalJSON(data []byte) error {
	*m = Modules{}
	if bytes.HasPrefix(data, []byte{'"'}) {
		return json.Unmarshal(data, &m.Pattern)
	}
	return json.Unmarshal(data, (*oneOrMore[string])(&m.Names))
}

// Tokens are token indices by suffixes of module names.
type Tokens map[string][]int

// UnmarshalJSON reads a list or an object.
func (t *Tokens) UnmarshalJSON(data []byte) error {
	var list []int
	all := map[string][]int{}
	var err error
	if bytes.HasPrefix(data, []byte{'['}) {
		err = json.Unmarshal(data, &list)
	} else {
		err = json.Unmarshal(data, &all)
	}
	if len(list) > 0 {
		all[""] = list
	}
	*t = nil // also of an empty list or object
	if len(all) > 0 {
		*t = all
	}
	return err
}

// A Pattern overrides a value for some modules.
type Pattern[T int | float64] struct {
	// Key is a regular expression that matches a module's full name, or a suffix after a dot.
	Key   string
	Value T
}

// patterns is an ordered JSON object.
type patterns[T int | float64] []Pattern[T]

// MarshalJSON writes the members in order.
func (p patterns[T]) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for i, pattern := range p {
		if i > 0 {
			b = append(b, ',')
		}
		key, err := json.Marshal(pattern.Key)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(pattern.Value)
		if err != nil {
			return nil, err
		}
		b = append(append(append(b, key...), ':'), value...)
	}
	return append(b, '}'), nil
}

// UnmarshalJSON reads the members in order. As in Python, a repeated key changes the value at its first position.
func (p *patterns[T]) UnmarshalJSON(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.New("not an object")
	}
	var all patterns[T]
	at := map[string]int{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		pattern := Pattern[T]{Key: t.(string)} // keys of an object are strings
		var value *T
		if err := d.Decode(&value); err != nil {
			return err
		}
		if value == nil {
			return errors.New("null is not allowed")
		}
		pattern.Value = *value
		if i, ok := at[pattern.Key]; ok {
			all[i] = pattern
			continue
		}
		at[pattern.Key] = len(all)
		all = append(all, pattern)
	}
	*p = all
	return nil
}

// oneOrMore is a JSON list, or a single element without brackets.
type oneOrMore[T int | string] []T

// UnmarshalJSON reads the list or the element.
func (l *oneOrMore[T]) UnmarshalJSON(data []byte) error {
	var many []T
	if !bytes.HasPrefix(data, []byte{'['}) {
		data = slices.Concat([]byte{'['}, data, []byte{']'})
	}
	err := json.Unmarshal(data, &many)
	*l = append(oneOrMore[T](nil), many...) // nil for an empty list
	return err
}

// reader removes members from a JSON object and keeps the first error.
type reader struct {
	raw map[string]json.RawMessage
	err error
}

// take removes a member and returns its JSON on one line, or "" if it is missing.
func (r *reader) take(key string) string {
	raw, ok := r.raw[key]
	if !ok {
		return ""
	}
	delete(r.raw, key)
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil && r.err == nil {
		r.err = fmt.Errorf("%s: %w", key, err)
	}
	return b.String()
}

// get reads a member into v. v keeps its value if the member is null or missing.
func (r *reader) get(key string, v any) {
	text := r.take(key)
	if text == "" || text == "null" || r.err != nil {
		return
	}
	if err := json.Unmarshal([]byte(text), v); err != nil {
		r.err = fmt.Errorf("%s: %.60s has the wrong type", key, text)
	}
}
