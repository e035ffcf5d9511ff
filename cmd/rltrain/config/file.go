package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/rltrain/rltrain/internal/nearest"
	"github.com/rltrain/rltrain/internal/options"
	"github.com/rltrain/rltrain/internal/yamldepth"
)

// maxFileSize is far above any configuration; it keeps a data file given by mistake from being parsed.
const maxFileSize = 1 << 18

// readFile reads the settings of a YAML file; see parseFile.
func readFile(path string) (entries []entry, skipped []string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the configuration: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err != nil {
		return nil, nil, fmt.Errorf("reading the configuration: %w", err)
	}
	if len(data) > maxFileSize {
		return nil, nil, usagef("%s: configuration files are limited to %d bytes", path, maxFileSize)
	}
	return parseFile(path, data)
}

// parseFile reads one of two shapes. A flat file maps keys to values and an unknown key is an error. A router's file has
// a section classifier.rl_training, of which every key must be known; beside it, flat keys are read too, and what belongs
// to the router is skipped and listed: other parts of classifier, and top-level names that are far from every key of ours.
func parseFile(path string, data []byte) (entries []entry, skipped []string, err error) {
	r := fileReader{path: path}
	root, err := r.root(data)
	if err != nil {
		return nil, nil, err
	}
	classifier, isRouter, err := r.classifier(root)
	if err != nil {
		return nil, nil, err
	}
	pairs := root.MapRange()
	for pairs.Next() {
		at, name := r.key(pairs.Key())
		_, isSection := pairs.Value().(ast.MapNode)
		_, isList := pairs.Value().(*ast.SequenceNode)
		// A router has tools of its own.
		theirs := isRouter && (isSection || isList) && (ruleOf(name) != nil || name == "tools")
		switch {
		case isRouter && name == "classifier":
			continue
		case isName(name) && !theirs:
			r.found.add(r.add(name, at, pairs.Value()))
		case isRouter && (isSection || isList || nearest.Name(name, names()) == ""):
			r.skipped = append(r.skipped, name)
		default:
			r.found.add(unknownName(at+": unknown key "+name, name, plain))
		}
	}
	if isRouter {
		r.found.add(r.section(classifier))
	}
	return r.entries, r.skipped, r.found.err()
}

// fileReader collects the entries of one file.
type fileReader struct {
	path    string
	entries []entry
	skipped []string
	found   faults
}

// root parses the file into its one top-level mapping.
func (r *fileReader) root(data []byte) (ast.MapNode, error) {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if err := yamldepth.Check(data); err != nil {
		return ast.MapNode(nil), usagef("%s: %v", r.path, err)
	}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return nil, r.syntaxError(err)
	}
	var roots []ast.Node
	for _, doc := range file.Docs {
		if doc.Body != nil && doc.Body.Type() != ast.CommentType {
			roots = append(roots, doc.Body)
		}
	}
	switch len(roots) {
	case 0:
		return nil, usagef("%s: no settings", r.path)
	case 1:
	default:
		return nil, usagef("%s: %d YAML documents; use one", r.path, len(roots))
	}
	root, ok := roots[0].(ast.MapNode)
	if !ok {
		return nil, usagef("%s: write settings as key: value", r.at(roots[0].GetToken()))
	}
	return root, nil
}

// classifier finds the section of a router's file that holds rl_training.
func (r *fileReader) classifier(root ast.MapNode) (section ast.MapNode, isRouter bool, err error) {
	pairs := root.MapRange()
	for pairs.Next() {
		at, name := r.key(pairs.Key())
		if name != "classifier" {
			continue
		}
		section, ok := pairs.Value().(ast.MapNode)
		if !ok {
			return nil, false, usagef("%s: classifier: needs a section rl_training", at)
		}
		parts := section.MapRange()
		for parts.Next() {
			if _, name := r.key(parts.Key()); name == "rl_training" {
				return section, true, nil
			}
		}
		return nil, false, usagef("%s: classifier: needs a section rl_training, the only one that is read", at)
	}
	return nil, false, nil
}

// section reads classifier.rl_training and lists the other parts of classifier as skipped.
func (r *fileReader) section(classifier ast.MapNode) error {
	parts := classifier.MapRange()
	for parts.Next() {
		at, name := r.key(parts.Key())
		if name != "rl_training" {
			r.skipped = append(r.skipped, "classifier."+name)
			continue
		}
		training, ok := parts.Value().(ast.MapNode)
		if !ok {
			return usagef("%s: classifier.rl_training: needs keys such as enabled, learning_rate and reward_metric", at)
		}
		pairs := training.MapRange()
		for pairs.Next() {
			at, name := r.key(pairs.Key())
			full := routerSection + name
			if aliasByName[full] == nil {
				r.found.add(usagef("%s: unknown key %s%s", at, full, nearest.Hint(name, routerKeys(), nil)))
				continue
			}
			r.found.add(r.add(full, at, pairs.Value()))
		}
	}
	return nil
}

func routerKeys() []string {
	var list []string
	for _, a := range aliases {
		if name, ok := strings.CutPrefix(a.name, routerSection); ok {
			list = append(list, name)
		}
	}
	return list
}

func plain(name string) string { return name }

// key returns the position and the canonical name of a mapping key.
func (r *fileReader) key(node ast.MapKeyNode) (at, name string) {
	t := node.GetToken()
	return r.at(t), canonical(t.Value)
}

// add appends the entry of one pair, or the entries of a section whose keys are settings.
func (r *fileReader) add(name, at string, node ast.Node) error {
	source := Source{Layer: File, Name: name, Position: at}
	if section, ok := node.(ast.MapNode); ok && isSection(name) {
		return r.addSection(name, section)
	}
	if read := mixtures[name]; read != nil && node.Type() != ast.NullType {
		if err := read(r, source, node); err != nil {
			return source.errorf("%v", err)
		}
		return nil
	}
	value, err := nodeValue(node)
	if _, ok := node.(ast.MapNode); ok && slices.Contains(jsonValues, name) {
		value, err = jsonValue(node)
	}
	if rule := ruleOf(name); rule != nil && err != nil {
		if _, isMap := node.(ast.MapNode); rule.any || isMap && emptySection(node) {
			value, err = options.Value{Syntax: options.Null}, nil
		} else {
			err = errors.New(rule.why)
		}
	}
	if err != nil {
		return source.errorf("%v", err)
	}
	r.entries = append(r.entries, entry{name: name, value: value, source: source})
	return nil
}

// addSection reads the keys of a section, each a setting.
func (r *fileReader) addSection(name string, section ast.MapNode) error {
	pairs := section.MapRange()
	for pairs.Next() {
		at, key := r.key(pairs.Key())
		if full := insideSection(name, key); full == "" {
			r.found.add(unknownName(at+": unknown key "+name+"."+key, key, plain))
		} else {
			r.found.add(r.add(full, at, pairs.Value()))
		}
	}
	return nil
}

// jsonValues are options whose value is a JSON object, which a file may write as a section.
var jsonValues = []string{"chat_template_kwargs"}

func jsonValue(node ast.Node) (options.Value, error) {
	text, err := yaml.YAMLToJSON([]byte(node.String()))
	return options.Value{Text: strings.TrimSpace(string(text))}, err
}

func emptySection(node ast.Node) bool {
	section, ok := node.(ast.MapNode)
	return ok && !section.MapRange().Next()
}

// nodeValue reads a value or a list of them.
func nodeValue(node ast.Node) (options.Value, error) {
	list, ok := node.(*ast.SequenceNode)
	if !ok {
		return scalar(node)
	}
	value := options.Value{Syntax: options.List}
	for _, item := range list.Values {
		v, err := scalar(item)
		if err == nil && v.Syntax == options.Null {
			err = errors.New("has an item without a value")
		}
		if err != nil {
			return value, err
		}
		value.List = append(value.List, v.Text)
	}
	return value, nil
}

// sections are names whose value is a section of settings, and what its keys are called here.
var sections = map[string]map[string]string{
	"model_init_kwargs":   {"dtype": "dtype", "torch_dtype": "dtype", "revision": "model_revision", "attn_implementation": "attn_implementation", "use_cache": "use_cache", "trust_remote_code": "trust_remote_code"},
	"generation_kwargs":   {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p", "repetition_penalty": "repetition_penalty", "max_new_tokens": "max_new_tokens"},
	"lr_scheduler_kwargs": {"min_lr_rate": "min_lr_rate", "min_lr": "min_lr"},
}

func isSection(name string) bool { return sections[name] != nil }

// insideSection is the name of a section's key; "" if it has none.
func insideSection(section, key string) string { return sections[section][key] }

// sectionOf reads a section that was given as text, such as {"dtype": "bfloat16"}.
func sectionOf(name, text string, source Source) ([]entry, error) {
	file, err := parser.ParseBytes([]byte(text), 0)
	if err != nil || len(file.Docs) != 1 {
		return nil, source.errorf("%q is not a section such as {\"key\": value}", text)
	}
	section, ok := file.Docs[0].Body.(ast.MapNode)
	if !ok {
		return nil, source.errorf("%q is not a section such as {\"key\": value}", text)
	}
	r := fileReader{path: source.Name}
	r.found.add(r.addSection(name, section))
	for i := range r.entries {
		r.entries[i].source = Source{Layer: source.Layer, Name: source.Name + " " + r.entries[i].name}
	}
	return r.entries, r.found.err()
}

// scalar reads a value and what its syntax says about its type.
func scalar(node ast.Node) (options.Value, error) {
	switch n := node.(type) {
	case *ast.StringNode:
		if n.Token.Type == token.StringType {
			return options.Value{Syntax: options.Untyped, Text: n.Value}, nil
		}
		return options.Value{Syntax: options.Text, Text: n.Value}, nil
	case *ast.LiteralNode:
		return options.Value{Syntax: options.Text, Text: n.Value.Value}, nil
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return options.Value{Syntax: options.Number, Text: n.GetToken().Value}, nil
	case *ast.BoolNode:
		return options.Value{Syntax: options.Bool, Text: n.GetToken().Value}, nil
	case *ast.NullNode:
		return options.Value{Syntax: options.Null}, nil
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode:
		return options.Value{}, errors.New("anchors, aliases and tags are not supported; write the value")
	}
	return options.Value{}, errors.New("must be a value or a list, not a section")
}

func (r *fileReader) at(t *token.Token) string {
	if t == nil || t.Position == nil {
		return r.path
	}
	return fmt.Sprintf("%s:%d:%d", r.path, t.Position.Line, t.Position.Column)
}

// syntaxError puts the parser's complaint, which spans lines and shows the source, on one line.
func (r *fileReader) syntaxError(err error) error {
	var positioned yaml.Error
	if !errors.As(err, &positioned) {
		return usagef("%s: %v", r.path, err)
	}
	return usagef("%s: %s", r.at(positioned.GetToken()), positioned.GetMessage())
}
