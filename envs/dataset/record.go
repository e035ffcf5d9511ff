package dataset

import (
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/internal/nearest"
	"github.com/rltrain/rltrain/internal/words"
)

// Record is a row of a file.
type Record struct {
	File string // path as passed
	// Line is the line where the record starts, 1-based; in Parquet files, the row number.
	Line   int
	Column int    // byte in that line, 1-based, in .json files; else 0
	Fields Object // in file order
	// Padded means that a null in a struct may stand for a missing field, since the file format gives all structs of a
	// column the same fields.
	Padded bool
}

// Place is the record's position for errors: file:line or file:line:column.
func (r Record) Place() string {
	return place{r.File, r.Line, r.Column}.String()
}

// place is the position of a record or value, as errors print it.
type place struct {
	path         string
	line, column int // 1-based; 0 = unknown
}

func (p place) String() string {
	if p.line == 0 {
		return p.path
	}
	if p.column == 0 {
		return fmt.Sprintf("%s:%d", p.path, p.line)
	}
	return fmt.Sprintf("%s:%d:%d", p.path, p.line, p.column)
}

// Records streams the records of the files, one after the other. It holds only one record in memory, for Parquet one page
// per column. The extension decides the format, in either case:
//
//   - .jsonl: one JSON object per line. Blank lines are skipped.
//   - .json: one array of objects, or objects one after the other.
//   - .csv: RFC 4180 with a header row, separated by commas, semicolons or tabs. Every row has as many fields as the header;
//     all are strings.
//   - .parquet: lists, structs and maps become []any and Object (a map's keys
//     are text); dates and times become RFC 3339 text.
//   - .arrow: Arrow's streaming format, as written by save_to_disk of datasets; values as for .parquet.
//   - any of the first three followed by .gz or .zst.
//
// Text is UTF-8, with an optional byte order mark. The first error ends the sequence, with an empty Record. It is one line
// with file, line and column. Errors are: invalid UTF-8, NUL, an unpaired surrogate escape, a duplicate key, a row that is
// not an object, a wrong number of fields, more than 100 nested levels, a record over 256 MiB, a truncated file.
func Records(files ...string) iter.Seq2[Record, error] { return Reader{}.Records(files...) }

// Reader reads data sets.
type Reader struct {
	Progress func(line string) // gets a line about a file that takes long to unpack; nil = silent
}

// Records streams the records of the files, as the function does.
func (f Reader) Records(files ...string) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for _, path := range files {
			going := true
			err := f.file(path, nil, func(r Record) error {
				if going = yield(r, nil); !going {
					return errStop
				}
				return nil
			})
			if !going {
				return
			}
			if err != nil {
				yield(Record{}, err)
				return
			}
		}
	}
}

// errStop ends a reader whose caller needs no more records.
var errStop = fmt.Errorf("no more records wanted")

// reader reads the wanted columns of all records of a text file. It stops at an error of each.
type reader func(in io.Reader, path string, want *wanted, each func(Record) error) error

func (f Reader) file(path string, want *wanted, each func(Record) error) error {
	// A pipe could block, and can be read only once; some data sets are read twice.
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("reading data set: %s is not a regular file; save its content to a file first", path)
	}
	name, unpack := unpacker(path)
	ext := strings.ToLower(filepath.Ext(name))
	switch {
	case ext == ".parquet" && unpack == nil:
		return readParquet(path, want, each)
	case ext == ".arrow" && unpack == nil:
		return readArrow(path, want, each)
	}
	read := textReader(ext)
	switch {
	case ext == ".parquet":
		return fmt.Errorf("%s: a compressed Parquet or Arrow file cannot be streamed; decompress it first", path)
	case read == nil:
		return fmt.Errorf("%s: unknown data set extension %s; use .csv, .json, .jsonl (or one of them with .gz or .zst), .parquet or .arrow", path, words.Quote(filepath.Ext(path)))
	}
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("reading data set: %w", err)
	}
	defer file.Close()
	if unpack == nil {
		return read(file, path, want, each)
	}
	in, done := unpack(file, f.Progress)
	defer done()
	return read(in, path, want, each)
}

func textReader(ext string) reader {
	switch ext {
	case ".csv":
		return readCSV
	case ".json":
		return readJSON
	case ".jsonl":
		return readJSONLines
	}
	return nil
}

// wanted are the columns to read; nil means all.
type wanted struct {
	required []string
	optional []string
}

func (w *wanted) has(name []byte) bool {
	if w == nil {
		return true
	}
	is := func(s string) bool { return s == string(name) }
	return slices.ContainsFunc(w.required, is) || slices.ContainsFunc(w.optional, is)
}

// columns describes the wanted columns at the end of an error.
func (w *wanted) columns() string {
	if w == nil {
		return ""
	}
	names := make([]string, len(w.required))
	for i, name := range w.required {
		names[i] = words.Quote(name)
	}
	if len(names) == 1 {
		return " with the column " + names[0]
	}
	last := len(names) - 1
	return " with the columns " + strings.Join(names[:last], ", ") + " and " + names[last]
}

// check reports the required columns that are missing in fields.
func (w *wanted) check(where place, fields Object, present func() []string) error {
	if w == nil {
		return nil
	}
	var lacking []string
	for _, name := range w.required {
		if _, ok := fields.Get(name); !ok {
			lacking = append(lacking, name)
		}
	}
	if lacking == nil {
		return nil
	}
	return &ColumnError{Missing: lacking, where: where, present: present()}
}

// ColumnError is an error of columns that a row lacks.
type ColumnError struct {
	Missing []string
	where   place
	present []string
	hint    string
}

func (e *ColumnError) Error() string {
	noun := "column"
	if len(e.Missing) > 1 {
		noun = "columns"
	}
	text := fmt.Sprintf("%s: no %s %s", e.where, noun, words.List(e.Missing))
	if len(e.present) == 0 {
		return text + "; the object is empty"
	}
	text += "; columns are " + words.List(e.present)
	for _, name := range e.Missing {
		text += nearest.Hint(name, e.present, words.Quote)
	}
	return text + e.hint
}
