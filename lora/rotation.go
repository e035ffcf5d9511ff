package lora

import (
	"fmt"
	"math"
)

// changeOFT rotates blocks of a module's inputs: W·Rᵀ, where R = (I − Q)(I + Q)⁻¹ and Q is skew-symmetric (Qiu et al. 2023,
// "Controlling Text-to-Image Diffusion by Orthogonal Finetuning", section 3.3). With CayleyTerms, the inverse is the
// start of its power series.
func changeOFT(module string, t tensors, r *rule) ([]Change, error) {
	const part = ".oft_R.weight"
	q, shape, err := t.read(part, 2)
	if err != nil {
		return nil, err
	}
	blocks, elements := shape[0], shape[1] // above the diagonal of a block
	n := int(math.Round((1 + math.Sqrt(1+8*float64(elements))) / 2))
	if n*(n-1)/2 != elements {
		return nil, fmt.Errorf("tensor %.120q has shape %v, and no block has %d elements above its diagonal", t.names[part], shape, elements)
	}
	var rotations [][]float64
	for b := range blocks {
		rotations = append(rotations, rotation(skew(q[b*elements:(b+1)*elements], n), n, r.CayleyTerms))
	}
	return []Change{change(module+".weight", func(w []float32) {
		sum := make([]float64, n)
		for start := 0; start < len(w); start += n {
			block, turn := w[start:start+n], rotations[start/n%blocks]
			for i := range sum {
				sum[i] = 0
				for k, v := range block {
					sum[i] += turn[i*n+k] * float64(v)
				}
			}
			for i, v := range sum {
				block[i] = float32(v)
			}
		}
	}, 0, blocks*n)}, nil
}

// skew is the skew-symmetric matrix [n, n] with the given elements above its diagonal.
func skew(above []float32, n int) []float64 {
	q := make([]float64, n*n)
	at := 0
	for i := range n {
		for k := i + 1; k < n; k++ {
			q[i*n+k], q[k*n+i] = float64(above[at]), -float64(above[at])
			at++
		}
	}
	return q
}

// rotation is (I − Q)(I + Q)⁻¹ for Q [n, n]; with terms, PEFT's I + 2Q + 2Q² + … + Qᵗ⁻¹, which turns the other way.
func rotation(q []float64, n, terms int) []float64 {
	r := make([]float64, n*n)
	for i := range n {
		r[i*n+i] = 1
	}
	if terms == 0 {
		left := make([]float64, n*n) // I + Q
		for i := range q {
			left[i] = r[i] + q[i]
			r[i] -= q[i]
		}
		solve(left, r, n)
		return r
	}
	add := func(power []float64, factor float64) {
		for i := range r {
			r[i] += factor * power[i]
		}
	}
	if terms > 1 {
		add(q, 2)
	}
	if terms > 2 {
		power := multiply(q, q, n, n, n)
		add(power, 2)
		for range terms - 4 {
			power = multiply(power, q, n, n, n)
			add(power, 2)
		}
		add(multiply(power, q, n, n, n), 1)
	}
	return r
}

// solve replaces b by a⁻¹·b, both [n, n]. It needs no pivots, since the symmetric part of a is the identity.
func solve(a, b []float64, n int) {
	for i := range n {
		inverse := 1 / a[i*n+i]
		for k := range n {
			a[i*n+k] *= inverse
			b[i*n+k] *= inverse
		}
		for row := range n {
			factor := a[row*n+i]
			if row == i || factor == 0 {
				continue
			}
			for k := range n {
				a[row*n+k] -= factor * a[i*n+k]
				b[row*n+k] -= factor * b[i*n+k]
			}
		}
	}
}

// multiply is a [rows, inner] times b [inner, columns].
func multiply(a, b []float64, rows, inner, columns int) []float64 {
	m := make([]float64, rows*columns)
	for i := range rows {
		for k := range inner {
			for j := range columns {
				m[i*columns+j] += a[i*inner+k] * b[k*columns+j]
			}
		}
	}
	return m
}

func widened(values []float32) []float64 {
	wide := make([]float64, len(values))
	for i, v := range values {
		wide[i] = float64(v)
	}
	return wide
}
