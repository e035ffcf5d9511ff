package chat

import (
	"errors"
	"fmt"

	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/words"
)

// toolCalls reads the calls of a message: a list, or a list in JSON. A call is {"function": {"name", "arguments"}} or {"name",
// "arguments"}. Arguments in a string, as OpenAI's API has them, become the object that chat templates read.
func toolCalls(value any) (any, error) {
	if text, ok := value.(string); ok {
		parsed, err := dataset.Parse(text)
		if err != nil {
			return nil, err
		}
		value = parsed
	}
	list, ok := value.([]any)
	if !ok {
		return nil, fmt.Errorf("got %s, want a list", dataset.Kind(value))
	}
	calls := make([]any, len(list))
	for i, value := range list {
		call, err := toolCall(value)
		if err != nil {
			return nil, fmt.Errorf("call %d: %w", i+1, err)
		}
		calls[i] = call
	}
	return calls, nil
}

func toolCall(value any) (dataset.Object, error) {
	call, ok := value.(dataset.Object)
	if !ok {
		return nil, fmt.Errorf("got %s, want an object", dataset.Kind(value))
	}
	described, _ := call.Get("function")
	if described == nil {
		return withArguments(call)
	}
	function, ok := described.(dataset.Object)
	if !ok {
		return nil, fmt.Errorf("function: got %s, want an object", dataset.Kind(described))
	}
	function, err := withArguments(function)
	if err != nil {
		return nil, fmt.Errorf("function: %w", err)
	}
	return call.With("function", function), nil
}

// withArguments checks {"name", "arguments"} and converts the arguments to an object.
func withArguments(function dataset.Object) (dataset.Object, error) {
	value, _ := function.Get("name")
	if name, ok := value.(string); !ok || name == "" {
		return nil, fmt.Errorf("name: got %s, want the name of a tool; fields are %s", dataset.Kind(value), words.List(function.Names()))
	}
	arguments, _ := function.Get("arguments")
	switch text := arguments.(type) {
	case nil, dataset.Object:
		return function, nil
	case string:
		if text == "" { // some servers send it for calls without arguments
			return function.With("arguments", dataset.Object{}), nil
		}
		parsed, err := dataset.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("arguments: %w", err)
		}
		if object, ok := parsed.(dataset.Object); ok {
			return function.With("arguments", object), nil
		}
		arguments = parsed
	}
	return nil, fmt.Errorf("arguments: got %s, want an object", dataset.Kind(arguments))
}

// functionCalls reads the text of ShareGPT's function_call: {"name", "arguments"} in JSON, or a list of them.
func functionCalls(text string) ([]any, error) {
	value, err := dataset.Parse(text)
	if err != nil {
		return nil, err
	}
	list, ok := value.([]any)
	if !ok {
		list = []any{value}
	}
	if len(list) == 0 {
		return nil, errors.New("the list of calls is empty; want a call with name and arguments")
	}
	calls := make([]any, len(list))
	for i, value := range list {
		call, _ := value.(dataset.Object)
		name, _ := call.Get("name")
		arguments, ok := call.Get("arguments")
		if !ok {
			return nil, fmt.Errorf("got %s, want an object with name and arguments", dataset.Kind(value))
		}
		function, err := withArguments(dataset.Object{{Name: "name", Value: name}, {Name: "arguments", Value: arguments}})
		if err != nil {
			return nil, err
		}
		calls[i] = dataset.Object{{Name: "type", Value: "function"}, {Name: "function", Value: function}}
	}
	return calls, nil
}
