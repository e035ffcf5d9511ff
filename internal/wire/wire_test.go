package wire_test

import (
	"math"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/internal/wire"
)

func TestFieldsComeBack(t *testing.T) {
	var inner, m wire.Message
	inner.Text(2, "name")
	inner.Text(3, "")
	m.Int(1, 300)
	m.Int(2, -1)
	m.Double(3, -0.1)
	m.Float(4, 1.5)
	m.Bytes(16, inner)
	fields := must.Get(wire.Fields(m))(t)
	want := []wire.Field{{Number: 1, Value: 300}, {Number: 2, Value: math.MaxUint64}, {Number: 3, Value: math.Float64bits(-0.1)},
		{Number: 4, Value: uint64(math.Float32bits(1.5))}, {Number: 16, Bytes: []byte("\x12\x04name")}}
	expect.Equal(t, want, fields)
	expect.True(t, fields[2].Double() == -0.1 && fields[3].Float() == 1.5, "floats %v and %v", fields[2].Double(), fields[3].Float())
	// The bytes of 300 in field 1 are those of the specification.
	expect.Same(t, "\x08\xac\x02", string(m[:3]), "% x", m[:3])
	for n := range len(m) {
		got, err := wire.Fields(m[:n])
		expect.True(t, err != nil || len(got) < len(fields), "%d of %d bytes are read as all fields", n, len(m))
	}
}

func FuzzFields(f *testing.F) {
	f.Add([]byte("\x08\xac\x02\x12\x04name"))
	f.Add([]byte("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		fields, err := wire.Fields(data)
		expect.True(t, err != nil || len(data) <= 0 || len(fields) != 0, "%q has no field and no error", data)
	})
}
