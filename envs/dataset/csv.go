package dataset

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

func readCSV(in io.Reader, path string, cols Columns) ([]Row, error) {
	src := newSource(in, path)
	r := csv.NewReader(bufio.NewReaderSize(src, 64<<10))
	r.FieldsPerRecord = -1 // counted here, to say which columns were expected
	r.ReuseRecord = true
	c := newCollector(path, cols)

	first, err := r.Read()
	if errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: the file is empty: want a header row with the columns %s and %s", path, quote(c.cols.Text), quote(c.cols.Label))
	}
	if err != nil {
		return nil, csvError(src, path, err)
	}
	line, _ := r.FieldPos(0)
	header := make([]string, len(first))
	for i, name := range first {
		header[i] = strings.Clone(name)
	}
	where := place{path: path, line: line}
	text, err := column(where, c.cols.Text, header)
	if err != nil {
		return nil, err
	}
	label, err := column(where, c.cols.Label, header)
	if err != nil {
		return nil, err
	}
	split := -1
	if c.needSplit || slices.Contains(header, c.cols.Split) {
		if split, err = column(where, c.cols.Split, header); err != nil {
			return nil, err
		}
	}

	for {
		record, err := r.Read()
		if errors.Is(err, io.EOF) {
			return c.finish()
		}
		if err != nil {
			return nil, csvError(src, path, err)
		}
		line, _ := r.FieldPos(0)
		where := place{path: path, line: line}
		if len(record) != len(header) {
			return nil, src.first(line, fieldCount(where, len(record), header))
		}
		part := ""
		if split >= 0 {
			part = record[split]
		}
		if err := c.add(where, strings.Clone(record[text]), record[label], part); err != nil {
			return nil, err
		}
	}
}

// column returns the index of the one column of that name.
func column(where place, name string, header []string) (int, error) {
	i := slices.Index(header, name)
	if i < 0 {
		return 0, missing(where, name, header)
	}
	if slices.Contains(header[i+1:], name) {
		return 0, fmt.Errorf("%s: column %s occurs twice in the header: rename one", where, quote(name))
	}
	return i, nil
}

func fieldCount(where place, got int, header []string) error {
	names := make([]string, 0, maxListed)
	for _, name := range header[:min(len(header), maxListed)] {
		names = append(names, quote(name))
	}
	list := strings.Join(names, ", ")
	if len(header) > maxListed {
		list += ", …"
	}
	return fmt.Errorf("%s: the record has %d fields, want %d (%s): add or remove a field, or put a field with a comma in quotes", where, got, len(header), list)
}

func csvError(src *source, path string, err error) error {
	if parse, ok := errors.AsType[*csv.ParseError](err); ok {
		return src.first(parse.Line, fmt.Errorf("%s:%d:%d: invalid CSV: %w", path, parse.Line, parse.Column, parse.Err))
	}
	return err // the source's own, with its place
}
