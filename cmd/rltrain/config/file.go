package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
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
		switch {
		case isRouter && name == "classifier":
			continue
		case isName(name):
			if err := r.add(name, at, pairs.Value()); err != nil {
				return nil, nil, err
			}
		case isRouter && (isSection || isList || nearest.Name(name, names()) == "" && whyRefused(name) == ""):
			r.skipped = append(r.skipped, name)
		default:
			return nil, nil, unknownName(at+": unknown key "+name, name, plain)
		}
	}
	if isRouter {
		if err := r.section(classifier); err != nil {
			return nil, nil, err
		}
	}
	return r.entries, r.skipped, nil
}

// fileReader collects the entries of one file.
type fileReader struct {
	path    string
	entries []entry
	skipped []string
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
				return usagef("%s: unknown key %s%s", at, full, nearest.Hint(name, routerKeys(), nil))
			}
			if err := r.add(full, at, pairs.Value()); err != nil {
				return err
			}
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

// add appends the entry of one pair.
func (r *fileReader) add(name, at string, node ast.Node) error {
	source := Source{Layer: File, Name: name, Position: at}
	value, err := scalar(node)
	if list, ok := node.(*ast.SequenceNode); ok {
		value.Syntax, err = options.List, nil
		for _, item := range list.Values {
			v, itemErr := scalar(item)
			if itemErr != nil {
				err = itemErr
			}
			value.List = append(value.List, v.Text)
		}
	}
	if err != nil {
		return source.errorf("%v", err)
	}
	r.entries = append(r.entries, entry{name: name, value: value, source: source})
	return nil
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
		return options.Value{}, errors.New("has no value; add one or remove the key")
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
