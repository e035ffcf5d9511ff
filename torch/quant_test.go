package torch_test

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/gguf"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/torchtest"
)

var quantTypes = []torch.QuantType{torch.Int8, torch.NF4, torch.Q4_0, torch.Q4_1, torch.Q8_0, torch.Q4_K, torch.Q6_K}

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
	v := must.Get(q.Blocks(rows, out, in))(t)
	defer v.Close()
	dense := must.Get(v.Dequantize(q, in, dtype))(t)
	defer dense.Close()
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
		v := must.Get(torch.Constant(weight, out, in))(t)
		defer v.Close()
		typed := must.Get(v.To(dtype))(t)
		defer typed.Close()
		rows := must.Get(typed.Quantize(q))(t)
		defer rows.Close()
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
	for _, q := range quantTypes[2:] {
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

// learner is a small decoder with adapters that learns a fixed text.
type learner struct {
	model   *torch.Model
	head    *torch.Var
	params  []*torch.Var
	weights int64 // bytes of the layers' linear weights
}

// newLearner makes a learner whose layers are stored as quant says, "" for bfloat16. All learners have the same weights
// and adapters.
func newLearner(t testing.TB, quant torch.QuantType) learner {
	c := smallDecoder()
	c.HiddenSize, c.HeadDim, c.RotaryDim, c.IntermediateSize = 64, 16, 16, 128
	c.Ropes = []torch.Rope{{InvFreq: []float64{1, .5, .2, .1, .05, .02, .01, .005}, Factor: 1}}
	c.RopeOf, c.NormEps = []int{0, 0}, 1e-5
	rng := rand.New(rand.NewPCG(12, 0))
	weights := decoderWeights(t, c, rng, torch.Constant)
	l := learner{head: weights["embed.weight"]}
	for _, name := range slices.Collect(maps.Keys(weights)) {
		v := weights[name]
		shape := must.Get(v.Shape())(t)
		if !strings.HasPrefix(name, "layers.") || len(shape) != 2 {
			continue
		}
		delete(weights, name)
		data := must.Get(v.Read())(t)
		for i := range data {
			data[i] *= 0.4
		}
		small, err := torch.Constant(data, shape...)
		must.Do(t, err)
		t.Cleanup(small.Close)
		kept, label, size := small, "weight", 2*shape[0]*shape[1]
		if quant == "" {
			kept, err = small.To(torch.BF16)
		} else {
			label, size = string(quant), shape[0]*quant.RowBytes(shape[1])
			kept, err = small.Quantize(quant)
		}
		must.Do(t, err)
		t.Cleanup(kept.Close)
		weights[strings.TrimSuffix(name, "weight")+label] = kept
		l.weights += size
	}
	l.model = newDecoder(t, c, weights)
	for n := range c.Layers {
		for _, name := range []string{"q", "v", "down"} {
			in, out := int64(64), map[string]int64{"q": 64, "v": 32, "down": 64}[name]
			if name == "down" {
				in = 128
			}
			a := must.Get(torch.Parameter(drawn(4*in, func() float32 { return float32(rng.Float64()-0.5) / 4 }), 4, in))(t)
			b := must.Get(torch.Parameter(make([]float32, 4*out), out, 4))(t)
			t.Cleanup(a.Close)
			t.Cleanup(b.Close)
			must.Do(t, l.model.Adapt(fmt.Sprintf("layers.%d.%s", n, name), a, b, nil, 2))
			l.params = append(l.params, a, b)
		}
	}
	return l
}

// learn takes steps and returns the loss before each.
func (l learner) learn(t testing.TB, steps int) (losses []float64) {
	rng := rand.New(rand.NewPCG(13, 0))
	var texts [][]int32
	for range 8 {
		text := make([]int32, 12)
		for i := range text {
			text[i] = int32(rng.IntN(23))
		}
		texts = append(texts, text)
	}
	p := torch.Pack(texts)
	var rows, targets []int64
	for s := range texts {
		for i := p.CuSeqlens[s]; i+1 < p.CuSeqlens[s+1]; i++ {
			rows, targets = append(rows, int64(i)), append(targets, p.Tokens[i+1])
		}
	}
	adam := torch.NewOptimizer(torch.AdamEps, torch.ParamGroup{Params: l.params})
	defer adam.Close()
	for range steps {
		err := torch.Do(torch.Train, func(s *torch.Scope) error {
			h, _ := s.Hidden(l.model, p, torch.Pass{Adapter: true, Rows: rows})
			logprobs, _, _ := s.TokenLogProbs(h, l.head.T(), nil, targets, torch.HeadOptions{})
			loss := s.Scale(s.Sum(logprobs), -1/float64(len(rows)))
			losses = append(losses, s.Item(loss))
			s.Backward(loss)
			return nil
		})
		if err == nil {
			_, err = adam.Step([]float64{0.003}, 1)
		}
		must.Do(t, err)
	}
	return losses
}

// TestQLoRA trains adapters on quantised weights: the loss falls as on bfloat16 weights, with a fraction of the memory,
// and an engine gives the same completions in any batch.
func TestQLoRA(t *testing.T) {
	torchtest.NoLeaks(t)
	bf16 := newLearner(t, "")
	want := bf16.learn(t, 20)
	last := want[len(want)-1]
	expect.Require(t, last <= 0.8*want[0], "loss %.3f after %.3f: no improvement", last, want[0])
	for quant, least := range map[torch.QuantType]float64{torch.NF4: 3.5, torch.Int8: 1.8} {
		l := newLearner(t, quant)
		got := l.learn(t, 20)
		a, b := got[len(got)-1], want[len(want)-1]
		expect.True(t, math.Abs(a-b) <= 0.02*b, "%s: loss %.4f after 20 steps, %.4f on bfloat16", quant, a, b)
		ratio := float64(bf16.weights) / float64(l.weights)
		expect.True(t, ratio >= least, "%s: weights are 1/%.2f of bfloat16's, want 1/%.1f", quant, ratio, least)
		request := torch.Request{Prompt: []int32{3, 1, 4, 1, 5}, Samples: 3, MaxNew: 8, Sampling: torch.Sampling{Temperature: 1}, Seed: 7, Adapter: 1}
		alone := newEngine(t, l.model, torch.EngineConfig{Slots: 1})
		submit(t, alone, request)
		batched := newEngine(t, l.model, torch.EngineConfig{Slots: 6})
		submit(t, batched, request)
		other := request
		other.Stream++
		submit(t, batched, other)
		together := complete(t, batched, 64)
		for key, c := range complete(t, alone, 8) {
			expect.Equal(t, c, together[key], fmt.Sprintf("%s: sample %v", quant, key))
		}
	}
}
