package dataset

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/internal/words"
)

// Names of the parts of a divided data set, as Row.Split holds them.
const (
	Train = "train"
	Val   = "val"
	Test  = "test"
)

// Row is one labelled text.
type Row struct {
	Text  string // valid UTF-8 without NUL, never blank
	Label string // as the file has it; integers as decimal text
	Split string // Train, Val or Test; "" where the file has no split column
	File  string // the path given to Read
	Line  int    // 1-based line on which the row starts
}

// Columns names the columns to read. Other columns of the file are ignored.
type Columns struct {
	Text  string // "" means "text"
	Label string // "" means "label"
	// Split names the column that assigns rows to train, val (or validation)
	// and test. "" means "split" if the file has such a column; a column
	// named here has to exist.
	Split string
}

// Read returns the rows of a file in its order; Records has the formats.
//
// The text is a string; the label a string or an integer. Other columns are
// not looked at. Everything else is an error of one line that names file and
// line (and the column where there is one): a missing column, a null, a blank
// text or label, a split column with other values or in some rows only, a file
// without rows, and what Records refuses.
func Read(path string, cols Columns) ([]Row, error) {
	return ReadParts([]Part{{Train, []string{path}}}, cols)
}

// ReadParts is Read of the files of a data set's parts, one after the other.
// Where there are several parts, rows are in the split that their part is;
// otherwise the split column tells.
func ReadParts(parts []Part, cols Columns) ([]Row, error) {
	c := newCollector(cols)
	if len(parts) > 1 && c.needSplit {
		return nil, fmt.Errorf("column %s: the data set is divided into files of %s and %s already", words.Quote(c.cols.Split), parts[0].Split, parts[1].Split)
	}
	for _, part := range parts {
		if len(parts) > 1 {
			var err error
			if c.part, err = partOf(part.Split); err != nil {
				return nil, err
			}
		}
		for _, path := range part.Files {
			before := len(c.rows)
			if err := readFile(path, c.want(), c.add); err != nil {
				return nil, err
			}
			if len(c.rows) == before {
				return nil, fmt.Errorf("%s: the file has no rows", path)
			}
		}
	}
	return c.rows, nil
}

// collector checks one record after another and keeps its row.
type collector struct {
	cols      Columns
	part      string // of all rows; "" = as the split column says
	needSplit bool   // the caller named the split column
	rows      []Row
	// labels shares one string among all rows of a class; without it every
	// label would keep its own copy.
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

// add keeps one row.
func (c *collector) add(r Record) error {
	text, label, part, err := c.values(r.Fields)
	if err != nil {
		return fmt.Errorf("%s: %w", r.Place(), err)
	}
	shared, ok := c.labels[label]
	if !ok {
		shared = label
		c.labels[shared] = shared
	}
	c.rows = append(c.rows, Row{Text: text, Label: shared, Split: part, File: r.File, Line: r.Line})
	return nil
}

func (c *collector) values(fields Object) (text, label, part string, err error) {
	value, _ := fields.Get(c.cols.Text)
	text, ok := value.(string)
	if !ok {
		return "", "", "", fmt.Errorf("column %s: %s, want a string", words.Quote(c.cols.Text), Kind(value))
	}
	value, _ = fields.Get(c.cols.Label)
	if label, err = labelOf(value); err != nil {
		return "", "", "", fmt.Errorf("column %s: %w", words.Quote(c.cols.Label), err)
	}
	split := ""
	if value, _ = fields.Get(c.cols.Split); value != nil {
		if split, ok = value.(string); !ok {
			return "", "", "", fmt.Errorf("column %s: %s, want a string", words.Quote(c.cols.Split), Kind(value))
		}
	}
	for _, v := range []struct{ name, value string }{{c.cols.Text, text}, {c.cols.Label, label}} {
		if strings.TrimSpace(v.value) == "" {
			return "", "", "", fmt.Errorf("column %s is empty: fill it or remove the row", words.Quote(v.name))
		}
		if i := strings.IndexByte(v.value, 0); i >= 0 {
			return "", "", "", fmt.Errorf("column %s has a NUL at byte %d: remove it", words.Quote(v.name), i+1)
		}
	}
	if c.part != "" {
		return text, label, c.part, nil
	}
	if part, err = partOf(split); err != nil {
		return "", "", "", fmt.Errorf("column %s: %w", words.Quote(c.cols.Split), err)
	}
	if part == "" && c.needSplit {
		return "", "", "", fmt.Errorf("column %s is empty: want train, val or test in every row", words.Quote(c.cols.Split))
	}
	if len(c.rows) > 0 && (part == "") != (c.rows[0].Split == "") {
		return "", "", "", fmt.Errorf("column %s is filled in some rows only: fill it in every row or in none", words.Quote(c.cols.Split))
	}
	return text, label, part, nil
}

func labelOf(value any) (string, error) {
	switch v := value.(type) {
	case string:
		return v, nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case json.Number:
		if digits(v.String()) {
			return v.String(), nil
		}
	case []any:
		return "", errors.New("an array: a row has one label, a string or an integer")
	}
	return "", fmt.Errorf("%s, want a string or an integer", Kind(value))
}

func partOf(split string) (string, error) {
	switch split {
	case "", Train, Val, Test:
		return split, nil
	case "validation":
		return Val, nil
	}
	return "", fmt.Errorf("unknown split %s: want train, val, validation or test", words.Quote(split))
}
