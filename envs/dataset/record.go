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

// Record is one row of a file.
type Record struct {
	File string // as given
	// Line is the line on which the record starts, in Parquet the number of the
	// row; 1-based.
	Line   int
	Column int    // byte of that line, 1-based, in .json files; else 0
	Fields Object // in the order of the file
}

// Place names the record as errors do: file:line or file:line:column.
func (r Record) Place() string {
	return place{r.File, r.Line, r.Column}.String()
}

// place is where a record or value starts, as errors print it.
type place struct {
	path         string
	line, column int // 1-based; 0 is left out
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

// Records reads the files one after the other, as a stream: however long they
// are, only one record is held (of Parquet, one page of each column). The
// extension decides the format, in either case:
//
//   - .jsonl: one JSON object a line. Blank lines are skipped.
//   - .json: one array of objects, or objects one after the other.
//   - .csv: RFC 4180 with a header row. Every record has as many fields as the
//     header, all of them strings.
//   - .parquet: lists, structs and maps become []any and Object (a map's keys
//     are text); dates and times become RFC 3339 text.
//   - .arrow: Arrow's streaming format, as datasets' save_to_disk writes it; values
//     as those of .parquet.
//   - any of the first three followed by .gz or .zst.
//
// Text is UTF-8; a byte order mark at the start is accepted. The first error
// ends the sequence, with an empty Record. It is one line that names file and
// line (and the column where there is one): invalid UTF-8, NUL, an unpaired
// surrogate escape, a key given twice, a row that is not an object, a field too
// many or too few, values nested more than 100 deep, a record of more than
// 256 MiB, a file cut short.
func Records(files ...string) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for _, path := range files {
			going := true
			err := readFile(path, nil, func(r Record) error {
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

// errStop ends a reader whose caller wants no more.
var errStop = fmt.Errorf("no more records wanted")

// reader reads the wanted columns of all records of a text file. An error of
// each ends it.
type reader func(in io.Reader, path string, want *wanted, each func(Record) error) error

func readFile(path string, want *wanted, each func(Record) error) error {
	// A pipe would be waited for, and what it brings is there once, where some data sets are read twice.
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("reading data set: %s is not a regular file: copy what it gives into one", path)
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
		return fmt.Errorf("%s: a Parquet file inside another compression cannot be read as a stream: unpack it first (its pages are compressed as they are)", path)
	case read == nil:
		return fmt.Errorf("%s: unknown extension %s of a data set: use .csv, .json, .jsonl (or one of them with .gz or .zst), .parquet or .arrow", path, words.Quote(filepath.Ext(path)))
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("reading data set: %w", err)
	}
	defer f.Close()
	if unpack == nil {
		return read(f, path, want, each)
	}
	in, done := unpack(f)
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

// wanted are the columns to read; nil means all there are.
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

// columns ends a sentence about what is wanted.
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

// check reports the first required column that fields lack.
func (w *wanted) check(where place, fields Object, present func() []string) error {
	if w == nil {
		return nil
	}
	for _, name := range w.required {
		if _, ok := fields.Get(name); !ok {
			return missing(where, name, present())
		}
	}
	return nil
}

// missing describes a column that is not there.
func missing(where place, name string, present []string) error {
	if len(present) == 0 {
		return fmt.Errorf("%s: no column %s: the object is empty", where, words.Quote(name))
	}
	hint := ""
	if near := nearest.Name(name, present); near != "" {
		hint = fmt.Sprintf("; did you mean %s?", words.Quote(near))
	}
	return fmt.Errorf("%s: no column %s; the columns are %s%s", where, words.Quote(name), words.List(present), hint)
}
