package dataset

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
)

func readJSONLines(in io.Reader, path string, want *wanted, each func(Record) error) error {
	src := newSource(in, path)
	lines := bufio.NewScanner(src)
	lines.Buffer(make([]byte, 0, 64<<10), math.MaxInt) // src bounds a record
	var dec decoder
	n := 0
	for ; lines.Scan(); src.mark() {
		n++
		line := bytes.Trim(lines.Bytes(), " \t\r")
		if len(line) == 0 {
			continue
		}
		where := place{path: path, line: n}
		if !json.Valid(line) {
			var value json.RawMessage
			err := json.Unmarshal(line, &value) // for its error
			if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
				// The column counts the trimmed leading spaces.
				blank := len(lines.Bytes()) - len(bytes.TrimLeft(lines.Bytes(), " \t\r"))
				where.column = blank + int(syntax.Offset)
			}
			return src.first(n, fmt.Errorf("%s: invalid JSON: %w", where, err))
		}
		fields, err := dec.object(where, line, want)
		if err != nil {
			return err
		}
		if err := each(Record{File: path, Line: n, Fields: fields}); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if src.offset == 0 {
		return fmt.Errorf("%s: the file is empty; want one JSON object per line", path)
	}
	return nil
}

// jsonFile reads a .json file.
type jsonFile struct {
	path  string
	src   *source
	index lineIndex
	dec   *json.Decoder
	want  *wanted
	each  func(Record) error

	value  json.RawMessage
	values decoder
}

func readJSON(in io.Reader, path string, want *wanted, each func(Record) error) error {
	f := &jsonFile{path: path, src: newSource(in, path), index: lineIndex{line: 1}, want: want, each: each}
	buffered := bufio.NewReaderSize(f.src, 64<<10)
	first, err := firstByte(buffered)
	f.dec = json.NewDecoder(io.TeeReader(buffered, &f.index))
	switch {
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%s: the file is empty; want an array of objects", path)
	case first == '{':
		return f.objects()
	case first != '[':
		if _, err := f.dec.Token(); err != nil {
			return f.fail(err, "value")
		}
		return fmt.Errorf("%s: want an array of objects", path)
	}
	return f.array()
}

// firstByte peeks at the first byte that is not white space, if it is within the buffer.
func firstByte(r *bufio.Reader) (byte, error) {
	for n := 1; ; n++ {
		head, err := r.Peek(n)
		if len(head) < n {
			return 0, err
		}
		if c := head[n-1]; bytes.IndexByte([]byte(" \t\r\n"), c) < 0 || n == r.Size() {
			return c, nil
		}
	}
}

// array reads objects in brackets.
func (f *jsonFile) array() error {
	if _, err := f.dec.Token(); err != nil {
		return f.fail(err, "array")
	}
	for f.dec.More() {
		if err := f.next("array"); err == io.EOF { // after a comma
			return f.fail(err, "array")
		} else if err != nil {
			return err
		}
	}
	if _, err := f.dec.Token(); err != nil { // the closing bracket
		return f.fail(err, "array")
	}
	if f.dec.More() {
		return f.fail(errors.New("trailing data after the array"), "array")
	}
	if _, err := f.dec.Token(); !errors.Is(err, io.EOF) {
		return f.fail(err, "array")
	}
	return nil
}

// objects reads objects one after the other, as in JSON Lines.
func (f *jsonFile) objects() error {
	for {
		err := f.next("object")
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// next reads an object; io.EOF, unwrapped, if there are no more.
func (f *jsonFile) next(what string) error {
	f.src.mark()
	switch err := f.dec.Decode(&f.value); {
	case err == io.EOF:
		return err
	case err != nil:
		return f.fail(err, what)
	}
	where := f.index.place(f.path, f.dec.InputOffset()-int64(len(f.value)))
	fields, err := f.values.object(where, f.value, f.want)
	if err != nil {
		return err
	}
	return f.each(Record{File: f.path, Line: where.line, Column: where.column, Fields: fields})
}

// fail adds the position of the first byte that the decoder has not consumed.
func (f *jsonFile) fail(err error, what string) error {
	if f.src.bad != nil && errors.Is(err, f.src.bad) {
		return f.src.bad
	}
	where := f.index.place(f.path, f.dec.InputOffset()+blanks(f.dec.Buffered()))
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		err = fmt.Errorf("unexpected end of file in the %s", what)
	}
	return fmt.Errorf("%s: invalid JSON: %w", where, err)
}

// blanks counts the white space and commas at the start of r.
func blanks(r io.Reader) int64 {
	rest, _ := io.ReadAll(r) // reading a decoder's buffer cannot fail
	return int64(len(rest) - len(bytes.TrimLeft(rest, " \t\r\n,")))
}

// lineIndex converts offsets in a stream to lines.
type lineIndex struct {
	offset int64   // bytes seen
	starts []int64 // line starts seen but not yet passed by place
	line   int     // current line of place
	start  int64   // offset where that line starts
}

// Write implements io.Writer.
func (x *lineIndex) Write(p []byte) (int, error) {
	for from := 0; ; {
		i := bytes.IndexByte(p[from:], '\n')
		if i < 0 {
			break
		}
		from += i + 1
		x.starts = append(x.starts, x.offset+int64(from))
	}
	x.offset += int64(len(p))
	return len(p), nil
}

// place returns the line and byte column of an offset. Offsets must not decrease between calls.
func (x *lineIndex) place(path string, offset int64) place {
	passed := 0
	for passed < len(x.starts) && x.starts[passed] <= offset {
		x.start = x.starts[passed]
		passed++
	}
	x.line += passed
	x.starts = append(x.starts[:0], x.starts[passed:]...)
	return place{path, x.line, int(offset-x.start) + 1}
}
