package dataset

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// The library believes what the messages of a stream say of themselves: a wrong length asks for memory that no machine
// has, which ends the process. So each message is looked through before the library gets it.

const (
	maxArrowHeader = 64 << 20
	maxArrowBatch  = 1 << 31
	continuation   = 0xffffffff // stands before the length of a message's header
)

// checkedArrow passes a stream on, message by message.
type checkedArrow struct {
	in   io.Reader
	left int64 // bytes of in
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

// next reads the header of a message and checks it.
func (c *checkedArrow) next() error {
	var begin [8]byte
	if _, err := io.ReadFull(c.in, begin[:]); err != nil {
		return io.EOF // of a stream without its end, too
	}
	size := int64(binary.LittleEndian.Uint32(begin[4:]))
	c.left -= 8
	if binary.LittleEndian.Uint32(begin[:]) != continuation {
		return errors.New("a message does not begin with its mark")
	}
	if size == 0 {
		c.now = bytes.NewReader(begin[:])
		return nil
	}
	if size > min(c.left, maxArrowHeader) {
		return fmt.Errorf("a message's header of %d bytes is longer than what there is", size)
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
		return fmt.Errorf("a message's %d bytes are more than there are", body)
	}
	c.left -= body
	c.now = io.MultiReader(bytes.NewReader(begin[:]), bytes.NewReader(header), io.LimitReader(c.in, body))
	return nil
}

// checkMessage checks a message's header and returns the length of what follows it. The numbers of fields are those
// of Arrow's Message.fbs and Schema.fbs.
func checkMessage(header []byte) (body int64, err error) {
	defer func() {
		if failure := recover(); failure != nil {
			err = fmt.Errorf("a message's header leads out of itself: %v", failure)
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
		return 0, errors.New("a message without content")
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
	return 0, fmt.Errorf("a message of the kind %d", kind)
}

// flat is a FlatBuffer; reading outside of it panics.
type flat []byte

// flatTable is a table in it.
type flatTable struct {
	flat
	at, fieldsAt int
}

func (b flat) u32(at int) int { return int(binary.LittleEndian.Uint32(b[at:])) }

// table is what the offset at a place leads to.
func (b flat) table(at int) flatTable {
	at += b.u32(at)
	fields := at - int(int32(b.u32(at)))
	_ = b[fields : fields+4]
	return flatTable{b, at, fields}
}

// field is where field n of the table lies, 0 where it is absent.
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

// vector is where the elements of field n begin, and how many there are; they lie inside.
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

// pairs looks through a list of keys and values.
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

// fields looks through a schema's fields, or a field's children.
func (t flatTable) fields(n, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("its columns are more than %d levels deep", maxDepth)
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
			return errors.New("a column without a type")
		case kind == unionType:
			return errors.New("columns of Arrow's type union are not read: leave the column out")
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

// batch looks through a batch of rows whose values take so many bytes.
func (t flatTable) batch(body int64) error {
	if at := t.field(0); at != 0 {
		// No column takes less than a bit for a value, but those of nothing but null.
		if rows := int64(binary.LittleEndian.Uint64(t.flat[at:])); rows < 0 || rows > 8*body+1024 {
			return fmt.Errorf("a batch of %d rows in %d bytes", rows, body)
		}
	}
	from, count := t.vector(1, 16)
	for i := range count {
		length, nulls := binary.LittleEndian.Uint64(t.flat[from+16*i:]), binary.LittleEndian.Uint64(t.flat[from+16*i+8:])
		if length > uint64(8*body+1024) || nulls > length {
			return fmt.Errorf("a column of %d values in %d bytes", length, body)
		}
	}
	from, count = t.vector(2, 16)
	for i := range count {
		offset, length := int64(binary.LittleEndian.Uint64(t.flat[from+16*i:])), int64(binary.LittleEndian.Uint64(t.flat[from+16*i+8:]))
		if offset < 0 || length < 0 || offset > body || length > body-offset {
			return errors.New("values leave their batch")
		}
	}
	t.vector(4, 8)
	return nil
}
