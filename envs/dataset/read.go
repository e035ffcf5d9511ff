package dataset

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/internal/words"
)

// Names of splits, as in Row.Split.
const (
	Train = "train"
	Val   = "val"
	Test  = "test"
)

// Row is a labelled text.
type Row struct {
	Text  string // valid UTF-8 without NUL, not blank
	Label string // as in the file; integers as decimal text, booleans as true and false
	Class int    // place of Label in the file's list of classes, 1-based; 0 if the file has none
	Split string // Train, Val or Test; "" if the file has no split column
	File  string // path passed to Read
	Line  int    // first line of the row, 1-based
}

// Columns names the columns to read. Other columns are ignored.
type Columns struct {
	Text  string // "" means "text"
	Label string // "" means "label"
	// Split names the column with train, val (or validation) or test. "" means "split" if the file has that column; a
	// column named here must exist.
	Split string
}

// Read returns the rows of a file in file order; see Records for the formats.
//
// The text must be a string, the label a string, an integer or a boolean; the number of a class whose name the file knows
// becomes the name. Anything else is a one-line error with file, line and column: a missing column, a null, a blank text or
// label, a split column with other values or gaps, a file without rows, and whatever Records refuses.
func Read(path string, cols Columns) ([]Row, error) {
	var faults Faults
	rows, err := Reader{}.Rows([]Part{{Train, []string{path}}}, cols, &faults)
	if err == nil {
		err = faults.Err()
	}
	if err != nil {
		return nil, err
	}
	return rows, nil
}

// Rows reads the files of several parts in order. With several parts, each row gets the split of its part; with one,
// the split column decides. Rows that cannot be used are left out and added to faults, whose Err the caller checks.
func (f Reader) Rows(parts []Part, cols Columns, faults *Faults) ([]Row, error) {
	c := newCollector(cols)
	c.faults = faults
	if len(parts) > 1 && c.needSplit {
		return nil, fmt.Errorf("column %s: the data set already has files for the splits %s and %s; drop --split-column", words.Quote(c.cols.Split), parts[0].Split, parts[1].Split)
	}
	for _, part := range parts {
		if len(parts) > 1 {
			var err error
			if c.part, err = partOf(part.Split); err != nil {
				return nil, err
			}
		}
		for _, path := range part.Files {
			before := c.read
			c.classes = classNames(path, c.cols.Label)
			if err := f.file(path, c.want(), c.add); err != nil {
				return nil, err
			}
			if c.read == before {
				return nil, fmt.Errorf("%s: no rows", path)
			}
		}
	}
	return c.rows, nil
}

// collector checks records and keeps their rows.
type collector struct {
	cols      Columns
	part      string // split of all rows; "" = use the split column
	needSplit bool   // the caller named the split column
	rows      []Row
	read      int // rows, bad ones included
	faults    *Faults
	classes   []string // of the file, by number
	// labels interns the labels; otherwise every row would hold a copy.
	labels map[string]string
}

func newCollector(cols Columns) *collector {
	c := &collector{cols: cols, needSplit: cols.Split != "", labels: map[string]string{}}
	if c.cols.Text == "" {
		c.cols.Text = "text"
	}
	if c.cols.Label == "" {
		c.cols.Label = "label"
	}
	if c.cols.Split == "" {
		c.cols.Split = "split"
	}
	return c
}

func (c *collector) want() *wanted {
	w := &wanted{required: []string{c.cols.Text, c.cols.Label}}
	if c.part != "" {
		return w
	}
	if c.needSplit {
		w.required = append(w.required, c.cols.Split)
	} else {
		w.optional = []string{c.cols.Split}
	}
	return w
}

// add checks and keeps one row.
func (c *collector) add(r Record) error {
	c.read++
	text, label, part, err := c.values(r.Fields)
	if err != nil {
		return c.faults.Add(fmt.Errorf("%s: %w", r.Place(), err))
	}
	shared, ok := c.labels[label]
	if !ok {
		shared = label
		c.labels[shared] = shared
	}
	c.rows = append(c.rows, Row{Text: text, Label: shared, Class: slices.Index(c.classes, shared) + 1, Split: part, File: r.File, Line: r.Line})
	return nil
}

func (c *collector) values(fields Object) (text, label, part string, err error) {
	value, _ := fields.Get(c.cols.Text)
	text, ok := value.(string)
	if !ok {
		return "", "", "", fmt.Errorf("column %s: got %s, want a string", words.Quote(c.cols.Text), Kind(value))
	}
	value, _ = fields.Get(c.cols.Label)
	if label, err = c.labelOf(value); err != nil {
		return "", "", "", fmt.Errorf("column %s: %w", words.Quote(c.cols.Label), err)
	}
	split := ""
	if value, _ = fields.Get(c.cols.Split); value != nil {
		if split, ok = value.(string); !ok {
			return "", "", "", fmt.Errorf("column %s: got %s, want a string", words.Quote(c.cols.Split), Kind(value))
		}
	}
	for _, v := range []struct{ name, value string }{{c.cols.Text, text}, {c.cols.Label, label}} {
		if strings.TrimSpace(v.value) == "" {
			return "", "", "", fmt.Errorf("column %s is empty; fill it or remove the row", words.Quote(v.name))
		}
		if i := strings.IndexByte(v.value, 0); i >= 0 {
			return "", "", "", fmt.Errorf("column %s: NUL character at byte %d; remove it", words.Quote(v.name), i+1)
		}
	}
	if c.part != "" {
		return text, label, c.part, nil
	}
	if part, err = partOf(split); err != nil {
		return "", "", "", fmt.Errorf("column %s: %w", words.Quote(c.cols.Split), err)
	}
	if part == "" && c.needSplit {
		return "", "", "", fmt.Errorf("column %s is empty; want train, val or test in every row", words.Quote(c.cols.Split))
	}
	if len(c.rows) > 0 && (part == "") != (c.rows[0].Split == "") {
		return "", "", "", fmt.Errorf("column %s is set in some rows only; set it in all rows or in none", words.Quote(c.cols.Split))
	}
	return text, label, part, nil
}

func (c *collector) labelOf(value any) (string, error) {
	switch v := value.(type) {
	case string:
		return v, nil
	case bool:
		return strconv.FormatBool(v), nil
	case int64:
		switch {
		case c.classes == nil:
		case v == -1:
			return "", errors.New("the row has no label (-1)")
		case v < 0 || v >= int64(len(c.classes)):
			return "", fmt.Errorf("%d is the number of none of the %d classes", v, len(c.classes))
		default:
			return c.classes[v], nil
		}
		return strconv.FormatInt(v, 10), nil
	case json.Number:
		if digits(v.String()) {
			return v.String(), nil
		}
	case []any:
		return "", errors.New("got an array, want one label (a string, an integer or a boolean)")
	}
	return "", fmt.Errorf("got %s, want a string, an integer or a boolean", Kind(value))
}

func partOf(split string) (string, error) {
	switch split {
	case "", Train, Val, Test:
		return split, nil
	case "validation":
		return Val, nil
	}
	return "", fmt.Errorf("unknown split %s; want train, val, validation or test", words.Quote(split))
}
