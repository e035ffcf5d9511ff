package unpack

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/torch/safetensors"
)

// grid is a weight [out, in] of codes with a scale, and perhaps a zero, for each block of it:
// value = (code − zero) · scale, rounded to dtype.
type grid struct {
	out, in int
	dtype   safetensors.DType
	// across and down are the sizes of a block: consecutive inputs and consecutive outputs.
	across, down int
	// read reads the tensors.
	read func(r *reader) content
}

// content is what a grid's tensors hold.
type content struct {
	code  func(out, in int) float32
	scale func(out, in int) float32 // of a block
	zero  func(out, in int) float32 // of a block; nil for 0
	block func(in int) int          // the block of an input; nil: in / across
}

// values computes the weight, row-major.
func (g *grid) values(r *reader) ([]float32, error) {
	c := g.read(r)
	if r.err != nil {
		return nil, r.err
	}
	if c.block == nil {
		c.block = func(in int) int { return in / g.across }
	}
	blocks := make([]int, g.in)
	for i := range blocks {
		blocks[i] = c.block(i)
	}
	values := make([]float32, g.out*g.in)
	for o := range g.out {
		row := values[o*g.in : (o+1)*g.in]
		for i, b := range blocks {
			code := c.code(o, i)
			if c.zero != nil {
				code -= c.zero(o/g.down, b)
			}
			row[i] = code * c.scale(o/g.down, b)
		}
	}
	return values, nil
}

// floats are the dtypes of scales.
var floats = []safetensors.DType{safetensors.F16, safetensors.BF16, safetensors.F32}

// parts reads the shapes of a weight's tensors.
type parts struct {
	m    *safetensors.Model
	base string // the weight's name up to the last dot
}

// shape returns the shape of a tensor of dims dimensions and one of the dtypes.
func (p *parts) shape(end string, dims int, dtypes ...safetensors.DType) ([]int, safetensors.DType, error) {
	_, e, ok := p.m.Entry(p.base + end)
	if !ok {
		return nil, "", fmt.Errorf("%s%s is missing", p.base, end)
	}
	if !slices.Contains(dtypes, e.DType) {
		return nil, "", fmt.Errorf("%s%s has dtype %s, want one of %v", p.base, end, e.DType, dtypes)
	}
	if len(e.Shape) != dims {
		return nil, "", fmt.Errorf("%s%s has shape %v, want %d dimensions", p.base, end, e.Shape, dims)
	}
	shape := make([]int, dims)
	for i, d := range e.Shape {
		if d < 1 || d > 1<<24 {
			return nil, "", fmt.Errorf("%s%s has shape %v", p.base, end, e.Shape)
		}
		shape[i] = int(d)
	}
	return shape, e.DType, nil
}

// matrix returns the shape of a tensor of any dimensions up to two as that of a matrix: of one value, or a column.
func (p *parts) matrix(end string, dtypes ...safetensors.DType) ([]int, safetensors.DType, error) {
	_, e, _ := p.m.Entry(p.base + end)
	shape, dtype, err := p.shape(end, min(2, len(e.Shape)), dtypes...)
	for len(shape) < 2 {
		shape = append(shape, 1)
	}
	return shape, dtype, err
}

// want refuses a shape that does not fit the weight's other parts.
func (p *parts) want(end string, shape []int, want ...int) error {
	for i := range want {
		if shape[i] != want[i] {
			return fmt.Errorf("%s%s has shape %v, want %v", p.base, end, shape, want)
		}
	}
	return nil
}

func (p *parts) has(end string) bool {
	_, _, ok := p.m.Entry(p.base + end)
	return ok
}

// reader reads the data of a weight's tensors by the ends of their names, until one fails.
type reader struct {
	base string
	raw  func(name string) (safetensors.Tensor, error)
	err  error
}

func (r *reader) tensor(end string) safetensors.Tensor {
	if r.err != nil {
		return safetensors.Tensor{}
	}
	t, err := r.raw(r.base + end)
	r.err = err
	return t
}

func (r *reader) bytes(end string) []byte { return r.tensor(end).Data }

// blocks reads the block of each input.
func (r *reader) blocks(end string, count int) func(in int) int {
	indices := r.words(end)
	for i, b := range indices {
		if b >= uint32(count) && r.err == nil {
			r.err = fmt.Errorf("%s%s: input %d is in group %d of %d", r.base, end, i, int32(b), count)
		}
	}
	return func(in int) int { return int(indices[in]) }
}

func (r *reader) floats(end string) (values []float32) {
	if t := r.tensor(end); r.err == nil {
		values, r.err = t.Float32s()
	}
	return values
}

// words reads a tensor of I32 as the bits that it holds.
func (r *reader) words(end string) []uint32 {
	data := r.bytes(end)
	words := make([]uint32, len(data)/4)
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(data[4*i:])
	}
	return words
}

// bitsAt is the code number i, of some bits, in a stream that fills words from their low ends; next is the distance between
// consecutive words.
func bitsAt(words []uint32, start, next, i, bits int) uint32 {
	at := i * bits
	word, shift := start+at/32*next, at%32
	code := words[word] >> shift
	if shift+bits > 32 {
		code |= words[word+next] << (32 - shift)
	}
	return code & (1<<bits - 1)
}

// wordsOf is the number of words that hold n codes.
func wordsOf(n, bits int) int { return (n*bits + 31) / 32 }

// groupSize is the number of inputs of each of count groups, one of the sizes that config.json names.
func (p *parts) groupSize(in, count int, sizes ...int) (int, error) {
	if count == 1 {
		return in, nil
	}
	for _, size := range sizes {
		if size > 0 && ceil(in, size) == count {
			return size, nil
		}
	}
	return 0, fmt.Errorf("%s: %d inputs with %d scales do not fit group_size %v", strings.TrimSuffix(p.base, "."), in, count, sizes)
}

func ceil(n, size int) int { return (n + size - 1) / size }

// fromF8E4M3 widens the float8 with four bits of exponent that has no infinity.
func fromF8E4M3(b byte) float32 {
	sign, exponent, mantissa := float32(1), int(b>>3&15), float64(b&7)
	if b&0x80 != 0 {
		sign = -1
	}
	switch {
	case b&0x7f == 0x7f:
		return float32(math.NaN())
	case exponent == 0:
		return sign * float32(math.Ldexp(mantissa, -9))
	}
	return sign * float32(math.Ldexp(8+mantissa, exponent-10))
}

// f8E4M3 are the values of all codes.
var f8E4M3 = func() (table [256]float32) {
	for i := range table {
		table[i] = fromF8E4M3(byte(i))
	}
	return table
}()
