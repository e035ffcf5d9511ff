// Package wire encodes and decodes protocol buffers field by field, for the small schemas of TensorBoard and Weights &
// Biases.
package wire

import (
	"encoding/binary"
	"errors"
	"math"
)

// Message is an encoded message, built field by field.
type Message []byte

const (
	varint  = 0
	fixed64 = 1
	bytes   = 2
	fixed32 = 5
)

func (m *Message) tag(field, kind int) {
	*m = binary.AppendUvarint(*m, uint64(field)<<3|uint64(kind))
}

// Int appends an integer or boolean.
func (m *Message) Int(field int, v int64) {
	m.tag(field, varint)
	*m = binary.AppendUvarint(*m, uint64(v))
}

// Double appends a float64.
func (m *Message) Double(field int, v float64) {
	m.tag(field, fixed64)
	*m = binary.LittleEndian.AppendUint64(*m, math.Float64bits(v))
}

// Float appends a float32.
func (m *Message) Float(field int, v float32) {
	m.tag(field, fixed32)
	*m = binary.LittleEndian.AppendUint32(*m, math.Float32bits(v))
}

// Bytes appends bytes or a nested message.
func (m *Message) Bytes(field int, v []byte) {
	m.tag(field, bytes)
	*m = append(binary.AppendUvarint(*m, uint64(len(v))), v...)
}

// Text appends a string; the empty string is the default and is skipped.
func (m *Message) Text(field int, v string) {
	if v != "" {
		m.Bytes(field, []byte(v))
	}
}

// Field is a decoded field.
type Field struct {
	Number int
	Value  uint64 // integer, or the bits of a float
	Bytes  []byte // string, bytes or nested message
}

// Double returns the value of a float64.
func (f Field) Double() float64 { return math.Float64frombits(f.Value) }

// Float returns the value of a float32.
func (f Field) Float() float32 { return math.Float32frombits(uint32(f.Value)) }

var errCut = errors.New("truncated or invalid protocol buffer")

// Fields decodes a message.
func Fields(m []byte) ([]Field, error) {
	var fields []Field
	for len(m) > 0 {
		tag, n := binary.Uvarint(m)
		if n <= 0 {
			return nil, errCut
		}
		m = m[n:]
		f := Field{Number: int(tag >> 3)}
		size := 0
		switch tag & 7 {
		case varint:
			if f.Value, size = binary.Uvarint(m); size <= 0 {
				return nil, errCut
			}
		case fixed64:
			if size = 8; len(m) < size {
				return nil, errCut
			}
			f.Value = binary.LittleEndian.Uint64(m)
		case fixed32:
			if size = 4; len(m) < size {
				return nil, errCut
			}
			f.Value = uint64(binary.LittleEndian.Uint32(m))
		case bytes:
			length, n := binary.Uvarint(m)
			if n <= 0 || length > uint64(len(m)-n) {
				return nil, errCut
			}
			f.Bytes, size = m[n:n+int(length)], n+int(length)
		default:
			return nil, errCut
		}
		m = m[size:]
		fields = append(fields, f)
	}
	return fields, nil
}
