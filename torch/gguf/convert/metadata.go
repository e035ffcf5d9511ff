package convert

import (
	"fmt"
	"math"

	"github.com/rltrain/rltrain/torch/gguf"
)

// metadata reads keys of one architecture and keeps the first error.
type metadata struct {
	file *gguf.File
	arch string
	err  error
}

func (m *metadata) fail(format string, args ...any) {
	if m.err == nil {
		m.err = fmt.Errorf(format, args...)
	}
}

// read reads a key; absent is the default.
func read[T any](m *metadata, key string, absent T, get func(string) (T, bool, error)) T {
	v, ok, err := get(key)
	if err != nil && m.err == nil {
		m.err = err
	}
	if err != nil || !ok {
		return absent
	}
	return v
}

// own is the architecture's key: "llama.block_count".
func (m *metadata) own(key string) string { return m.arch + "." + key }

// size reads a positive integer of the architecture. Some files give it per layer; then all must be equal.
func (m *metadata) size(key string, absent int) int {
	key = m.own(key)
	var n int64
	if m.file.IsArray(key) {
		list := read(m, key, nil, m.file.Ints)
		for i, v := range list {
			if v != list[0] {
				m.fail("%s: layer %d has %d, layer 0 %d; layers that differ are not supported", key, i, v, list[0])
			}
			n = v
		}
	} else {
		n = read(m, key, int64(absent), m.file.Int)
	}
	switch {
	case m.err != nil:
	case n == 0 && absent == 0:
		m.fail("%s is missing", key)
	case n < 1 || n > math.MaxInt32:
		m.fail("%s %d is not between 1 and %d", key, n, math.MaxInt32)
	}
	return int(n)
}

// number reads a number of the architecture, as the shortest decimal of its float32.
func (m *metadata) number(key string, absent float32) float32 {
	return float32(read(m, m.own(key), float64(absent), m.file.Float))
}

// factors reads a tensor of RoPE divisors, nil if missing.
func (m *metadata) factors(name string, n int) []float32 {
	t, ok := m.file.Tensor(name)
	if !ok {
		return nil
	}
	if len(t.Shape) != 1 || t.Shape[0] != int64(n) {
		m.fail("tensor %s has shape %v, want [%d]", name, t.Shape, n)
		return nil
	}
	return m.file.Float32s(t)
}
