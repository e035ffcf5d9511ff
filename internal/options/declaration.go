package options

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
)

// Declaration is the content of a field's tags.
type Declaration struct {
	Help       string
	Arg        string // placeholder in the help text; empty only for a bool
	Kind       reflect.Kind
	Allowed    []string
	Range      Range
	Incidental bool
	PerCommand bool
	Extends    bool
	Common     bool

	name, group string
	needs       []condition
	start       any
}

// declarations caches parsed tags by struct and field, because a program reads the same ones often.
var declarations sync.Map

type fieldOf struct {
	in reflect.Type
	i  int
}

func declarationOf(in reflect.Type, i int) (*Declaration, error) {
	if d, ok := declarations.Load(fieldOf{in, i}); ok {
		return d.(*Declaration), nil
	}
	d, err := newDeclaration(in.Field(i))
	if err == nil {
		declarations.Store(fieldOf{in, i}, d)
	}
	return d, err
}

func newDeclaration(field reflect.StructField) (*Declaration, error) {
	tag := field.Tag
	d := &Declaration{
		Help: tag.Get("help"), Arg: tag.Get("arg"), Kind: field.Type.Kind(), name: tag.Get("option"), group: tag.Get("group"),
		Incidental: tag.Get("incidental") == "true", PerCommand: tag.Get("percommand") == "true", Extends: tag.Get("extends") == "true",
		Common: tag.Get("common") == "true",
	}
	if d.Arg == "" {
		d.Arg = map[reflect.Kind]string{reflect.Int: "N", reflect.Uint64: "N", reflect.Float64: "X", reflect.String: "NAME", reflect.Slice: "A,B,..."}[d.Kind]
	}
	if d.Arg == "" && d.Kind != reflect.Bool || d.Kind == reflect.Slice && field.Type.Elem().Kind() != reflect.String {
		return nil, fmt.Errorf("an option cannot be of type %v", field.Type)
	}
	if d.name == "" || d.Help == "" {
		return nil, errors.New("the name of the option or its help is missing")
	}
	if allowed := tag.Get("allowed"); allowed != "" {
		d.Allowed = strings.Split(allowed, ",")
	}
	var err error
	if d.Range, err = ParseRange(tag.Get("range")); err != nil {
		return nil, err
	}
	if d.needs, err = parseNeeds(tag.Get("needs")); err != nil {
		return nil, err
	}
	zero := &Option{Declaration: *d, value: reflect.Zero(field.Type)}
	d.start = zero.Get()
	if start, given := tag.Lookup("default"); given {
		if d.start, err = zero.Parse(Value{Text: start}); err != nil {
			return nil, fmt.Errorf("default: %w", err)
		}
	}
	return d, nil
}
