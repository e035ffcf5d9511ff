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
	buffered := bufio.NewReaderSize(src, 64<<10)
	r := csv.NewReader(buffered)
	r.Comma = delimiter(buffered)
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
			return src.first(line, fieldCount(place{path: path, line: line}, len(record), header, r.Comma))
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

// delimiter is what separates the columns of a header: a comma, else a semicolon or a tab, as spreadsheets write them.
func delimiter(in *bufio.Reader) rune {
	head, _ := in.Peek(in.Size()) // an error comes again with the first read
	counts, quoted := map[byte]int{}, false
scan:
	for _, b := range head {
		switch {
		case b == '"':
			quoted = !quoted
		case quoted:
		case b == '\n':
			break scan
		default:
			counts[b]++
		}
	}
	switch {
	case counts[','] > 0:
		return ','
	case counts['\t'] > 0:
		return '\t'
	case counts[';'] > 0:
		return ';'
	}
	return ','
}

// chooseColumns copies the header, without the spaces around names that nobody sees, and finds the wanted columns.
func chooseColumns(where place, first []string, want *wanted) (header []string, chosen []int, err error) {
	columns, seen := Object{}, map[string]bool{}
	for i, name := range first {
		name = strings.TrimSpace(name)
		header = append(header, strings.Clone(name))
		if !want.has([]byte(name)) {
			continue
		}
		if seen[name] {
			return nil, nil, fmt.Errorf("%s: column %s occurs twice in the header; rename one", where, words.Quote(name))
		}
		seen[header[i]] = true
		columns = append(columns, Field{Name: header[i]})
		chosen = append(chosen, i)
	}
	err = want.check(where, columns, func() []string { return header })
	if lacks := (*ColumnError)(nil); errors.As(err, &lacks) && len(columns) == 0 {
		lacks.hint = "; the first line must name the columns"
	}
	return header, chosen, err
}

func fieldCount(where place, got int, header []string, comma rune) error {
	name := map[rune]string{',': "commas", ';': "semicolons", '\t': "tabs"}[comma]
	return fmt.Errorf("%s: the row has %d fields, want %d (%s); quote fields that contain %s", where, got, len(header), words.List(header), name)
}

func csvError(src *source, path string, err error) error {
	if parse, ok := errors.AsType[*csv.ParseError](err); ok {
		return src.first(parse.Line, fmt.Errorf("%s:%d:%d: invalid CSV: %w", path, parse.Line, parse.Column, parse.Err))
	}
	return err // the source's error names the place
}
