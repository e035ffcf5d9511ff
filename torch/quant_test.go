package torch_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/gguf"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// bits are the bits of floats, which distinguish -0 from 0.
func bits(floats []float32) []uint32 {
	b := make([]uint32, len(floats))
	for i, f := range floats {
		b[i] = math.Float32bits(f)
	}
	return b
}

// dequantize reads rows of t as float32, through dtype.
func dequantize(t testing.TB, q torch.QuantType, rows []byte, out, in int64, dtype torch.DType) []float32 {
	t.Helper()
	v := must.Open(q.Blocks(rows, out, in))(t)
	dense := must.Open(v.Dequantize(q, in, dtype))(t)
	return must.Get(dense.Read())(t)
}

// TestQuantizedEqualsBitsandbytes: weights stored by bitsandbytes dequantise to its values, and the core quantises the
// same weight to the same bits.
func TestQuantizedEqualsBitsandbytes(t *testing.T) {
	torchtest.NoLeaks(t)
	f := must.Open(safetensors.Open("testdata/quantized.safetensors"))(t)
	floats := func(name string) []float32 {
		t.Helper()
		return must.Get(f.Float32s(name))(t)
	}
	raw := func(name string) []byte {
		t.Helper()
		return must.Get(f.Bytes(name))(t)
	}
	weight := floats("weight")
	const out, in = 6, 192
	quantize := func(q torch.QuantType, dtype torch.DType) []byte {
		t.Helper()
		v := must.Open(torch.Constant(weight, out, in))(t)
		typed := must.Open(v.To(dtype))(t)
		rows := must.Open(typed.Quantize(q))(t)
		return must.Get(rows.ReadBytes())(t)
	}
	for _, c := range []struct {
		name  string
		dtype torch.DType
	}{{"f32", torch.F32}, {"bf16", torch.BF16}} {
		rows := must.Get(torch.JoinNF4(raw(c.name+".weight"), floats(c.name+".weight.absmax"), in))(t)
		expect.Equal(t, bits(floats(c.name+".dequantized")), bits(dequantize(t, torch.NF4, rows, out, in, c.dtype)), fmt.Sprintf("nf4 of %s dequantised", c.name))
		expect.Equal(t, rows, quantize(torch.NF4, c.dtype), fmt.Sprintf("%s quantised to nf4", c.name))
	}
	rows := must.Get(torch.JoinInt8(raw("int8.weight"), floats("int8.SCB")))(t)
	expect.Equal(t, bits(floats("int8.dequantized")), bits(dequantize(t, torch.Int8, rows, out, in, torch.F32)), "int8 dequantised as by bitsandbytes")
	expect.Equal(t, rows, quantize(torch.Int8, torch.F16), "quantised to int8")
}

// TestBlocksEqualGGUF: the core dequantises GGUF blocks to the values of torch/gguf, which equal those of the Python
// package gguf.
func TestBlocksEqualGGUF(t *testing.T) {
	torchtest.NoLeaks(t)
	rng := rand.New(rand.NewPCG(4, 0))
	for _, q := range []torch.QuantType{torch.Q4_0, torch.Q4_1, torch.Q8_0, torch.Q4_K, torch.Q6_K} {
		kind := gguf.Type(strings.ToUpper(string(q)))
		values, size := kind.Block()
		const blocks = 40
		rows := make([]byte, blocks*size)
		for i := range rows {
			rows[i] = byte(rng.UintN(256))
		}
		for i := range blocks { // finite scales, including subnormal ones
			for at := range size / 2 {
				half := rows[i*size+2*at:]
				if h := binary.LittleEndian.Uint16(half); h&0x7c00 == 0x7c00 {
					binary.LittleEndian.PutUint16(half, h&^0x4000)
				}
			}
		}
		in := int64(values) * 4
		got := q.RowBytes(in)
		expect.True(t, got == int64(4*size), "%s: rows of %d values have %d bytes, want %d", q, in, got, 4*size)
		expect.Equal(t, bits(kind.Dequantize(rows)), bits(dequantize(t, q, rows, blocks/4, in, torch.F32)), q)
	}
}

func TestQuantizedRefuses(t *testing.T) {
	expect.Failure(torch.NF4.Blocks(make([]byte, 71), 2, 64))(t, "71 bytes are not 2 rows")
	expect.Same(t, 0, torch.Q4_K.RowBytes(576), "a row of 576 values of q4_k has bytes")
	expect.True(t, !torch.QuantType("q3_k").Known(), "q3_k is known")
	expect.Fails(torch.JoinNF4(make([]byte, 64), make([]float32, 1), 128))(t, "no error for a missing scale")
}
