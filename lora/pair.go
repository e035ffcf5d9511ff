package lora

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// Pair is the adapter of a linear module with weight W [Out, In].
type Pair struct {
	Module     string // canonical: "encoder.layer.0.attention.self.query"
	R, In, Out int
	Scale      float64   // factor of B·A
	A          []float32 // [R, In], row-major
	B          []float32 // [Out, R], row-major
	// Experts is how many experts the pair is of, 0 for a linear module. With E of them, A [E·R, In] has the rows of one expert after
	// those of another, and B [Out, R·E] the columns of all experts for one of R beside each other.
	Experts int
	// Magnitude is the norm of each row of the adapted weight, [Out], with DoRA; else nil.
	Magnitude []float32
}

// Init returns the pair at the start of training: A uniform in ±1/√in (PEFT's kaiming_uniform_ with a = √5) and B zero, so
// that the module's output is unchanged. A is a pure function of rng, sampled row by row.
func Init(module string, in, out, r int, scale float64, rng *rand.Rand) Pair {
	p := Pair{Module: module, R: r, In: in, Out: out, Scale: scale, A: make([]float32, r*in), B: make([]float32, out*r)}
	bound := 1 / math.Sqrt(float64(in))
	for i := range p.A {
		p.A[i] = float32((2*rng.Float64() - 1) * bound)
	}
	return p
}

// Width is the number of rows of A and columns of B.
func (p Pair) Width() int { return p.R * max(p.Experts, 1) }

// check reports inconsistent sizes.
func (p Pair) check() error {
	width := p.Width()
	switch {
	case p.R < 1 || p.In < 1 || p.Out < 1:
		return fmt.Errorf("module %s: rank %d, in %d and out %d must all be positive", p.Module, p.R, p.In, p.Out)
	case len(p.A) != width*p.In:
		return fmt.Errorf("module %s: A has %d elements, [%d %d] needs %d", p.Module, len(p.A), width, p.In, width*p.In)
	case len(p.B) != p.Out*width:
		return fmt.Errorf("module %s: B has %d elements, [%d %d] needs %d", p.Module, len(p.B), p.Out, width, p.Out*width)
	case p.Magnitude != nil && len(p.Magnitude) != p.Out:
		return fmt.Errorf("module %s: the magnitude vector has %d elements, want %d", p.Module, len(p.Magnitude), p.Out)
	}
	return nil
}

// MergeInto adds Scale·B·A to w [Out, In], row-major. With Magnitude, it then scales each row to that norm (Liu et al.
// 2024, "DoRA: Weight-Decomposed Low-Rank Adaptation", eq. 5; the paper's columns are rows here, as in PEFT). It sums
// in float64 and rounds once. It panics if w has another size, or if the pair is of experts.
func (p Pair) MergeInto(w []float32) {
	if err := p.check(); err != nil || p.Experts > 0 {
		panic(fmt.Sprintf("lora: module %s of %d experts: %v", p.Module, p.Experts, err))
	}
	if len(w) != p.Out*p.In {
		panic(fmt.Sprintf("lora: module %s: the weight has %d elements, [%d %d] needs %d", p.Module, len(w), p.Out, p.In, p.Out*p.In))
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
