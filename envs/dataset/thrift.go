package dataset

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// thriftLength returns the length in bytes of the structure at the start of b, in Thrift's compact protocol. It refuses
// input that would make a decoder recurse without bound or allocate for missing elements. A truncated b is
// io.ErrUnexpectedEOF.
func thriftLength(b []byte, maxDepth int) (int, error) {
	s := thriftScan{b: b, maxDepth: maxDepth}
	err := s.skipStruct(1)
	return s.at, err
}

type thriftScan struct {
	b        []byte
	at       int
	maxDepth int
	structs  int
}

// maxStructs bounds the structures of a footer: each column chunk has about eight. An empty one takes one byte in the file
// but hundreds in memory.
const maxStructs = 1 << 21

func (s *thriftScan) advance(n uint64) error {
	if n > uint64(len(s.b)-s.at) {
		return io.ErrUnexpectedEOF
	}
	s.at += int(n)
	return nil
}

func (s *thriftScan) readByte() (byte, error) {
	if err := s.advance(1); err != nil {
		return 0, err
	}
	return s.b[s.at-1], nil
}

func (s *thriftScan) varint() (uint64, error) {
	v, n := binary.Uvarint(s.b[s.at:])
	if n == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	if n < 0 {
		return 0, errors.New("a number has more than 64 bits")
	}
	s.at += n
	return v, nil
}

func (s *thriftScan) skipStruct(depth int) error {
	if depth > s.maxDepth {
		return fmt.Errorf("structures are nested deeper than %d", s.maxDepth)
	}
	if s.structs++; s.structs > maxStructs {
		return fmt.Errorf("more than %d structures", maxStructs)
	}
	for {
		field, err := s.readByte()
		if err != nil || field == 0 {
			return err
		}
		if field>>4 == 0 { // the field's number follows
			if _, err := s.varint(); err != nil {
				return err
			}
		}
		// A boolean field stores its value in its type.
		if kind := field & 0xf; kind != 1 && kind != 2 {
			if err := s.skip(kind, depth); err != nil {
				return err
			}
		}
	}
}

func (s *thriftScan) skip(kind byte, depth int) error {
	switch kind {
	case 1, 2, 3: // bool in a list, i8
		return s.advance(1)
	case 4, 5, 6: // i16, i32, i64
		_, err := s.varint()
		return err
	case 7: // double
		return s.advance(8)
	case 8: // binary
		n, err := s.varint()
		if err != nil {
			return err
		}
		return s.advance(n)
	case 9, 10: // list, set
		return s.skipList(depth + 1)
	case 11: // map
		return s.skipMap(depth + 1)
	case 12:
		return s.skipStruct(depth + 1)
	case 13: // uuid
		return s.advance(16)
	}
	return fmt.Errorf("unknown value type %d", kind)
}

func (s *thriftScan) skipList(depth int) error {
	if depth > s.maxDepth {
		return fmt.Errorf("structures are nested deeper than %d", s.maxDepth)
	}
	header, err := s.readByte()
	if err != nil {
		return err
	}
	n := uint64(header >> 4)
	if n == 15 {
		if n, err = s.varint(); err != nil {
			return err
		}
	}
	if n > uint64(len(s.b)-s.at) { // an element takes at least one byte
		return io.ErrUnexpectedEOF
	}
	for range n {
		if err := s.skip(header&0xf, depth); err != nil {
			return err
		}
	}
	return nil
}

func (s *thriftScan) skipMap(depth int) error {
	if depth > s.maxDepth {
		return fmt.Errorf("structures are nested deeper than %d", s.maxDepth)
	}
	n, err := s.varint()
	if err != nil || n == 0 {
		return err
	}
	kinds, err := s.readByte()
	if err != nil {
		return err
	}
	if n > uint64(len(s.b)-s.at) {
		return io.ErrUnexpectedEOF
	}
	for range n {
		if err := s.skip(kinds>>4, depth); err != nil {
			return err
		}
		if err := s.skip(kinds&0xf, depth); err != nil {
			return err
		}
	}
	return nil
}
