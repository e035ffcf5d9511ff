package options

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/rltrain/rltrain/internal/nearest"
)

// Syntax is what the source of a value says about its type: YAML distinguishes numbers from text, a command line does
// not.
type Syntax int

const (
	Untyped Syntax = iota // an argument, a variable, or plain YAML that may be text or a number (1e-5)
	Text
	Number
	Bool
	List
	Null // YAML's null, or an empty section
)

// Value is an unparsed value.
type Value struct {
	Syntax Syntax
	Text   string   // except for List
	List   []string // for List
}

func (v Value) String() string {
	if v.Syntax == List {
		return "[" + strings.Join(v.List, ", ") + "]"
	}
	return strconv.Quote(v.Text)
}

// Parse converts v to the option's kind and checks range and allowed values. The error does not include the option's
// name.
func (o *Option) Parse(v Value) (any, error) {
	if v.Syntax == Null {
		return nil, errors.New("has no value; add one or remove the key")
	}
	if o.Kind != reflect.Slice && v.Syntax == List {
		return nil, fmt.Errorf("expected %s, not a list", o.wanted())
	}
	number := v.Syntax == Number || v.Syntax == Untyped
	wrong := fmt.Errorf("%v is not %s", v, o.wanted())
	switch o.Kind {
	case reflect.Bool:
		return ParseBool(v)
	case reflect.Int:
		n, ok := wholeNumber(v.Text)
		if !ok || !number {
			return nil, wrong
		}
		return n, o.checkRange(float64(n), v)
	case reflect.Uint64:
		n, err := strconv.ParseUint(v.Text, 10, 64)
		if whole, ok := wholeNumber(v.Text); err != nil && ok && whole >= 0 {
			n, err = uint64(whole), nil
		}
		if err != nil || !number {
			return nil, wrong
		}
		return n, o.checkRange(float64(n), v)
	case reflect.Float64:
		x, err := strconv.ParseFloat(v.Text, 64)
		if err != nil || math.IsInf(x, 0) || math.IsNaN(x) || !number {
			return nil, wrong
		}
		return x, o.checkRange(x, v)
	case reflect.Slice:
		return o.parseList(v)
	}
	if v.Syntax == Number || v.Syntax == Bool {
		return nil, fmt.Errorf("%s is not text; put it in quotes: %v", v.Text, v)
	}
	return v.Text, o.checkText(v.Text)
}

// maxExact is the largest integer range that a float64 represents exactly.
const maxExact = 1 << 53

// wholeNumber reads 3, and also 3.0, as some programs write it.
func wholeNumber(text string) (int, bool) {
	if n, err := strconv.Atoi(text); err == nil {
		return n, true
	}
	if !strings.Contains(text, ".") {
		return 0, false
	}
	x, err := strconv.ParseFloat(text, 64)
	return int(x), err == nil && x == math.Trunc(x) && math.Abs(x) < maxExact
}

// ParseBool reads true or false, also as True, False, 1 and 0.
func ParseBool(v Value) (any, error) {
	if v.Syntax == Untyped || v.Syntax == Bool {
		switch v.Text {
		case "true", "True", "1":
			return true, nil
		case "false", "False", "0":
			return false, nil
		}
	}
	return false, fmt.Errorf("%v is not true or false", v)
}

// parseList reads names from a YAML list or separated by commas.
func (o *Option) parseList(v Value) (any, error) {
	list := v.List
	if v.Syntax != List {
		if v.Text == "" {
			return []string(nil), nil
		}
		list = strings.Split(v.Text, ",")
	}
	var names []string
	for _, name := range list {
		name = strings.TrimSpace(name)
		if name == "" || strings.Contains(name, ",") {
			return nil, fmt.Errorf("%v is not %s", v, o.wanted())
		}
		if err := o.checkText(name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}

func (o *Option) checkRange(x float64, v Value) error {
	if !o.Range.Holds(x) {
		return fmt.Errorf("%s is out of range; it must be %v", v.Text, o.Range)
	}
	return nil
}

func (o *Option) checkText(text string) error {
	switch {
	case !utf8.ValidString(text) || strings.ContainsRune(text, 0):
		return fmt.Errorf("%q is not valid UTF-8 text without NUL bytes", text)
	case o.Allowed == nil || slices.Contains(o.Allowed, text):
		return nil
	case len(o.Allowed) == 1:
		return fmt.Errorf("%q: the only choice is %s", text, o.Allowed[0])
	}
	return fmt.Errorf("%q is not one of %s%s", text, strings.Join(o.Allowed, ", "), nearest.Hint(text, o.Allowed, nil))
}

// wanted describes the option's kind for errors.
func (o *Option) wanted() string {
	switch o.Kind {
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "an integer"
	case reflect.Uint64:
		return "an integer of at least 0"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list of names"
	}
	return "text"
}
