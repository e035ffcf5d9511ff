package options

import (
	"fmt"
	"reflect"
	"strings"
)

// Option is one declared option and the field that holds its value.
type Option struct {
	Declaration
	Name  string // with the prefixes of the enclosing fields
	Group string

	prefix string
	outer  []condition // of the enclosing fields
	start  any         // the default
	value  reflect.Value
}

// Set is the options of some structs, in field order.
type Set struct {
	list   []*Option
	byName map[string]*Option
	facts  map[string]string // by name; "" if the fact holds, else what is missing
	keep   bool              // options keep their values, and conditions on names missing in the set hold
}

// Read finds the options of structs, given by pointers, and sets each to its default. An error is a mistake in a
// declaration: an unreadable tag, or a duplicate name.
func Read(structs ...any) (*Set, error) {
	s := &Set{byName: map[string]*Option{}}
	return s, s.readAll(structs)
}

// MustRead is Read for declarations that are part of the program: it panics if one is wrong.
func MustRead(structs ...any) *Set {
	s, err := Read(structs...)
	if err != nil {
		panic(err)
	}
	return s
}

// Defaults sets the options of structs, given by pointers, to their defaults. It panics if a declaration cannot be read.
func Defaults(structs ...any) { MustRead(structs...) }

// Check returns an error if an option of structs, given by pointers, is out of range or not an allowed value. An empty
// text means the default. Options that do not apply are not checked.
func Check(structs ...any) error {
	s := &Set{byName: map[string]*Option{}, keep: true}
	if err := s.readAll(structs); err != nil {
		return err
	}
	for _, o := range s.list {
		v := Value{Text: fmt.Sprint(o.Get())}
		switch value := o.Get().(type) {
		case []string:
			v = Value{Syntax: List, List: value}
		case string:
			if v.Syntax = Text; value == "" {
				continue
			}
		}
		if _, err := o.Parse(v); err != nil && s.Applies(o) {
			return fmt.Errorf("%s: %w", o.Name, err)
		}
	}
	return nil
}

func (s *Set) readAll(structs []any) error {
	for _, one := range structs {
		v := reflect.ValueOf(one)
		if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
			return fmt.Errorf("options: %T is no pointer to a struct", one)
		}
		if err := s.read(v.Elem(), outer{}); err != nil {
			return fmt.Errorf("options: %T: %w", one, err)
		}
	}
	return nil
}

// outer is the tags of the enclosing fields.
type outer struct {
	prefix, group string
	needs         []condition
	defaults      map[string]string // by the names inside
}

func (s *Set) read(v reflect.Value, o outer) error {
	for i := range v.NumField() {
		field, value := v.Type().Field(i), v.Field(i)
		if !field.IsExported() && !field.Anonymous {
			continue
		}
		if _, ok := field.Tag.Lookup("option"); ok {
			option, err := newOption(v.Type(), i, value, o)
			if err == nil && !s.keep {
				option.Set(option.start)
			}
			if err == nil && s.byName[option.Name] != nil {
				err = fmt.Errorf("the name %s occurs twice", option.Name)
			}
			if err != nil {
				return fmt.Errorf("field %s: %w", field.Name, err)
			}
			s.list = append(s.list, option)
			s.byName[option.Name] = option
			continue
		}
		for (value.Kind() == reflect.Interface || value.Kind() == reflect.Pointer) && !value.IsNil() {
			value = value.Elem()
		}
		if value.Kind() != reflect.Struct {
			continue
		}
		inner, err := o.enter(field.Tag)
		if err == nil {
			err = s.read(value, inner)
		}
		if err != nil {
			return fmt.Errorf("field %s: %w", field.Name, err)
		}
	}
	return nil
}

// enter adds the tags of a field that contains further options.
func (o outer) enter(tag reflect.StructTag) (outer, error) {
	if group := tag.Get("group"); group != "" {
		o.group = group
	}
	needs, err := parseNeeds(tag.Get("needs"))
	if err != nil {
		return o, err
	}
	o.needs = append(o.needs[:len(o.needs):len(o.needs)], needs...)
	prefix := tag.Get("prefix")
	defaults := map[string]string{}
	for name, value := range o.defaults { // tags of outer fields win
		if inside, ok := strings.CutPrefix(name, prefix); ok {
			defaults[inside] = value
		}
	}
	if list := tag.Get("defaults"); list != "" {
		for _, pair := range strings.Split(list, ",") {
			name, value, ok := strings.Cut(pair, "=")
			if !ok {
				return o, fmt.Errorf("defaults %q: %q is not name=value", list, pair)
			}
			if _, set := defaults[name]; !set {
				defaults[name] = value
			}
		}
	}
	o.prefix, o.defaults = o.prefix+prefix, defaults
	return o, nil
}

func newOption(in reflect.Type, i int, value reflect.Value, o outer) (*Option, error) {
	declared, err := declarationOf(in, i)
	if err != nil {
		return nil, err
	}
	option := &Option{Declaration: *declared, Name: o.prefix + declared.name, Group: o.group, prefix: o.prefix, outer: o.needs, value: value}
	if declared.group != "" {
		option.Group = declared.group
	}
	option.start = declared.start
	if start, given := o.defaults[declared.name]; given {
		if option.start, err = option.Parse(Value{Text: start}); err != nil {
			return nil, fmt.Errorf("default: %w", err)
		}
	}
	return option, nil
}

// All lists the options in field order.
func (s *Set) All() []*Option { return s.list }

// Find returns the option of that name, or nil.
func (s *Set) Find(name string) *Option { return s.byName[name] }

// Fact lets conditions name something other than an option: whether it holds, and the text that completes "applies
// only" if not.
func (s *Set) Fact(name string, holds bool, missing string) {
	if holds {
		missing = ""
	}
	if s.facts == nil {
		s.facts = map[string]string{}
	}
	s.facts[name] = missing
}

// Get returns the option's current value.
func (o *Option) Get() any {
	if o.Kind == reflect.String {
		return o.value.String() // whatever the field's named type
	}
	return o.value.Interface()
}

// Default returns the option's default.
func (o *Option) Default() any { return o.start }

// Set changes the value; v comes from Parse.
func (o *Option) Set(v any) { o.value.Set(reflect.ValueOf(v).Convert(o.value.Type())) }

// Flag returns the option as written on a command line.
func Flag(name string) string { return "--" + strings.ReplaceAll(name, "_", "-") }
