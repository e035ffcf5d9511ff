package dataset

import (
	"bytes"
	"fmt"
	"io"
	"unicode/utf8"
)

// source passes on a file's bytes. It checks that they are UTF-8 without NUL, drops a byte order mark and counts lines.
// Otherwise encoding/json would replace invalid bytes silently, and encoding/csv would let them through.
type source struct {
	r    io.Reader
	path string

	offset int64 // bytes passed on
	line   int   // line of the next byte, 1-based
	start  int64 // offset where that line starts

	tail [utf8.UTFMax]byte // an incomplete rune at the end of the last chunk
	kept int

	since int64 // offset of the last mark

	bad error // the first error, at line
}

// maxRecord bounds the bytes of a record, so that a file without newlines, or one with extreme compression, cannot exhaust
// memory.
var maxRecord int64 = 256 << 20 // tests lower it

// mark notes that a record starts about here.
func (s *source) mark() { s.since = s.offset }

func newSource(r io.Reader, path string) *source {
	s := &source{path: path, line: 1}
	var mark [3]byte
	n, err := io.ReadFull(r, mark[:])
	head := mark[:n]
	if bytes.Equal(head, []byte("\ufeff")) {
		head = nil
	}
	rest := r
	if err != nil {
		rest = failing{err}
		if err == io.ErrUnexpectedEOF {
			rest = failing{io.EOF}
		}
	}
	s.r = io.MultiReader(bytes.NewReader(head), rest)
	return s
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// Read implements io.Reader. It delivers all bytes before the first bad one.
func (s *source) Read(p []byte) (int, error) {
	if s.bad != nil {
		return 0, s.bad
	}
	if s.offset-s.since > maxRecord {
		s.bad = fmt.Errorf("%s:%d: a record is larger than %d MiB", s.path, s.line, maxRecord>>20)
		return 0, s.bad
	}
	n, err := s.r.Read(p)
	good, what := s.check(p[:n], err == io.EOF)
	s.advance(p[:good])
	switch {
	case what != "":
		at := s.offset - int64(s.kept) - s.start + 1
		s.bad = fmt.Errorf("%s:%d: %s at byte %d of the line; save the file as UTF-8", s.path, s.line, what, at)
		return good, s.bad
	case err != nil && err != io.EOF:
		s.bad = fmt.Errorf("%s:%d: reading data set: %w", s.path, s.line, err)
		return good, s.bad
	}
	return n, err
}

// check returns the number of good bytes of p and what is wrong with the next one. An incomplete rune at the end of p is
// passed on and checked with the next chunk; no reader above can complete a value on it before that.
func (s *source) check(p []byte, end bool) (good int, what string) {
	i := 0
	for s.kept > 0 && i < len(p) {
		s.tail[s.kept] = p[i]
		if utf8.FullRune(s.tail[:s.kept+1]) {
			if r, size := utf8.DecodeRune(s.tail[:s.kept+1]); r == utf8.RuneError && size <= 1 {
				return i, "invalid UTF-8"
			}
			s.kept = 0
		} else {
			s.kept++
		}
		i++
	}
	if s.kept > 0 {
		if end {
			return i, "invalid UTF-8"
		}
		return i, ""
	}
	body := p[i:]
	cut := len(body)
	if !end {
		cut = lastFullRune(body)
	}
	if utf8.Valid(body[:cut]) && bytes.IndexByte(body[:cut], 0) < 0 {
		s.kept = copy(s.tail[:], body[cut:])
		return len(p), ""
	}
	for j := 0; ; {
		r, size := utf8.DecodeRune(body[j:])
		if r == utf8.RuneError && size <= 1 {
			return i + j, "invalid UTF-8"
		}
		if r == 0 {
			return i + j, "NUL"
		}
		j += size
	}
}

// lastFullRune is the length of p without an incomplete rune at its end.
func lastFullRune(p []byte) int {
	for back := 1; back < utf8.UTFMax && back <= len(p); back++ {
		if utf8.RuneStart(p[len(p)-back]) {
			if !utf8.FullRune(p[len(p)-back:]) {
				return len(p) - back
			}
			break
		}
	}
	return len(p)
}

func (s *source) advance(p []byte) {
	if last := bytes.LastIndexByte(p, '\n'); last >= 0 {
		s.line += bytes.Count(p, []byte{'\n'})
		s.start = s.offset + int64(last) + 1
	}
	s.offset += int64(len(p))
}

// first returns the source's error if it is not after line, where a reader above failed: a parser that meets the truncated
// stream would report a syntax error instead.
func (s *source) first(line int, parse error) error {
	if s.bad != nil && s.line <= line {
		return s.bad
	}
	return parse
}
