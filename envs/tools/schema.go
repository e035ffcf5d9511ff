package tools

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/words"
)

// types are the types of JSON schema, and what they accept.
var types = map[string]func(value any) bool{
	"string":  func(v any) bool { _, ok := v.(string); return ok },
	"boolean": func(v any) bool { _, ok := v.(bool); return ok },
	"array":   func(v any) bool { _, ok := v.([]any); return ok },
	"object":  func(v any) bool { _, ok := v.(dataset.Object); return ok },
	"null":    func(v any) bool { return v == nil },
	"number":  isNumber,
	"integer": func(v any) bool {
		if f, ok := v.(float64); ok {
			return f == math.Trunc(f)
		}
		return isNumber(v)
	},
}

func isNumber(v any) bool {
	switch v.(type) {
	case int64, float64, json.Number:
		return true
	}
	return false
}

// propertiesOf returns the properties of an object's schema.
func propertiesOf(schema dataset.Object) dataset.Object {
	value, _ := schema.Get("properties")
	properties, _ := value.(dataset.Object)
	return properties
}

// requiredOf returns the names of the required properties.
func requiredOf(schema dataset.Object) (names []string) {
	value, _ := schema.Get("required")
	list, _ := value.([]any)
	for _, one := range list {
		name, _ := one.(string)
		names = append(names, name)
	}
	return names
}

// checkSchema checks the schema of a tool's arguments as far as [checkArguments] reads it.
func checkSchema(schema dataset.Object) error {
	if kind, ok := schema.Get("type"); ok && kind != "object" {
		return errors.New(`type: want "object"`)
	}
	if value, ok := schema.Get("properties"); ok && value != nil && !types["object"](value) {
		return fmt.Errorf("properties: got %s, want an object", dataset.Kind(value))
	}
	properties := propertiesOf(schema)
	for _, f := range properties {
		property, ok := f.Value.(dataset.Object)
		if !ok {
			return fmt.Errorf("properties: %s: got %s, want an object", words.Quote(f.Name), dataset.Kind(f.Value))
		}
		for _, kind := range typesOf(property) {
			if types[kind] == nil {
				return fmt.Errorf("properties: %s: type: unknown type %s", words.Quote(f.Name), words.Quote(kind))
			}
		}
	}
	if value, ok := schema.Get("required"); ok && value != nil && !types["array"](value) {
		return fmt.Errorf("required: got %s, want a list", dataset.Kind(value))
	}
	for _, name := range requiredOf(schema) {
		if _, ok := properties.Get(name); !ok {
			return fmt.Errorf("required: there is no property %s", words.Quote(name))
		}
	}
	return nil
}

// typesOf returns the types that a property's schema allows, nil for all.
func typesOf(property dataset.Object) []string {
	value, _ := property.Get("type")
	switch value := value.(type) {
	case nil:
		return nil
	case []any:
		var names []string
		for _, one := range value {
			name, _ := one.(string)
			names = append(names, name)
		}
		return names
	case string:
		return []string{value}
	}
	return []string{""} // of another kind, so unknown
}

// Accepts returns why arguments do not fit the tool's schema, nil if they do. The error is for the model.
func (t Tool) Accepts(arguments json.RawMessage) error {
	_, err := t.arguments(arguments)
	return err
}

// arguments reads and checks the arguments of a call.
func (t Tool) arguments(data json.RawMessage) (dataset.Object, error) {
	parsed, err := dataset.Parse(string(data))
	if err != nil {
		return nil, fmt.Errorf("arguments: %w", err)
	}
	arguments, ok := parsed.(dataset.Object)
	if !ok {
		return nil, fmt.Errorf("arguments: got %s, want an object", dataset.Kind(parsed))
	}
	return arguments, checkArguments(t.Parameters, arguments)
}

// checkArguments compares arguments with a schema: required and unknown names, and the types and allowed values of each
// property. The error is for the model.
func checkArguments(schema, arguments dataset.Object) error {
	properties := propertiesOf(schema)
	for _, name := range requiredOf(schema) {
		if _, ok := arguments.Get(name); !ok {
			return fmt.Errorf("argument %s is missing", words.Quote(name))
		}
	}
	open, _ := schema.Get("additionalProperties")
	for _, f := range arguments {
		value, ok := properties.Get(f.Name)
		if !ok {
			if open != nil && open != false {
				continue
			}
			if len(properties) == 0 {
				return fmt.Errorf("unknown argument %s; the tool takes none", words.Quote(f.Name))
			}
			return fmt.Errorf("unknown argument %s; arguments are %s", words.Quote(f.Name), words.List(properties.Names()))
		}
		property, _ := value.(dataset.Object)
		if kinds := typesOf(property); kinds != nil && !slices.ContainsFunc(kinds, func(kind string) bool { return types[kind](f.Value) }) {
			return fmt.Errorf("argument %s is %s, want %s", words.Quote(f.Name), dataset.Kind(f.Value), strings.Join(kinds, " or "))
		}
		allowed, _ := property.Get("enum")
		if list, ok := allowed.([]any); ok && !slices.ContainsFunc(list, func(one any) bool { return dataset.Equal(one, f.Value) }) {
			return fmt.Errorf("argument %s is not one of the allowed values", words.Quote(f.Name))
		}
	}
	return nil
}
