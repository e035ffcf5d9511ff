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

func readJSONLines(in io.Reader, path string, cols Columns) ([]Row, error) {
	src := newSource(in, path)
	lines := bufio.NewScanner(src)
	lines.Buffer(make([]byte, 0, 64<<10), math.MaxInt)
	objects := objectReader{collector: newCollector(path, cols)}
	n := 0
	for lines.Scan() {
		n++
		line := bytes.Trim(lines.Bytes(), " \t\r")
		if len(line) == 0 {
			continue
		}
		where := place{path: path, line: n}
		if !json.Valid(line) {
			var value json.RawMessage
			err := json.Unmarshal(line, &value) // says what is wrong
			if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
				// Leading blanks were trimmed; they count in the column.
				blank := len(lines.Bytes()) - len(bytes.TrimLeft(lines.Bytes(), " \t\r"))
				where.column = blank + int(syntax.Offset)
			}
			return nil, src.first(n, fmt.Errorf("%s: invalid JSON: %w", where, err))
		}
		if err := objects.add(where, line); err != nil {
			return nil, err
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if src.offset == 0 {
		return nil, fmt.Errorf("%s: the file is empty: want one JSON object a line", path)
	}
	return objects.collector.finish()
}

func readJSON(in io.Reader, path string, cols Columns) ([]Row, error) {
	src := newSource(in, path)
	index := lineIndex{line: 1}
	dec := json.NewDecoder(io.TeeReader(src, &index))
	objects := objectReader{collector: newCollector(path, cols)}

	// fail describes an error at the first byte the decoder has not consumed.
	fail := func(err error) error {
		if src.bad != nil && errors.Is(err, src.bad) {
			return src.bad
		}
		where := index.place(path, dec.InputOffset()+blanks(dec.Buffered()))
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			err = errors.New("the file ends before the array does")
		}
		return fmt.Errorf("%s: invalid JSON: %w", where, err)
	}
	switch first, err := dec.Token(); {
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("%s: the file is empty: want an array of objects", path)
	case err != nil:
		return nil, fail(err)
	case first == json.Delim('{'):
		return nil, fmt.Errorf("%s: the file starts with an object, want an array of objects: name a file with one object a line .jsonl", path)
	case first != json.Delim('['):
		return nil, fmt.Errorf("%s: want an array of objects", path)
	}
	var value json.RawMessage
	for dec.More() {
		if err := dec.Decode(&value); err != nil {
			return nil, fail(err)
		}
		if err := objects.add(index.place(path, dec.InputOffset()-int64(len(value))), value); err != nil {
			return nil, err
		}
	}
	if _, err := dec.Token(); err != nil { // the closing bracket
		return nil, fail(err)
	}
	if dec.More() {
		return nil, fail(errors.New("data after the array"))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fail(err)
	}
	return objects.collector.finish()
}

// blanks counts the white space and commas at the start of r.
func blanks(r io.Reader) int64 {
	rest, _ := io.ReadAll(r) // a decoder's buffer: reading it cannot fail
	return int64(len(rest) - len(bytes.TrimLeft(rest, " \t\r\n,")))
}

// lineIndex turns offsets in a stream that passed through it into lines.
type lineIndex struct {
	offset int64   // bytes seen
	starts []int64 // line starts seen and not yet passed by place
	line   int     // current line of place, and
	start  int64   // where it starts
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

// place returns the line and byte column of an offset. Offsets must not
// decrease from call to call.
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
