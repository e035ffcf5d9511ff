package tools

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/words"
)

// Tool is a tool that models can call in episodes.
type Tool struct {
	Name, Description string
	Parameters        dataset.Object // JSON schema of the arguments, which are an object
	// Run is cmd:PROGRAM ARGS, python, the URL of a server, or mcp: and the command or URL of an MCP server, of which a tool
	// without a name is all tools.
	Run string
}

// Prefixes and values of Tool.Run.
const (
	command = "cmd:"
	python  = "python"
)

// defaults of a tool that runs Python.
var (
	pythonDescription = "Runs a Python program and returns what it prints."
	pythonParameters  = dataset.Object{
		{Name: "type", Value: "object"},
		{Name: "properties", Value: dataset.Object{{Name: "code", Value: dataset.Object{{Name: "type", Value: "string"}, {Name: "description", Value: "the program"}}}}},
		{Name: "required", Value: []any{"code"}},
	}
)

// Read reads a file of tools: a JSON list of {"name", "description", "parameters", "run"}. Errors name file, line and field.
func Read(path string) (all []Tool, err error) {
	for r, err := range dataset.Records(path) {
		if err != nil {
			return nil, err
		}
		tool, err := toolOf(r.Fields)
		if err == nil && tool.Name != "" && slices.ContainsFunc(all, func(other Tool) bool { return other.Name == tool.Name }) {
			err = fmt.Errorf("name: a second tool %s", words.Quote(tool.Name))
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.Place(), err)
		}
		all = append(all, tool)
	}
	if all == nil {
		return nil, fmt.Errorf("%s: no tools", path)
	}
	return all, nil
}

func toolOf(fields dataset.Object) (t Tool, err error) {
	for _, f := range fields {
		switch f.Name {
		case "name", "description", "run":
			text, ok := f.Value.(string)
			if !ok && f.Value != nil {
				return t, fmt.Errorf("%s: got %s, want a string", f.Name, dataset.Kind(f.Value))
			}
			*map[string]*string{"name": &t.Name, "description": &t.Description, "run": &t.Run}[f.Name] = text
		case "parameters":
			var ok bool
			if t.Parameters, ok = f.Value.(dataset.Object); !ok && f.Value != nil {
				return t, fmt.Errorf("parameters: got %s, want a JSON schema, which is an object", dataset.Kind(f.Value))
			}
		default:
			return t, fmt.Errorf("unknown field %s; want name, description, parameters and run", words.Quote(f.Name))
		}
	}
	where, ofServer := strings.CutPrefix(t.Run, modelContext)
	if !isName(t.Name) && (t.Name != "" || !ofServer) {
		return t, fmt.Errorf("name: got %s, want 1 to %d letters, digits or characters of \"_-./:\"", words.Quote(t.Name), longestName)
	}
	if !ofServer {
		where = t.Run
	}
	if err := checkRun(where); err != nil || ofServer && where == python {
		return t, fmt.Errorf("run: %w", cmp.Or(err, errors.New("want mcp:cmd:PROGRAM or mcp:http://HOST/PATH")))
	}
	if ofServer {
		if t.Parameters == nil {
			return t, nil // the server describes it
		}
		return t, inField("parameters", checkSchema(t.Parameters))
	}
	if t.Run == python && t.Parameters == nil {
		t.Parameters = pythonParameters
	}
	if t.Run == python && t.Description == "" {
		t.Description = pythonDescription
	}
	if t.Parameters == nil {
		t.Parameters = dataset.Object{{Name: "type", Value: "object"}, {Name: "properties", Value: dataset.Object{}}}
	}
	if err := checkSchema(t.Parameters); err != nil {
		return t, inField("parameters", err)
	}
	if _, ok := propertiesOf(t.Parameters).Get("code"); t.Run == python && !ok {
		return t, errors.New("parameters: a tool that runs python needs the property code, its program")
	}
	return t, nil
}

func inField(name string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func checkRun(run string) error {
	if line, ok := strings.CutPrefix(run, command); ok {
		if strings.TrimSpace(line) == "" {
			return errors.New("cmd: names no program")
		}
		return nil
	}
	if run == python {
		return nil
	}
	address, err := url.Parse(run)
	if err != nil || address.Scheme != "http" && address.Scheme != "https" || address.Host == "" {
		return fmt.Errorf("got %s, want cmd:PROGRAM, python, http://HOST/PATH, or mcp: before a program or an address", words.Quote(run))
	}
	return nil
}

// Described is the tool as chat templates and OpenAI's API describe it.
func (t Tool) Described() dataset.Object {
	return dataset.Object{{Name: "type", Value: "function"}, {Name: "function", Value: dataset.Object{
		{Name: "name", Value: t.Name}, {Name: "description", Value: t.Description}, {Name: "parameters", Value: t.Parameters},
	}}}
}

// Called is a call as chat templates and messages have it.
func Called(id, name, arguments any) dataset.Object {
	return dataset.Object{{Name: "id", Value: id}, {Name: "type", Value: "function"}, {Name: "function", Value: dataset.Object{
		{Name: "name", Value: name}, {Name: "arguments", Value: arguments}}}}
}
