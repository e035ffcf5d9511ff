package dataset

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"

	"github.com/rltrain/rltrain/internal/words"
)

func readParquet(path string, want *wanted, each func(Record) error) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("reading data set: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("reading data set: %w", err)
	}
	return readParquetFrom(f, info.Size(), path, want, each)
}

func readParquetFrom(r io.ReaderAt, size int64, path string, want *wanted, each func(Record) error) error {
	p := &parquetFile{path: path, r: r, size: size}
	if err := p.open(want); err != nil {
		return err
	}
	row := 0
	for i := range p.file.RowGroups() {
		if err := p.readGroup(i, &row, each); err != nil {
			return err
		}
	}
	return nil
}

// parquetFile reads records from the columns of a Parquet file, one page of each column at a time.
type parquetFile struct {
	path    string
	r       io.ReaderAt
	size    int64
	meta    *format.FileMetaData
	file    *parquet.File
	columns []*column // wanted columns
	leaves  []*leaf   // leaves of the wanted columns
}

func (p *parquetFile) open(want *wanted) error {
	var err error
	if p.meta, err = checkFooter(p.r, p.size); err != nil {
		return fmt.Errorf("%s: %w", p.path, err)
	}
	err = guarded(func() error {
		p.file, err = parquet.OpenFile(p.r, p.size, parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
		return err
	})
	if err != nil {
		return damaged(place{path: p.path}, err)
	}
	present, chosen := Object{}, Object{}
	for _, node := range p.file.Root().Columns() {
		if _, twice := present.Get(node.Name()); twice {
			return fmt.Errorf("%s: column %s occurs twice; rename one", p.path, words.Quote(node.Name()))
		}
		present = append(present, Field{Name: node.Name()})
		if !want.has([]byte(node.Name())) {
			continue
		}
		chosen = append(chosen, Field{Name: node.Name()})
		c, err := newColumn(node, &p.leaves)
		if err != nil {
			return fmt.Errorf("%s: column %s: %w", p.path, words.Quote(node.Name()), err)
		}
		p.columns = append(p.columns, c)
	}
	if len(present) == 0 {
		return fmt.Errorf("%s: the Parquet file has no columns", p.path)
	}
	return want.check(place{path: p.path}, chosen, present.Names)
}

// readGroup reads the rows of a row group.
func (p *parquetFile) readGroup(i int, row *int, each func(Record) error) error {
	where := place{path: p.path}
	defer func() {
		for _, l := range p.leaves {
			l.close()
		}
	}()
	group := p.file.RowGroups()[i]
	err := guarded(func() error {
		for _, l := range p.leaves {
			if l.index >= len(p.meta.RowGroups[i].Columns) {
				return fmt.Errorf("row group %d has no column %s", i, words.Quote(l.name))
			}
			if err := checkPages(p.r, p.size, &p.meta.RowGroups[i].Columns[l.index].MetaData); err != nil {
				return fmt.Errorf("column %s: %w", words.Quote(l.name), err)
			}
			l.pages = group.ColumnChunks()[l.index].Pages()
		}
		return nil
	})
	if err != nil {
		return damaged(where, err)
	}
	for range group.NumRows() {
		*row++
		where.line = *row
		var fields Object
		err := guarded(func() error {
			fields, err = p.readRow()
			return err
		})
		if _, ok := errors.AsType[*badValue](err); ok {
			return fmt.Errorf("%s: %w", where, err)
		}
		if err != nil {
			return damaged(where, err)
		}
		if err := each(Record{File: p.path, Line: *row, Fields: fields, Padded: true}); err != nil {
			return err
		}
	}
	err = guarded(func() error {
		for _, l := range p.leaves {
			if _, more, err := l.peek(); err != nil || more {
				return errors.Join(err, fmt.Errorf("column %s has more values than the row group has rows", words.Quote(l.name)))
			}
		}
		return nil
	})
	if err != nil {
		return damaged(place{path: p.path}, err)
	}
	return nil
}

func (p *parquetFile) readRow() (Object, error) {
	fields := make(Object, len(p.columns))
	for i, c := range p.columns {
		value, err := c.read(0)
		if err != nil {
			return nil, fmt.Errorf("column %s: %w", words.Quote(c.name), err)
		}
		fields[i] = Field{c.name, value}
	}
	return fields, nil
}

// guarded turns a panic of the Parquet library, which trusts its input, into an error, including memory faults.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	return f()
}

// damaged describes a corrupt file on one line.
func damaged(where place, err error) error {
	text := strings.ToValidUTF8(err.Error(), "\ufffd")
	text = strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, text)
	return fmt.Errorf("%s: damaged Parquet file: %s; download or write it again", where, text)
}

// badValue is a correctly encoded value that cannot be used.
type badValue struct{ err error }

func (b *badValue) Error() string { return b.err.Error() }
