package dataset

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/rltrain/rltrain/internal/words"
)

func readCSV(in io.Reader, path string, want *wanted, each func(Record) error) error {
	src := newSource(in, path)
	r := csv.NewReader(bufio.NewReaderSize(src, 64<<10))
	r.FieldsPerRecord = -1 // checked here, to name the expected columns
	r.ReuseRecord = true

	first, err := r.Read()
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: the file is empty; want a header row%s", path, want.columns())
	}
	if err != nil {
		return csvError(src, path, err)
	}
	line, _ := r.FieldPos(0)
	header, chosen, err := chooseColumns(place{path: path, line: line}, first, want)
	if err != nil {
		return err
	}
	for {
		src.mark()
		record, err := r.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return csvError(src, path, err)
		}
		line, _ := r.FieldPos(0)
		if len(record) != len(header) {
			return src.first(line, fieldCount(place{path: path, line: line}, len(record), header))
		}
		fields := make(Object, len(chosen))
		for i, j := range chosen {
			fields[i] = Field{header[j], strings.Clone(record[j])}
		}
		if err := each(Record{File: path, Line: line, Fields: fields}); err != nil {
			return err
		}
	}
}

// chooseColumns copies the header and finds the wanted columns.
func chooseColumns(where place, first []string, want *wanted) (header []string, chosen []int, err error) {
	columns := Object{}
	for i, name := range first {
		header = append(header, strings.Clone(name))
		if !want.has([]byte(name)) {
			continue
		}
		if _, twice := columns.Get(name); twice {
			return nil, nil, fmt.Errorf("%s: column %s occurs twice in the header; rename one", where, words.Quote(name))
		}
		columns = append(columns, Field{Name: header[i]})
		chosen = append(chosen, i)
	}
	return header, chosen, want.check(where, columns, func() []string { return header })
}

func fieldCount(where place, got int, header []string) error {
	return fmt.Errorf("%s: the row has %d fields, want %d (%s); quote fields that contain commas", where, got, len(header), words.List(header))
}

func csvError(src *source, path string, err error) error {
	if parse, ok := errors.AsType[*csv.ParseError](err); ok {
		return src.first(parse.Line, fmt.Errorf("%s:%d:%d: invalid CSV: %w", path, parse.Line, parse.Column, parse.Err))
	}
	return err // the source's error names the place
}
