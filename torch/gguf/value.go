package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
	"unicode/utf8"
)

// A kind is the type of a metadata value, by its number in the file.
type kind uint32

const (
	kindUint8 kind = iota
	kindInt8
	kindUint16
	kindInt16
	kindUint32
	kindInt32
	kindFloat32
	kindBool
	kindString
	kindArray
	kindUint64
	kindInt64
	kindFloat64
)

var kindNames = []string{"uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "bool", "string", "array", "uint64", "int64", "float64"}

func (k kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("type number %d", uint32(k))
}

// width is the size of a scalar in bytes; 0 for strings and arrays.
func (k kind) width() int {
	switch k {
	case kindUint8, kindInt8, kindBool:
		return 1
	case kindUint16, kindInt16:
		return 2
	case kindUint32, kindInt32, kindFloat32:
		return 4
	case kindUint64, kindInt64, kindFloat64:
		return 8
	}
	return 0
}

// A value is a checked but undecoded metadata value: its bytes in the file.
type value struct {
	kind  kind
	array bool // number of elements of kind
	n     int
	raw   []byte
}

func (v value) String() string {
	if v.array {
		return fmt.Sprintf("array of %d %s", v.n, v.kind)
	}
	return v.kind.String()
}

// integer decodes an integer scalar.
func integer(k kind, b []byte) (int64, bool) {
	switch k {
	case kindUint8:
		return int64(b[0]), true
	case kindInt8:
		return int64(int8(b[0])), true
	case kindUint16:
		return int64(binary.LittleEndian.Uint16(b)), true
	case kindInt16:
		return int64(int16(binary.LittleEndian.Uint16(b))), true
	case kindUint32:
		return int64(binary.LittleEndian.Uint32(b)), true
	case kindInt32:
		return int64(int32(binary.LittleEndian.Uint32(b))), true
	case kindUint64:
		n := binary.LittleEndian.Uint64(b)
		return int64(n), n <= math.MaxInt64
	case kindInt64:
		return int64(binary.LittleEndian.Uint64(b)), true
	}
	return 0, false
}

// number decodes an integer or floating-point scalar.
func number(k kind, b []byte) (float64, bool) {
	switch k {
	case kindFloat32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b))), true
	case kindFloat64:
		return math.Float64frombits(binary.LittleEndian.Uint64(b)), true
	}
	n, ok := integer(k, b)
	return float64(n), ok
}

// get decodes the value of key; ok is false if the key is missing.
func get[T any](f *File, key, want string, array bool, decode func(v value) ([]T, bool)) (list []T, ok bool, err error) {
	v, ok := f.values[key]
	if !ok {
		return nil, false, nil
	}
	if v.array == array {
		if list, ok := decode(v); ok {
			return list, true, nil
		}
	}
	return nil, true, fmt.Errorf("gguf: %s: %s: %v, want %s", f.path, key, v, want)
}

func one[T any](list []T, ok bool, err error) (T, bool, error) {
	var zero T
	if err != nil || !ok {
		return zero, ok, err
	}
	return list[0], ok, nil
}

// scalars decodes scalars of one width.
func scalars[T any](decode func(kind, []byte) (T, bool)) func(v value) ([]T, bool) {
	return func(v value) ([]T, bool) {
		width := v.kind.width()
		if width == 0 {
			return nil, v.n == 0
		}
		list := make([]T, v.n)
		for i := range list {
			var ok bool
			if list[i], ok = decode(v.kind, v.raw[i*width:]); !ok {
				return nil, false
			}
		}
		return list, true
	}
}

func texts(v value) ([]string, bool) {
	if v.kind != kindString {
		return nil, v.n == 0
	}
	list, at := make([]string, v.n), 0
	for i := range list {
		n := int(binary.LittleEndian.Uint64(v.raw[at:]))
		list[i] = string(v.raw[at+8:][:n])
		at += 8 + n
		if !utf8.ValidString(list[i]) {
			return nil, false
		}
	}
	return list, true
}

func boolean(k kind, b []byte) (bool, bool) { return b[0] != 0, k == kindBool }

// Int returns an integer of the metadata; ok is false if the key is missing.
func (f *File) Int(key string) (n int64, ok bool, err error) {
	return one(get(f, key, "an integer", false, scalars(integer)))
}

// Float returns a number of the metadata.
func (f *File) Float(key string) (x float64, ok bool, err error) {
	return one(get(f, key, "a number", false, scalars(number)))
}

// Bool returns a boolean of the metadata.
func (f *File) Bool(key string) (b, ok bool, err error) {
	return one(get(f, key, "a bool", false, scalars(boolean)))
}

// Text returns a string of the metadata.
func (f *File) Text(key string) (s string, ok bool, err error) {
	return one(get(f, key, "a string of UTF-8", false, texts))
}

// Ints returns an array of integers.
func (f *File) Ints(key string) (list []int64, ok bool, err error) {
	return get(f, key, "an array of integers", true, scalars(integer))
}

// Floats returns an array of numbers.
func (f *File) Floats(key string) (list []float64, ok bool, err error) {
	return get(f, key, "an array of numbers", true, scalars(number))
}

// Bools returns an array of booleans.
func (f *File) Bools(key string) (list []bool, ok bool, err error) {
	return get(f, key, "an array of bools", true, scalars(boolean))
}

// Texts returns an array of strings.
func (f *File) Texts(key string) (list []string, ok bool, err error) {
	return get(f, key, "an array of strings of UTF-8", true, texts)
}

// IsArray reports whether the value of key is an array.
func (f *File) IsArray(key string) bool { return f.values[key].array }
