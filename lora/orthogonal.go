package lora

import (
	"math"
	"math/rand/v2"
)

// InitOrthogonal returns a pair whose product is 0 although neither A nor B is, as PEFT's init_lora_weights "orthogonal" has it: with
// the odd rows O and the even rows E of a random orthogonal matrix [r, r] and independent standard normal M and N,
//
//	A = (M·O)ᵀ/10, M [in, r/2]        B = Nᵀ·E/10, N [r/2, out]        B·A = Nᵀ·E·Oᵀ·Mᵀ/100 = 0
//
// r is even. The module's output is unchanged up to rounding, and both matrices have a gradient from the first update on.
func InitOrthogonal(module string, in, out, r int, scale float64, rng *rand.Rand) Pair {
	p := Pair{Module: module, R: r, In: in, Out: out, Scale: scale, A: make([]float32, r*in), B: make([]float32, out*r)}
	q := orthogonal(r, rng)
	// add puts rows of normal numbers times every other row of q, from the first on, where set says.
	add := func(rows, first int, set func(row, column int, value float32)) {
		sum := make([]float64, r)
		for row := range rows {
			clear(sum)
			for i := first; i < r; i += 2 {
				x := rng.NormFloat64()
				for j, v := range q[i] {
					sum[j] += x * v
				}
			}
			for j, v := range sum {
				set(row, j, float32(v/10))
			}
		}
	}
	add(in, 0, func(row, column int, value float32) { p.A[column*in+row] = value })
	add(out, 1, func(row, column int, value float32) { p.B[row*r+column] = value })
	return p
}

// orthogonal returns the rows of a random orthogonal matrix [n, n], by Gram and Schmidt. Each row is made orthogonal twice, since once
// is not exact enough for late rows.
func orthogonal(n int, rng *rand.Rand) [][]float64 {
	rows := make([][]float64, n)
	for i := range rows {
		row := make([]float64, n)
		for j := range row {
			row[j] = rng.NormFloat64()
		}
		for range 2 {
			for _, other := range rows[:i] {
				along := dot(row, other)
				for j := range row {
					row[j] -= along * other[j]
				}
			}
		}
		length := math.Sqrt(dot(row, row))
		for j := range row {
			row[j] /= length
		}
		rows[i] = row
	}
	return rows
}

func dot(a, b []float64) (sum float64) {
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}
