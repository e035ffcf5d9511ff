package config

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// bounds is the range of a number; the zero bounds allow every finite one.
type bounds struct {
	min, max         float64
	openMin, openMax bool
	set              bool
}

func atLeast(v float64) bounds    { return bounds{min: v, max: math.Inf(1), set: true} }
func above(v float64) bounds      { return bounds{min: v, max: math.Inf(1), openMin: true, set: true} }
func between(a, b float64) bounds { return bounds{min: a, max: b, set: true} }
func (b bounds) hold(v float64) bool {
	return !b.set || (v > b.min || v == b.min && !b.openMin) && (v < b.max || v == b.max && !b.openMax)
}

func (b bounds) String() string {
	lower, upper := "at least", "at most"
	if b.openMin {
		lower = "more than"
	}
	if b.openMax {
		upper = "less than"
	}
	switch {
	case math.IsInf(b.max, 1):
		return fmt.Sprintf("%s %v", lower, b.min)
	case !b.openMin && !b.openMax:
		return fmt.Sprintf("%v to %v", b.min, b.max)
	}
	return fmt.Sprintf("%s %v and %s %v", lower, b.min, upper, b.max)
}

// valueKind is what the syntax says about a value: YAML tells numbers from text, the command line does not.
type valueKind int

const (
	untyped valueKind = iota // an option, a variable, or a plain YAML scalar that may be text or a number (1e-5)
	textKind
	numberKind
	boolKind
	listKind
)

// rawValue is a value as given.
type rawValue struct {
	kind valueKind
	text string   // all kinds but listKind
	list []string // listKind
}

func (r rawValue) String() string {
	if r.kind == listKind {
		return "[" + strings.Join(r.list, ", ") + "]"
	}
	return strconv.Quote(r.text)
}

// parse turns r into a value of the key's type within its limits; the error is the message alone.
func (k *key) parse(r rawValue) (any, error) {
	if k.kind != reflect.Slice && r.kind == listKind {
		return nil, fmt.Errorf("a list where %s is wanted", k.wanted())
	}
	wrong := fmt.Errorf("%v is not %s", r, k.wanted())
	switch k.kind {
	case reflect.Bool:
		return parseBool(r)
	case reflect.Int:
		v, err := strconv.Atoi(r.text)
		if err != nil || r.kind != numberKind && r.kind != untyped {
			return nil, wrong
		}
		return v, k.checkLimits(float64(v), r)
	case reflect.Uint64:
		v, err := strconv.ParseUint(r.text, 10, 64)
		if err != nil || r.kind != numberKind && r.kind != untyped {
			return nil, wrong
		}
		return v, nil
	case reflect.Float64:
		v, err := strconv.ParseFloat(r.text, 64)
		if err != nil || math.IsInf(v, 0) || math.IsNaN(v) || r.kind != numberKind && r.kind != untyped {
			return nil, wrong
		}
		return v, k.checkLimits(v, r)
	case reflect.Slice:
		return k.parseList(r)
	}
	if r.kind == numberKind || r.kind == boolKind {
		return nil, fmt.Errorf("%s is not text; write %v", r.text, r)
	}
	return r.text, k.checkText(r.text)
}

func parseBool(r rawValue) (any, error) {
	switch {
	case r.kind != untyped && r.kind != boolKind:
	case r.text == "true", r.text == "1":
		return true, nil
	case r.text == "false", r.text == "0":
		return false, nil
	}
	return false, fmt.Errorf("%v is not true or false", r)
}

// parseList reads names in a YAML list or joined by commas.
func (k *key) parseList(r rawValue) (any, error) {
	list := r.list
	if r.kind != listKind {
		if r.text == "" {
			return []string(nil), nil
		}
		list = strings.Split(r.text, ",")
	}
	var names []string
	for _, name := range list {
		name = strings.TrimSpace(name)
		if name == "" || strings.Contains(name, ",") {
			return nil, fmt.Errorf("%v is not %s", r, k.wanted())
		}
		if err := k.checkText(name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}

func (k *key) checkLimits(v float64, r rawValue) error {
	if !k.limits.hold(v) {
		return fmt.Errorf("%s is out of range; it must be %v", r.text, k.limits)
	}
	return nil
}

func (k *key) checkText(s string) error {
	if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
		return fmt.Errorf("%q is not valid UTF-8 text without NUL bytes", s)
	}
	kind, _, _ := strings.Cut(s, ":") // cuda:0 is a cuda
	if why, ok := k.refused[kind]; ok {
		return fmt.Errorf("%s: %s", s, why)
	}
	switch {
	case k.allowed == nil || slices.Contains(k.allowed, s):
		return nil
	case len(k.allowed) == 1:
		return fmt.Errorf("%q: the only choice is %s", s, k.allowed[0])
	}
	return fmt.Errorf("%q is not one of %s%s", s, strings.Join(k.allowed, ", "),
		didYouMean(s, k.allowed, func(s string) string { return s }))
}

// wanted names the key's type in messages.
func (k *key) wanted() string {
	switch k.kind {
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "a whole number"
	case reflect.Uint64:
		return "a whole number from 0"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list of names"
	}
	return "text"
}
