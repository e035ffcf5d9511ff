package gguf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// Limits on a header, far above any real file.
const (
	maxPairs      = 1 << 16
	maxTensors    = 1 << 18
	maxName       = 1 << 16
	maxDimensions = 4
	maxAlignment  = 1 << 20
)

// A cursor reads a header and keeps the first error.
type cursor struct {
	data []byte
	at   int
	err  error
}

func (c *cursor) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

// take returns the next n bytes, nil after an error.
func (c *cursor) take(n uint64, what string) []byte {
	if c.err != nil {
		return nil
	}
	if left := uint64(len(c.data) - c.at); n > left {
		c.fail("%s takes %d bytes at byte %d, the file has %d more (is it cut short?)", what, n, c.at, left)
		return nil
	}
	b := c.data[c.at:][:n]
	c.at += int(n)
	return b
}

func (c *cursor) u32(what string) uint32 {
	if b := c.take(4, what); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (c *cursor) u64(what string) uint64 {
	if b := c.take(8, what); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// name copies a short string.
func (c *cursor) name(what string) string {
	n := c.u64("the length of " + what)
	if c.err == nil && (n == 0 || n > maxName) {
		c.fail("%s has %d bytes, want 1 to %d", what, n, maxName)
	}
	return string(c.take(n, what))
}

// skipString skips a string.
func (c *cursor) skipString(what string) { c.take(c.u64("the length of "+what), what) }

// value reads a metadata value of key.
func (c *cursor) value(key string) value {
	what := "metadata " + quote(key)
	v := value{kind: kind(c.u32("the type of " + what)), n: 1}
	if c.err == nil && v.kind == kindArray {
		v.array, v.kind = true, kind(c.u32("the element type of "+what))
		n := c.u64("the length of " + what)
		least := uint64(max(v.kind.width(), 1))
		if v.kind == kindString {
			least = 8
		}
		if left := uint64(len(c.data) - c.at); c.err == nil && n > left/least {
			c.fail("%s has %d elements, the file has %d more bytes (is it cut short?)", what, n, left)
			return v
		}
		v.n = int(n)
		if c.err == nil && v.kind == kindArray {
			c.fail("%s is an array of arrays, which is not supported", what)
		}
	}
	if c.err == nil && int(v.kind) >= len(kindNames) {
		c.fail("%s has unknown %v", what, v.kind)
	}
	if c.err != nil {
		return v
	}
	start := c.at
	if v.kind == kindString {
		for i := 0; i < v.n && c.err == nil; i++ {
			c.skipString(what)
		}
	} else {
		c.take(uint64(v.n)*uint64(v.kind.width()), what)
	}
	v.raw = c.data[start:c.at]
	return v
}

// header reads everything before the tensor data.
func (f *File) header(data []byte) (tensors []Tensor, err error) {
	c := &cursor{data: data}
	if magic := c.take(4, "the magic number"); c.err == nil && string(magic) != "GGUF" {
		return nil, fmt.Errorf("it begins with %q, not with \"GGUF\": it is no GGUF file", magic)
	}
	switch version := c.u32("the version"); {
	case c.err != nil:
	case version&0xffff == 0 && version != 0:
		return nil, errors.New("it is big-endian, which is not supported")
	case version != 2 && version != 3:
		return nil, fmt.Errorf("version %d is not supported, want 2 or 3", version)
	}
	count, pairs := c.u64("the number of tensors"), c.u64("the number of metadata pairs")
	switch {
	case c.err != nil:
	case count > maxTensors:
		return nil, fmt.Errorf("the header claims %d tensors, at most %d are allowed", count, maxTensors)
	case pairs > maxPairs:
		return nil, fmt.Errorf("the header claims %d metadata pairs, at most %d are allowed", pairs, maxPairs)
	}
	f.values = map[string]value{}
	for i := range pairs {
		key := c.name(fmt.Sprintf("metadata key %d", i))
		if _, ok := f.values[key]; ok {
			c.fail("metadata %s comes twice", quote(key))
		}
		v := c.value(key)
		if c.err != nil {
			return nil, c.err
		}
		f.values[key] = v
		f.keys = append(f.keys, key)
	}
	for i := range count {
		t := c.tensor(int(i))
		if c.err != nil {
			return nil, c.err
		}
		tensors = append(tensors, t)
	}
	if c.err != nil {
		return nil, c.err
	}
	return tensors, f.place(tensors, c.at, len(data))
}

// tensor reads a tensor's description; Offset is relative to the start of the data.
func (c *cursor) tensor(number int) Tensor {
	t := Tensor{Name: c.name(fmt.Sprintf("the name of tensor %d", number))}
	what := "tensor " + quote(t.Name)
	n := c.u32("the number of dimensions of " + what)
	if c.err == nil && (n < 1 || n > maxDimensions) {
		c.fail("%s has %d dimensions, want 1 to %d", what, n, maxDimensions)
	}
	for range min(n, maxDimensions) {
		d := c.u64("a dimension of " + what)
		if c.err == nil && (d < 1 || d > 1<<60) {
			c.fail("%s has a dimension of %d", what, d)
		}
		t.Shape = append(t.Shape, int64(d))
	}
	slices.Reverse(t.Shape)
	id, offset := c.u32("the type of "+what), c.u64("the offset of "+what)
	if c.err != nil {
		return t
	}
	var err error
	if t.Type, err = readType(id); err == nil {
		_, t.Size, err = t.Type.sizeOf(t.Shape)
	}
	if err != nil {
		c.fail("%s: %w", what, err)
	}
	if offset > uint64(len(c.data)) {
		c.fail("%s: offset %d lies outside the file of %d bytes", what, offset, len(c.data))
	}
	t.Offset = int64(offset)
	return t
}

// place converts offsets to file offsets and checks that tensors are within the file, aligned and disjoint.
func (f *File) place(tensors []Tensor, headerEnd, size int) error {
	const key = "general.alignment"
	alignment, ok, err := f.Int(key)
	if err != nil {
		return fmt.Errorf("%s: %v, want an integer", key, f.values[key])
	}
	if !ok {
		alignment = defaultAlignment
	}
	if alignment < 1 || alignment > maxAlignment || alignment&(alignment-1) != 0 {
		return fmt.Errorf("%s %d is not a power of two up to %d", key, alignment, maxAlignment)
	}
	start := (int64(headerEnd) + alignment - 1) &^ (alignment - 1)
	names := make(map[string]bool, len(tensors))
	for i := range tensors {
		t := &tensors[i]
		switch what := "tensor " + quote(t.Name); {
		case names[t.Name]:
			return fmt.Errorf("%s comes twice", what)
		case t.Offset%alignment != 0:
			return fmt.Errorf("%s: offset %d is not a multiple of the alignment %d", what, t.Offset, alignment)
		case t.Size > int64(size)-start-t.Offset:
			return fmt.Errorf("%s: its %d bytes at offset %d end after the file's %d (is it cut short?)", what, t.Size, t.Offset, size)
		}
		names[t.Name] = true
		t.Offset += start
	}
	byOffset := slices.SortedFunc(slices.Values(tensors), func(a, b Tensor) int { return int(a.Offset - b.Offset) })
	for i := 1; i < len(byOffset); i++ {
		if a, b := byOffset[i-1], byOffset[i]; a.Offset+a.Size > b.Offset {
			return fmt.Errorf("tensors %s and %s overlap", quote(a.Name), quote(b.Name))
		}
	}
	return nil
}

func quote(name string) string { return fmt.Sprintf("%.120q", name) }
