package tinker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// The numbers of fields are those of the SDK's tinker_public.proto; testdata has its descriptor.

// field is a field of a message: bytes of a length, or a number.
type field struct {
	kind   protowire.Type
	bytes  []byte
	number uint64
}

// eachField calls visit with the fields of a message. Groups are skipped.
func eachField(message []byte, visit func(number protowire.Number, f field) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		f := field{kind: kind}
		switch kind {
		case protowire.BytesType:
			f.bytes, n = protowire.ConsumeBytes(message)
		case protowire.VarintType:
			f.number, n = protowire.ConsumeVarint(message)
		case protowire.Fixed64Type:
			f.number, n = protowire.ConsumeFixed64(message)
		default:
			n = protowire.ConsumeFieldValue(number, kind, message)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		if err := visit(number, f); err != nil {
			return err
		}
	}
	return nil
}

var errKind = errors.New("a field of the message has a wrong type")

// message returns the bytes of a field that has some.
func (f field) message() ([]byte, error) {
	if f.kind != protowire.BytesType {
		return nil, errKind
	}
	return f.bytes, nil
}

// entry is an item of a map from names.
func (f field) entry() (name string, value field, err error) {
	data, err := f.message()
	if err == nil {
		err = eachField(data, func(number protowire.Number, f field) error {
			switch number {
			case 1:
				name = string(f.bytes)
			case 2:
				value = f
			}
			return nil
		})
	}
	return name, value, err
}

// numbers are 4- or 8-byte values, least byte first.
func numbers[T any](data []byte, size int, of func([]byte) T) ([]T, error) {
	if len(data)%size != 0 {
		return nil, fmt.Errorf("%d bytes are no list of numbers of %d bytes", len(data), size)
	}
	out := make([]T, 0, len(data)/size)
	for ; len(data) > 0; data = data[size:] {
		out = append(out, of(data))
	}
	return out, nil
}

func int32Of(b []byte) int32 { return int32(binary.LittleEndian.Uint32(b)) }
func int64Of(b []byte) int64 { return int64(binary.LittleEndian.Uint64(b)) }
func float32Of(b []byte) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(b))
}

// Types of the numbers of a tensor.
const (
	typeFloat32 = 1
	typeInt64   = 2
	typeInt32   = 3
)

// UnmarshalProto reads a ForwardBackwardRequest.
func (e *Examples) UnmarshalProto(message []byte) error {
	*e = Examples{Config: map[string]float64{}}
	if err := e.read(message); err != nil {
		return err
	}
	return e.expand()
}

func (e *Examples) read(message []byte) error {
	return eachField(message, func(number protowire.Number, f field) (err error) {
		switch number {
		case 1:
			e.ModelID = string(f.bytes)
		case 2:
			seq := int(int32(f.number))
			e.Seq = &seq
		case 3:
			var d Datum
			if d, err = datumOf(f); err != nil {
				return fmt.Errorf("data %d: %w", len(e.Data), err)
			}
			if e.Data = append(e.Data, d); len(e.Data) > mostData {
				return errData
			}
		case 4:
			e.Loss = string(f.bytes)
		case 5:
			name, value, err := f.entry()
			if err != nil {
				return err
			}
			e.Config[name] = math.Float64frombits(value.number)
		case 6:
			e.ForwardOnly = f.number != 0
		case 7: // as 5, but for settings that are texts
			name, value, err := f.entry()
			if err != nil {
				return err
			}
			return eachField(value.bytes, func(number protowire.Number, f field) error {
				if number == 2 {
					return fmt.Errorf("loss_fn_config %.40q: %.40q is not a number", name, f.bytes)
				}
				e.Config[name] = math.Float64frombits(f.number)
				return nil
			})
		}
		return nil
	})
}

func datumOf(f field) (d Datum, err error) {
	data, err := f.message()
	if err != nil {
		return d, err
	}
	d.Inputs = map[string]Tensor{}
	err = eachField(data, func(number protowire.Number, f field) error {
		switch number {
		case 1:
			ids, err := chunkOf(f)
			d.Tokens = append(d.Tokens, ids...)
			return err
		case 2:
			name, value, err := f.entry()
			if err != nil {
				return err
			}
			t, err := tensorOf(value.bytes)
			if err != nil {
				return fmt.Errorf("%.40q: %w", name, err)
			}
			d.Inputs[name] = t
		}
		return nil
	})
	return d, err
}

func chunkOf(f field) (ids []int32, err error) {
	data, err := f.message()
	if err != nil {
		return nil, err
	}
	err = eachField(data, func(number protowire.Number, f field) error {
		if number != 1 {
			return errors.New("model_input has a chunk that is not encoded_text, which is not supported")
		}
		return eachField(f.bytes, func(number protowire.Number, f field) error {
			if number != 1 {
				return nil
			}
			more, err := numbers(f.bytes, 4, int32Of)
			ids = append(ids, more...)
			return err
		})
	})
	return ids, err
}

func tensorOf(message []byte) (Tensor, error) {
	var values []byte
	var kind uint64
	var s Tensor
	err := eachField(message, func(number protowire.Number, f field) (err error) {
		switch number {
		case 1:
			values = f.bytes
		case 2:
			return eachField(f.bytes, func(number protowire.Number, f field) (err error) {
				switch number {
				case 1:
					values = f.bytes
				case 2:
					s.starts, err = numbers(f.bytes, 8, int64Of)
				case 3:
					s.column, err = numbers(f.bytes, 8, int64Of)
				}
				return err
			})
		case 3:
			kind = f.number
		case 4:
			dims := []uint64{f.number}
			if f.kind == protowire.BytesType {
				dims = nil
				for rest := f.bytes; len(rest) > 0; {
					d, n := protowire.ConsumeVarint(rest)
					if n < 0 {
						return protowire.ParseError(n)
					}
					dims, rest = append(dims, d), rest[n:]
				}
			}
			for _, d := range dims {
				s.Shape = append(s.Shape, int(min(d, math.MaxInt32)))
			}
		}
		return nil
	})
	if err != nil {
		return Tensor{}, err
	}
	switch kind {
	case typeFloat32:
		s.Data, err = numbers(values, 4, func(b []byte) float64 { return float64(float32Of(b)) })
	case typeInt64:
		s.Data, err = numbers(values, 8, func(b []byte) float64 { return float64(int64Of(b)) })
	case typeInt32:
		s.Data, err = numbers(values, 4, func(b []byte) float64 { return float64(int32Of(b)) })
	default:
		err = fmt.Errorf("dtype %d is not float32, int64 or int32", kind)
	}
	return s, err
}
