package openenv

import (
	"errors"
	"fmt"
	"strings"

	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/words"
)

// form is how completions become actions.
type form struct {
	tools bool   // tool calls do
	field string // the field that a completion fills; "" = a completion is a JSON object with the action's fields
	text  bool   // the field takes the completion's text; else its JSON value
	names []string
}

// formOf reads the JSON schema of an environment's actions. If one field is required, or there is only one, completions
// fill it.
func formOf(schema dataset.Object) (form, error) {
	properties, err := objectOf(schema, "properties")
	if err != nil {
		return form{}, err
	}
	var f form
	var needed []string
	required, _ := schema.Get("required")
	list, _ := required.([]any)
	for _, p := range properties {
		if p.Name == "metadata" {
			continue
		}
		f.names = append(f.names, p.Name)
		for _, name := range list {
			if name == p.Name {
				needed = append(needed, p.Name)
			}
		}
	}
	_, named := properties.Get("tool_name")
	_, given := properties.Get("arguments")
	if f.tools = len(f.names) == 0 || named && given; f.tools {
		return f, nil
	}
	if len(f.names) == 1 {
		needed = f.names
	}
	if len(needed) != 1 {
		return f, nil
	}
	f.field = needed[0]
	property, err := objectOf(properties, f.field)
	if err != nil {
		return f, fmt.Errorf("properties: %w", err)
	}
	defs, err := objectOf(schema, "$defs")
	f.text = takesText(property, defs, 8)
	return f, err
}

// objectOf is a field that is an object, or missing.
func objectOf(o dataset.Object, name string) (dataset.Object, error) {
	value, _ := o.Get(name)
	object, ok := value.(dataset.Object)
	if !ok && value != nil {
		return nil, fmt.Errorf("%s: got %s, want an object", name, dataset.Kind(value))
	}
	return object, nil
}

// takesText reports whether a JSON schema accepts texts. It follows references to defs, depth of them at most.
func takesText(schema, defs dataset.Object, depth int) bool {
	if depth == 0 {
		return false
	}
	if name, ok := strings.CutPrefix(textOf(schema, "$ref"), "#/$defs/"); ok {
		schema, _ = objectOf(defs, name)
		return takesText(schema, defs, depth-1)
	}
	for _, key := range []string{"anyOf", "oneOf"} {
		options, _ := schema.Get(key)
		list, _ := options.([]any)
		for _, one := range list {
			if option, ok := one.(dataset.Object); ok && takesText(option, defs, depth-1) {
				return true
			}
		}
		if list != nil {
			return false
		}
	}
	kind, ok := schema.Get("type")
	return !ok || kind == "string"
}

// action is a completion as an action. The error is one for the model.
func (f form) action(text string) (dataset.Object, error) {
	if f.text {
		return dataset.Object{{Name: f.field, Value: text}}, nil
	}
	text = strings.TrimSpace(text)
	if fenced, ok := strings.CutPrefix(text, "```"); ok {
		_, fenced, _ = strings.Cut(fenced, "\n")
		text = strings.TrimSuffix(fenced, "```")
	}
	value, err := dataset.Parse(text)
	if f.field != "" {
		if err != nil {
			return nil, errors.New("the message is not a JSON value")
		}
		return dataset.Object{{Name: f.field, Value: value}}, nil
	}
	action, ok := value.(dataset.Object)
	if err != nil || !ok {
		return nil, fmt.Errorf("the message is not a JSON object with %s", words.List(f.names))
	}
	return action, nil
}
