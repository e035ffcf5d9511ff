package tools

import (
	"fmt"

	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/words"
)

// longestName is the longest name of a tool, in bytes.
const longestName = 128

// isName reports whether a tool can have this name: 1 to longestName ASCII letters, digits and characters of "_-./:".
func isName(name string) bool {
	for _, c := range []byte(name) {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.' || c == '/' || c == ':') {
			return false
		}
	}
	return name != "" && len(name) <= longestName
}

// Names checks descriptions of tools in OpenAI's format, {"type": "function", "function": {"name", "description", "parameters"}},
// and returns the names in their order. Errors name the tool by its number and the field.
func Names(list []any) (names []string, err error) {
	seen := map[string]bool{}
	for i, value := range list {
		name, err := nameOf(value)
		if err != nil {
			return nil, fmt.Errorf("tool %d: %w", i+1, err)
		}
		if seen[name] {
			return nil, fmt.Errorf("tool %d: duplicate name %s", i+1, words.Quote(name))
		}
		seen[name] = true
		names = append(names, name)
	}
	return names, nil
}

func nameOf(value any) (string, error) {
	tool, ok := value.(dataset.Object)
	if !ok {
		return "", fmt.Errorf("got %s, want an object", dataset.Kind(value))
	}
	if kind, _ := tool.Get("type"); kind != "function" {
		return "", fmt.Errorf("type: want \"function\"")
	}
	described, _ := tool.Get("function")
	function, ok := described.(dataset.Object)
	if !ok {
		return "", fmt.Errorf("function: got %s, want an object", dataset.Kind(described))
	}
	for _, f := range function {
		ok := true
		want := ""
		switch f.Name {
		case "name":
		case "description":
			_, ok = f.Value.(string)
			want = "a string"
		case "parameters":
			_, ok = f.Value.(dataset.Object)
			want = "a JSON schema, which is an object"
		case "strict":
			ok = f.Value == nil || f.Value == false
			want = "false; generation is not constrained to a schema"
		default:
			return "", fmt.Errorf("function: %s is not supported", words.Quote(f.Name))
		}
		if !ok {
			return "", fmt.Errorf("function.%s: want %s", f.Name, want)
		}
	}
	named, _ := function.Get("name")
	name, _ := named.(string)
	if !isName(name) {
		return "", fmt.Errorf("function.name: got %s, want 1 to %d letters, digits or characters of \"_-./:\"", words.Quote(name), longestName)
	}
	return name, nil
}
