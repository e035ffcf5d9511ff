package dataset

import (
	"errors"
	"fmt"
	"io"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"

	"github.com/rltrain/rltrain/internal/words"
)

// column is a node of the schema. Records are assembled from the leaves' values by repetition and definition levels, as in
// S. Melnik et al., "Dremel" (2010), §4.
type column struct {
	name               string
	optional, repeated bool
	rep, def           int // levels of a value of this column
	leaf               *leaf
	children           []*column // of a group
	leaves             []*leaf   // under this node, in order
	shape              shape
}

// shape is the meaning of a group in the schema.
type shape int

const (
	plainShape   shape = iota // an object
	listShape                 // its only child is repeated and is the value
	elementShape              // the repeated group of a list; its only child is the element
	mapShape                  // its only child is a repeated pair
)

// newColumn describes a node and appends its leaves.
func newColumn(node *parquet.Column, leaves *[]*leaf) (*column, error) {
	c := &column{
		name: node.Name(), optional: node.Optional(), repeated: node.Repeated(),
		rep: node.MaxRepetitionLevel(), def: node.MaxDefinitionLevel(),
	}
	before := len(*leaves)
	if node.Leaf() {
		convert, err := converter(node)
		if err != nil {
			return nil, err
		}
		c.leaf = &leaf{name: node.Name(), index: node.Index(), convert: convert}
		*leaves = append(*leaves, c.leaf)
		c.leaves = (*leaves)[before:]
		return c, nil
	}
	seen := map[string]bool{}
	for _, child := range node.Columns() {
		if seen[child.Name()] {
			return nil, fmt.Errorf("field %s occurs twice", words.Quote(child.Name()))
		}
		seen[child.Name()] = true
		inner, err := newColumn(child, leaves)
		if err != nil {
			return nil, err
		}
		c.children = append(c.children, inner)
	}
	c.leaves = (*leaves)[before:len(*leaves):len(*leaves)]
	if len(c.leaves) == 0 {
		return nil, errors.New("structs without fields are not supported")
	}
	c.setShape(node)
	return c, nil
}

// setShape recognises lists and maps, including those of old writers (parquet-format, LogicalTypes.md, "Nested Types").
func (c *column) setShape(node *parquet.Column) {
	logical := node.Type().LogicalType()
	if logical == nil || len(c.children) != 1 || !c.children[0].repeated || c.repeated {
		return
	}
	inner := c.children[0]
	switch logical.Value.(type) {
	case *format.ListType:
		c.shape = listShape
		if inner.leaf == nil && len(inner.children) == 1 && inner.name != "array" && inner.name != c.name+"_tuple" {
			inner.shape = elementShape
		}
	case *format.MapType:
		if len(inner.children) == 2 && inner.children[0].leaf != nil {
			c.shape = mapShape
		}
	}
}

// read returns the next value, which starts at repetition level rep.
func (c *column) read(rep int) (any, error) {
	first := c.leaves[0]
	if !c.optional && !c.repeated {
		return c.once(rep)
	}
	v, ok, err := first.peek()
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, first.short()
	}
	if v.DefinitionLevel() < c.def {
		for _, l := range c.leaves {
			v, err := l.take(rep)
			if err != nil {
				return nil, err
			}
			if v.DefinitionLevel() >= c.def {
				return nil, fmt.Errorf("column %s has a value where %s has none", words.Quote(l.name), words.Quote(first.name))
			}
		}
		if c.repeated {
			return []any{}, nil
		}
		return nil, nil
	}
	if !c.repeated {
		return c.once(rep)
	}
	elements := []any{}
	for {
		element, err := c.once(rep)
		if err != nil {
			return nil, err
		}
		elements = append(elements, element)
		v, ok, err := first.peek()
		if err != nil {
			return nil, err
		}
		if !ok || v.RepetitionLevel() < c.rep {
			return elements, nil
		}
		rep = c.rep
	}
}

// once reads a value that is not null.
func (c *column) once(rep int) (any, error) {
	if c.leaf != nil {
		v, err := c.leaf.take(rep)
		if err != nil {
			return nil, err
		}
		if v.DefinitionLevel() != c.def {
			return nil, fmt.Errorf("column %s: a required value is missing", words.Quote(c.name))
		}
		return c.leaf.convert(v)
	}
	if c.shape == listShape || c.shape == elementShape {
		return c.children[0].read(rep)
	}
	fields := make(Object, len(c.children))
	for i, child := range c.children {
		value, err := child.read(rep)
		if err != nil {
			return nil, err
		}
		fields[i] = Field{child.name, value}
	}
	if c.shape == mapShape {
		return mapOf(fields[0].Value)
	}
	return fields, nil
}

// mapOf converts the pairs of a map to an object.
func mapOf(pairs any) (any, error) {
	fields := Object{}
	seen := map[string]bool{}
	for _, pair := range pairs.([]any) {
		pair := pair.(Object)
		key, ok := pair[0].Value.(string)
		if !ok {
			if number, isInt := pair[0].Value.(int64); isInt {
				key = fmt.Sprint(number)
			} else {
				return nil, &badValue{fmt.Errorf("a map key is %s, want text", Kind(pair[0].Value))}
			}
		}
		if seen[key] {
			return nil, &badValue{fmt.Errorf("duplicate map key %s", words.Quote(key))}
		}
		seen[key] = true
		fields = append(fields, Field{key, pair[1].Value})
	}
	return fields, nil
}

// leaf reads the values of a leaf column with their levels, including nulls.
type leaf struct {
	name    string
	index   int
	convert func(parquet.Value) (any, error)

	pages  parquet.Pages
	page   parquet.Page
	values parquet.ValueReader
	buffer [64]parquet.Value // these refer to the page's memory
	next   int
	filled int
}

// peek returns the next value; ok is false at the end.
func (l *leaf) peek() (v parquet.Value, ok bool, err error) {
	for l.next == l.filled {
		if l.page == nil {
			page, err := l.pages.ReadPage()
			if err == io.EOF {
				return v, false, nil
			}
			if err != nil {
				return v, false, fmt.Errorf("column %s: %w", words.Quote(l.name), err)
			}
			l.page, l.values = page, page.Values()
		}
		n, err := l.values.ReadValues(l.buffer[:])
		if err != nil && err != io.EOF {
			return v, false, fmt.Errorf("column %s: %w", words.Quote(l.name), err)
		}
		l.next, l.filled = 0, n
		if n == 0 {
			l.release()
		}
	}
	return l.buffer[l.next], true, nil
}

// take consumes the next value, which must start at this repetition level.
func (l *leaf) take(rep int) (parquet.Value, error) {
	v, ok, err := l.peek()
	if err != nil {
		return v, err
	}
	if !ok {
		return v, l.short()
	}
	if v.RepetitionLevel() != rep {
		return v, fmt.Errorf("column %s starts a row or an element where the others do not", words.Quote(l.name))
	}
	l.next++
	return v, nil
}

func (l *leaf) short() error {
	return fmt.Errorf("column %s has fewer values than the row group has rows", words.Quote(l.name))
}

func (l *leaf) release() {
	if l.page != nil {
		parquet.Release(l.page)
	}
	l.page, l.values = nil, nil
}

func (l *leaf) close() {
	l.next, l.filled = 0, 0
	clear(l.buffer[:])
	l.release()
	if l.pages != nil {
		l.pages.Close()
		l.pages = nil
	}
}
