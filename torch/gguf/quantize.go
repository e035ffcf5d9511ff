package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"sync"

	"github.com/rltrain/rltrain/internal/half"
)

// Quantize returns values, which must fill full blocks, as blocks of type t, which must be a type that this package
// writes.
func (t Type) Quantize(values []float32) ([]byte, error) {
	f := formats[t]
	if f.quantize == nil {
		return nil, fmt.Errorf("gguf: type %s is read but not written", t)
	}
	if len(values)%f.values != 0 {
		return nil, fmt.Errorf("gguf: %d values are not a multiple of the %d in a block of %s", len(values), f.values, t)
	}
	blocks := len(values) / f.values
	data := make([]byte, blocks*f.bytes)
	// Blocks are independent; workers get equal parts.
	workers := max(1, min(runtime.GOMAXPROCS(0), blocks/1024))
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			for i := blocks * w / workers; i < blocks*(w+1)/workers; i++ {
				f.quantize(data[i*f.bytes:][:f.bytes], values[i*f.values:][:f.values])
			}
		})
	}
	all.Wait()
	return data, nil
}

func toF32(dst []byte, v []float32) { binary.LittleEndian.PutUint32(dst, math.Float32bits(v[0])) }
func toF16(dst []byte, v []float32) { putHalf(dst, v[0]) }
func toBF16(dst []byte, v []float32) {
	binary.LittleEndian.PutUint16(dst, half.ToBFloat16(v[0]))
}

func putHalf(dst []byte, v float32) { binary.LittleEndian.PutUint16(dst, half.ToFloat16(v)) }

// inverse is 1/d, or 0 for 0: a block of equal values.
func inverse(d float32) float32 {
	if d == 0 {
		return 0
	}
	return 1 / d
}

// toQ8_0: d = max|w|/127, q rounded half away from zero.
func toQ8_0(dst []byte, v []float32) {
	largest := float32(0)
	for _, x := range v {
		largest = max(largest, float32(math.Abs(float64(x))))
	}
	d := largest / 127
	scale := inverse(d)
	putHalf(dst, d)
	for i, x := range v {
		dst[2+i] = byte(int8(math.Round(float64(float32(x * scale)))))
	}
}

// extreme returns the value with the largest magnitude, with its sign.
func extreme(v []float32) float32 {
	at := 0
	for i, x := range v {
		if math.Abs(float64(x)) > math.Abs(float64(v[at])) {
			at = i
		}
	}
	return v[at]
}

// level rounds a value that counts from 0 and keeps it below n.
func level(x float64, n int) byte { return byte(min(max(int(x), 0), n-1)) }

// toQ4_0: d = extreme/−8, so that the value of the largest magnitude is exact.
func toQ4_0(dst []byte, v []float32) {
	d := extreme(v) / -8
	scale := float64(inverse(d))
	putHalf(dst, d)
	for i := range small / 2 {
		dst[2+i] = level(float64(v[i])*scale+8.5, 16) | level(float64(v[i+small/2])*scale+8.5, 16)<<4
	}
}

// toQ4_1: d and m span the range of the block.
func toQ4_1(dst []byte, v []float32) {
	low, high := v[0], v[0]
	for _, x := range v {
		low, high = min(low, x), max(high, x)
	}
	d := (high - low) / 15
	scale := inverse(d)
	putHalf(dst, d)
	putHalf(dst[2:], low)
	q := func(x float32) byte { return level(float64(float32(float32(x-low)*scale)+0.5), 16) }
	for i := range small / 2 {
		dst[4+i] = q(v[i]) | q(v[i+small/2])<<4
	}
}

// toQ5_0: as Q4_0 with five bits.
func toQ5_0(dst []byte, v []float32) {
	d := extreme(v) / -16
	scale := float64(inverse(d))
	putHalf(dst, d)
	var high uint32
	for i := range small / 2 {
		a, b := level(float64(v[i])*scale+16.5, 32), level(float64(v[i+small/2])*scale+16.5, 32)
		dst[6+i] = a&15 | b<<4
		high |= uint32(a>>4)<<i | uint32(b>>4)<<(i+small/2)
	}
	binary.LittleEndian.PutUint32(dst[2:], high)
}
