package safetensors

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/rltrain/rltrain/torch/gguf/convert"
)

// maxHeader is the format's maximum header size in bytes.
const maxHeader = 100_000_000

// metadataKey is the only header key that is not a tensor.
const metadataKey = "__metadata__"

// maxTensors bounds the tensors per file; models with hundreds of experts have a tenth of it in total.
const maxTensors = 1 << 18

// Entry is a tensor as described by the header.
type Entry struct {
	Name  string
	DType DType
	Shape []int64
	// Offset is the position of the data in the file and Size its length, both in bytes.
	Offset, Size int64
	// Strides, in elements, are set for a tensor of a pytorch_model.bin that is not contiguous and row-major; else nil.
	// Bytes and Float32s return it row-major.
	Strides []int64
	// Converted is how a GGUF file stores a tensor that Bytes and Float32s convert: quantised, or with other rows or
	// values; nil elsewhere.
	Converted *convert.Weight
	// Derived computes a tensor that [Model.Derive] made; nil elsewhere.
	Derived func(at, of int) (Tensor, error)
}

// Direct reports whether the elements are stored at Offset, contiguous and row-major.
func (e Entry) Direct() bool { return e.Strides == nil && e.Converted == nil && e.Derived == nil }

// parseHeader reads a header. The data starts at byte dataStart of the file and has dataLen bytes. Entries are in data
// order.
func parseHeader(header []byte, dataStart, dataLen int64) ([]Entry, map[string]string, error) {
	if !utf8.Valid(header) {
		return nil, nil, errors.New("the header is not valid UTF-8")
	}
	r := newJSONReader(header)
	var entries []Entry
	var metadata map[string]string
	err := r.object(func(name string) error {
		if name == metadataKey {
			m, err := r.stringMap()
			metadata = m
			return wrapName(metadataKey, err)
		}
		e, err := readEntry(r, dataLen)
		if err != nil {
			return fmt.Errorf("tensor %s: %w", quote(name), err)
		}
		if len(entries) == maxTensors {
			return fmt.Errorf("more than %d tensors", maxTensors)
		}
		e.Name = name
		entries = append(entries, e)
		return nil
	})
	if err == nil {
		err = r.end()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading the header: %w", err)
	}
	if err := checkCover(entries, dataLen); err != nil {
		return nil, nil, err
	}
	for i := range entries {
		entries[i].Offset += dataStart
	}
	return entries, metadata, nil
}

// readEntry reads a tensor's description, with Offset relative to the start of the data.
func readEntry(r *jsonReader, dataLen int64) (Entry, error) {
	var e Entry
	var offsets []int64
	seen := 0
	err := r.object(func(key string) error {
		seen++
		var err error
		switch key {
		case "dtype":
			var s string
			s, err = r.str()
			e.DType = DType(s)
		case "shape":
			e.Shape, err = r.ints()
		case "data_offsets":
			offsets, err = r.ints()
		default:
			return fmt.Errorf("unknown field %s; want dtype, shape and data_offsets", quote(key))
		}
		return wrapName(key, err)
	})
	if err != nil {
		return e, err
	}
	if seen != 3 {
		return e, errors.New("a field is missing; want dtype, shape and data_offsets")
	}
	if len(offsets) != 2 {
		return e, fmt.Errorf("data_offsets has %d numbers, want 2", len(offsets))
	}
	begin, end := offsets[0], offsets[1]
	if begin > end || end > dataLen {
		return e, fmt.Errorf("data_offsets [%d, %d] exceed the %d bytes of data; the file may be truncated, download it again", begin, end, dataLen)
	}
	size, err := byteSize(e.DType, e.Shape)
	if err != nil {
		return e, err
	}
	if size != end-begin {
		return e, fmt.Errorf("%s %s needs %d bytes, but data_offsets [%d, %d] give %d",
			e.DType, shapeText(e.Shape), size, begin, end, end-begin)
	}
	e.Offset, e.Size = begin, size
	return e, nil
}

// checkCover sorts entries by data position and checks that they cover the data without gaps or overlap.
func checkCover(entries []Entry, dataLen int64) error {
	slices.SortFunc(entries, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Size, b.Size), strings.Compare(a.Name, b.Name))
	})
	var at int64
	for _, e := range entries {
		switch {
		case e.Offset > at:
			return fmt.Errorf("tensor %s: %d unused bytes before its data", quote(e.Name), e.Offset-at)
		case e.Offset < at:
			return fmt.Errorf("tensor %s: its data overlaps another tensor", quote(e.Name))
		}
		at += e.Size
	}
	if at != dataLen {
		return fmt.Errorf("%d bytes of data belong to no tensor", dataLen-at)
	}
	return nil
}

// jsonReader reads only the expected JSON. It never descends into other values, so deeply nested input fails at once, and
// it detects duplicate keys, which decoding into a map would hide.
type jsonReader struct{ dec *json.Decoder }

func newJSONReader(data []byte) *jsonReader {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	return &jsonReader{dec}
}

func (r *jsonReader) token() (json.Token, error) {
	t, err := r.dec.Token()
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, errors.New("unexpected end of the JSON")
	}
	return t, err
}

func (r *jsonReader) delim(want json.Delim) error {
	t, err := r.token()
	if err != nil {
		return err
	}
	if t != want {
		return fmt.Errorf("got %s, want %q", tokenText(t), want.String())
	}
	return nil
}

func (r *jsonReader) str() (string, error) {
	t, err := r.token()
	if err != nil {
		return "", err
	}
	s, ok := t.(string)
	if !ok {
		return "", fmt.Errorf("got %s, want a string", tokenText(t))
	}
	return s, nil
}

// ints reads an array of integers from 0 to 2^63-1.
func (r *jsonReader) ints() ([]int64, error) {
	if err := r.delim('['); err != nil {
		return nil, err
	}
	list := []int64{}
	for r.dec.More() {
		t, err := r.token()
		if err != nil {
			return nil, err
		}
		num, ok := t.(json.Number)
		if !ok {
			return nil, fmt.Errorf("got %s, want a number", tokenText(t))
		}
		v, err := strconv.ParseUint(num.String(), 10, 63)
		if err != nil {
			return nil, fmt.Errorf("%.40s is not an integer from 0 to 2^63-1", num.String())
		}
		list = append(list, int64(v))
	}
	return list, r.delim(']')
}

// object calls field for each key of an object; field must read the value. A duplicate key is an error.
func (r *jsonReader) object(field func(key string) error) error {
	if err := r.delim('{'); err != nil {
		return err
	}
	seen := map[string]bool{}
	for r.dec.More() {
		key, err := r.str()
		if err != nil {
			return err
		}
		if seen[key] {
			return fmt.Errorf("duplicate key %s", quote(key))
		}
		seen[key] = true
		if err := field(key); err != nil {
			return err
		}
	}
	return r.delim('}')
}

// stringMap reads an object with string values.
func (r *jsonReader) stringMap() (map[string]string, error) {
	m := map[string]string{}
	return m, r.object(func(key string) error {
		s, err := r.str()
		m[key] = s
		return wrapName(quote(key), err)
	})
}

// end checks that only white space follows.
func (r *jsonReader) end() error {
	if t, err := r.dec.Token(); err == nil {
		return fmt.Errorf("unexpected %s after the JSON object", tokenText(t))
	} else if !errors.Is(err, io.EOF) {
		return fmt.Errorf("trailing data after the JSON object: %w", err)
	}
	return nil
}

func tokenText(t json.Token) string {
	switch t := t.(type) {
	case nil:
		return "null"
	case string:
		return quote(t)
	}
	return fmt.Sprintf("%.40s", fmt.Sprint(t))
}

func wrapName(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", name, err)
}

// quote quotes a name from the file on one line, truncated.
func quote(name string) string { return fmt.Sprintf("%.120q", name) }

// shapeText formats a shape as [2, 3], truncated to eight dimensions.
func shapeText(shape []int64) string {
	var b strings.Builder
	b.WriteByte('[')
	for i, d := range shape {
		if i > 0 {
			b.WriteString(", ")
		}
		if i == 8 {
			b.WriteString("…")
			break
		}
		b.WriteString(strconv.FormatInt(d, 10))
	}
	b.WriteByte(']')
	return b.String()
}
