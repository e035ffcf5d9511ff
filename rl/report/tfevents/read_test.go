package tfevents

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/rltrain/rltrain/internal/wire"
)

// Scalar is a number of an event file.
type Scalar struct {
	Step  int64
	Tag   string
	Value float32
}

// Read reads the numbers of an event file and verifies its checksums.
func Read(r io.Reader) ([]Scalar, error) {
	in := bufio.NewReader(r)
	var all []Scalar
	for {
		var head [12]byte
		if _, err := io.ReadFull(in, head[:]); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return all, fmt.Errorf("reading the length of a record: %w", err)
		}
		size := binary.LittleEndian.Uint64(head[:8])
		if masked(head[:8]) != binary.LittleEndian.Uint32(head[8:]) || size > 1<<30 {
			return all, errors.New("wrong checksum of a length")
		}
		data, err := io.ReadAll(io.LimitReader(in, int64(size)+4))
		if err != nil || uint64(len(data)) != size+4 {
			return all, fmt.Errorf("record of %d bytes is truncated", size)
		}
		if masked(data[:size]) != binary.LittleEndian.Uint32(data[size:]) {
			return all, errors.New("wrong checksum of a record")
		}
		scalars, err := scalarsOf(data[:size])
		if err != nil {
			return all, err
		}
		all = append(all, scalars...)
	}
}

func scalarsOf(event []byte) (all []Scalar, err error) {
	fields, err := wire.Fields(event)
	if err != nil {
		return nil, err
	}
	step := int64(0)
	for _, f := range fields {
		switch f.Number {
		case 2:
			step = int64(f.Value)
		case 5:
			values, err := wire.Fields(f.Bytes)
			if err != nil {
				return nil, err
			}
			for _, v := range values {
				parts, err := wire.Fields(v.Bytes)
				if err != nil {
					return nil, err
				}
				one, isScalar := Scalar{Step: step}, false
				for _, part := range parts {
					switch part.Number {
					case 1:
						one.Tag = string(part.Bytes)
					case 2:
						one.Value, isScalar = part.Float(), true
					}
				}
				if isScalar {
					all = append(all, one)
				}
			}
		}
	}
	return all, nil
}
