package dataset

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"rltrain/internal/nearest"
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

// Read returns the rows of a file in its order. The extension decides the
// format, in either case:
//
//   - .csv: RFC 4180 with a header row. Every record has as many fields as the
//     header.
//   - .json: one array of objects.
//   - .jsonl: one object a line. Blank lines are skipped.
//
// The text is a string; the label a string, or in JSON an integer. A byte
// order mark at the start is accepted. Everything else is an error of one line
// that names file and line (and the column where there is one): a missing
// column, a null, a blank text or label, a field too many or too few, invalid
// UTF-8, an unpaired surrogate escape, NUL, a key given twice, a split column
// with other values or in some rows only, and a file without rows.
func Read(path string, cols Columns) ([]Row, error) {
	read, err := readerFor(path)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading data set: %w", err)
	}
	defer f.Close()
	return read(f, path, cols)
}

func readerFor(path string) (func(io.Reader, string, Columns) ([]Row, error), error) {
	switch ext := filepath.Ext(path); strings.ToLower(ext) {
	case ".csv":
		return readCSV, nil
	case ".json":
		return readJSON, nil
	case ".jsonl":
		return readJSONLines, nil
	default:
		return nil, fmt.Errorf("%s: unknown extension %s of a data set: use .csv, .json or .jsonl", path, quote(ext))
	}
}

// place is where a row or value starts, as errors print it.
type place struct {
	path         string
	line, column int // 1-based; column 0 is left out
}

func (p place) String() string {
	if p.column == 0 {
		return fmt.Sprintf("%s:%d", p.path, p.line)
	}
	return fmt.Sprintf("%s:%d:%d", p.path, p.line, p.column)
}

// collector checks the values of one row after another and keeps them.
type collector struct {
	path      string
	cols      Columns
	needSplit bool // the caller named the split column
	rows      []Row
	// labels shares one string among all rows of a class; without it every
	// label would keep its own copy.
	labels map[string]string
}

func newCollector(path string, cols Columns) *collector {
	c := &collector{path: path, cols: cols, needSplit: cols.Split != "", labels: map[string]string{}}
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

// add keeps one row. split is the raw value of the split column or "". The
// text must not share memory with a buffer.
func (c *collector) add(where place, text, label, split string) error {
	for _, v := range []struct{ name, value string }{{c.cols.Text, text}, {c.cols.Label, label}} {
		if strings.TrimSpace(v.value) == "" {
			return fmt.Errorf("%s: column %s is empty: fill it or remove the row", where, quote(v.name))
		}
		if i := strings.IndexByte(v.value, 0); i >= 0 {
			return fmt.Errorf("%s: column %s has a NUL at byte %d: remove it", where, quote(v.name), i+1)
		}
	}
	part, err := partOf(split)
	if err != nil {
		return fmt.Errorf("%s: column %s: %w", where, quote(c.cols.Split), err)
	}
	if part == "" && c.needSplit {
		return fmt.Errorf("%s: column %s is empty: want train, val or test in every row", where, quote(c.cols.Split))
	}
	if len(c.rows) > 0 && (part == "") != (c.rows[0].Split == "") {
		return fmt.Errorf("%s: column %s is filled in some rows only: fill it in every row or in none", where, quote(c.cols.Split))
	}
	shared, ok := c.labels[label]
	if !ok {
		shared = strings.Clone(label)
		c.labels[shared] = shared
	}
	c.rows = append(c.rows, Row{Text: text, Label: shared, Split: part, File: c.path, Line: where.line})
	return nil
}

func (c *collector) finish() ([]Row, error) {
	if len(c.rows) == 0 {
		return nil, fmt.Errorf("%s: the file has no rows", c.path)
	}
	return c.rows, nil
}

func partOf(split string) (string, error) {
	switch split {
	case "", Train, Val, Test:
		return split, nil
	case "validation":
		return Val, nil
	}
	return "", fmt.Errorf("unknown split %s: want train, val, validation or test", quote(split))
}

// missing describes a column that is not there.
func missing(where place, name string, present []string) error {
	if len(present) == 0 {
		return fmt.Errorf("%s: no column %s: the object is empty", where, quote(name))
	}
	shown := make([]string, 0, min(len(present), maxListed))
	for _, p := range present[:min(len(present), maxListed)] {
		shown = append(shown, quote(p))
	}
	list := strings.Join(shown, ", ")
	if more := len(present) - len(shown); more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	hint := ""
	if near := nearest.Name(name, present); near != "" {
		hint = fmt.Sprintf("; did you mean %s?", quote(near))
	}
	return fmt.Errorf("%s: no column %s; the columns are %s%s", where, quote(name), list, hint)
}
