package lora

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// Pair is the adapter of one linear module, with weight W [Out, In].
type Pair struct {
	Module     string // canonical: "encoder.layer.0.attention.self.query"
	R, In, Out int
	Scale      float64   // what B·A is multiplied by
	A          []float32 // [R, In], row-major
	B          []float32 // [Out, R], row-major
	// Magnitude is the length of each row of the adapted weight, [Out], with DoRA; nil without.
	Magnitude []float32
}

// Init makes the pair training starts from: A uniform in ±1/√in, which is PEFT's
// kaiming_uniform_ with a = √5, and B zero, so that the module computes as before.
// A is a pure function of the draws of rng, row by row.
func Init(module string, in, out, r int, scale float64, rng *rand.Rand) Pair {
	p := Pair{Module: module, R: r, In: in, Out: out, Scale: scale, A: make([]float32, r*in), B: make([]float32, out*r)}
	bound := 1 / math.Sqrt(float64(in))
	for i := range p.A {
		p.A[i] = float32((2*rng.Float64() - 1) * bound)
	}
	return p
}

// check reports sizes that do not fit each other.
func (p Pair) check() error {
	switch {
	case p.R < 1 || p.In < 1 || p.Out < 1:
		return fmt.Errorf("module %s: rank %d, in %d and out %d are not all above 0", p.Module, p.R, p.In, p.Out)
	case len(p.A) != p.R*p.In:
		return fmt.Errorf("module %s: A has %d elements, [%d %d] takes %d", p.Module, len(p.A), p.R, p.In, p.R*p.In)
	case len(p.B) != p.Out*p.R:
		return fmt.Errorf("module %s: B has %d elements, [%d %d] takes %d", p.Module, len(p.B), p.Out, p.R, p.Out*p.R)
	case p.Magnitude != nil && len(p.Magnitude) != p.Out:
		return fmt.Errorf("module %s: the magnitude vector has %d elements, want %d", p.Module, len(p.Magnitude), p.Out)
	}
	return nil
}

// MergeInto adds Scale·B·A to w [Out, In], row-major, and gives each row the length
// of Magnitude where there is one (Liu et al. 2024, "DoRA: Weight-Decomposed Low-Rank
// Adaptation", eq. 5, by PEFT's rows: a column there is an output here). Sums are in
// float64 and rounded once. A w of another size is a programming error and panics.
func (p Pair) MergeInto(w []float32) {
	if err := p.check(); err != nil {
		panic("lora: " + err.Error())
	}
	if len(w) != p.Out*p.In {
		panic(fmt.Sprintf("lora: module %s: the weight has %d elements, [%d %d] takes %d", p.Module, len(w), p.Out, p.In, p.Out*p.In))
	}
	sum := make([]float64, p.In)
	for o := range p.Out {
		clear(sum)
		for r := range p.R {
			b := p.Scale * float64(p.B[o*p.R+r])
			for i, a := range p.A[r*p.In : (r+1)*p.In] {
				sum[i] += b * float64(a)
			}
		}
		row := w[o*p.In : (o+1)*p.In]
		squares := 0.0
		for i := range row {
			sum[i] += float64(row[i])
			squares += sum[i] * sum[i]
		}
		scale := 1.0
		if p.Magnitude != nil {
			scale = float64(p.Magnitude[o]) / math.Sqrt(squares)
		}
		for i := range row {
			row[i] = float32(scale * sum[i])
		}
	}
}
