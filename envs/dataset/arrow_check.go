package dataset

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The Arrow library trusts the lengths in a stream's messages: a wrong one can exhaust memory and kill the process. So each
// message is checked before the library reads it.

const (
	maxArrowHeader = 64 << 20
	maxArrowBatch  = 1 << 31
	continuation   = 0xffffffff // precedes the length of a message header
)

// checkedArrow passes a stream on, one checked message at a time.
type checkedArrow struct {
	in   io.Reader
	left int64 // remaining bytes of in
	now  io.Reader
}

// Read implements io.Reader.
func (c *checkedArrow) Read(p []byte) (int, error) {
	for {
		if c.now != nil {
			n, err := c.now.Read(p)
			if n > 0 || err != io.EOF {
				return n, err
			}
		}
		if err := c.next(); err != nil {
			return 0, err
		}
	}
}

// next reads and checks a message header.
func (c *checkedArrow) next() error {
	var begin [8]byte
	if _, err := io.ReadFull(c.in, begin[:]); err != nil {
		return io.EOF // also for a stream without an end marker
	}
	size := int64(binary.LittleEndian.Uint32(begin[4:]))
	c.left -= 8
	if binary.LittleEndian.Uint32(begin[:]) != continuation {
		return errors.New("a message has no start marker")
	}
	if size == 0 {
		c.now = bytes.NewReader(begin[:])
		return nil
	}
	if size > min(c.left, maxArrowHeader) {
		return fmt.Errorf("a message header of %d bytes exceeds the file", size)
	}
	header := make([]byte, size)
	if _, err := io.ReadFull(c.in, header); err != nil {
		return err
	}
	c.left -= size
	body, err := checkMessage(header)
	if err != nil {
		return err
	}
	if body < 0 || body > min(c.left, maxArrowBatch) {
		return fmt.Errorf("a message of %d bytes exceeds the file", body)
	}
	c.left -= body
	c.now = io.MultiReader(bytes.NewReader(begin[:]), bytes.NewReader(header), io.LimitReader(c.in, body))
	return nil
}

// checkMessage checks a message header and returns the length of its body. Field numbers are those of Arrow's Message.fbs
// and Schema.fbs.
func checkMessage(header []byte) (body int64, err error) {
	defer func() {
		if failure := recover(); failure != nil {
			err = fmt.Errorf("a message header points outside itself: %v", failure)
		}
	}()
	b := flat(header)
	message := b.table(0)
	if at := message.field(3); at != 0 {
		body = int64(binary.LittleEndian.Uint64(b[at:]))
	}
	kind := 0
	if at := message.field(1); at != 0 {
		kind = int(b[at])
	}
	at := message.field(2)
	if at == 0 {
		return 0, errors.New("an empty message")
	}
	message.pairs(4)
	content := b.table(at)
	switch kind {
	case 1:
		content.pairs(2)
		content.vector(3, 8)
		return body, content.fields(1, 0)
	case 2:
		if at := content.field(1); at != 0 {
			err = b.table(at).batch(body)
		}
		return body, err
	case 3:
		return body, content.batch(body)
	}
	return 0, fmt.Errorf("a message of unknown kind %d", kind)
}

// flat is a FlatBuffer; reading outside it panics.
type flat []byte

// flatTable is a table in a FlatBuffer.
type flatTable struct {
	flat
	at, fieldsAt int
}

func (b flat) u32(at int) int { return int(binary.LittleEndian.Uint32(b[at:])) }

// table follows the offset at a position.
func (b flat) table(at int) flatTable {
	at += b.u32(at)
	fields := at - int(int32(b.u32(at)))
	_ = b[fields : fields+4]
	return flatTable{b, at, fields}
}

// field is the position of field n of the table, 0 if it is absent.
func (t flatTable) field(n int) int {
	slot := 4 + 2*n
	if slot >= int(binary.LittleEndian.Uint16(t.flat[t.fieldsAt:])) {
		return 0
	}
	offset := int(binary.LittleEndian.Uint16(t.flat[t.fieldsAt+slot:]))
	if offset == 0 {
		return 0
	}
	_ = t.flat[t.at+offset : t.at+offset+1]
	return t.at + offset
}

// vector is the position of the elements of field n, and their number; they are within bounds.
func (t flatTable) vector(n, size int) (from, count int) {
	at := t.field(n)
	if at == 0 {
		return 0, 0
	}
	at += t.flat.u32(at)
	count = t.flat.u32(at)
	_ = t.flat[at+4 : at+4+count*size]
	return at + 4, count
}

// pairs checks a list of keys and values.
func (t flatTable) pairs(n int) {
	from, count := t.vector(n, 4)
	for i := range count {
		pair := t.flat.table(from + 4*i)
		pair.vector(0, 1)
		pair.vector(1, 1)
	}
}

const (
	unionType     = 14
	timestampType = 10
)

// fields checks a schema's fields, or a field's children.
func (t flatTable) fields(n, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("columns are nested deeper than %d", maxDepth)
	}
	from, count := t.vector(n, 4)
	for i := range count {
		field := t.flat.table(from + 4*i)
		field.vector(0, 1)
		field.pairs(6)
		kind := 0
		if at := field.field(2); at != 0 {
			kind = int(t.flat[at])
		}
		at := field.field(3)
		switch {
		case at == 0:
			return errors.New("a column has no type")
		case kind == unionType:
			return errors.New("cannot read Arrow unions; remove the column")
		case kind == timestampType:
			t.flat.table(at).vector(1, 1)
		default:
			t.flat.table(at)
		}
		if err := field.fields(5, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// batch checks a batch of rows whose values take body bytes.
func (t flatTable) batch(body int64) error {
	if at := t.field(0); at != 0 {
		// A value takes at least a bit, except in all-null columns.
		if rows := int64(binary.LittleEndian.Uint64(t.flat[at:])); rows < 0 || rows > 8*body+1024 {
			return fmt.Errorf("a batch claims %d rows in %d bytes", rows, body)
		}
	}
	from, count := t.vector(1, 16)
	for i := range count {
		length, nulls := binary.LittleEndian.Uint64(t.flat[from+16*i:]), binary.LittleEndian.Uint64(t.flat[from+16*i+8:])
		if length > uint64(8*body+1024) || nulls > length {
			return fmt.Errorf("a column claims %d values in %d bytes", length, body)
		}
	}
	from, count = t.vector(2, 16)
	for i := range count {
		offset, length := int64(binary.LittleEndian.Uint64(t.flat[from+16*i:])), int64(binary.LittleEndian.Uint64(t.flat[from+16*i+8:]))
		if offset < 0 || length < 0 || offset > body || length > body-offset {
			return errors.New("values lie outside their batch")
		}
	}
	t.vector(4, 8)
	return nil
}
