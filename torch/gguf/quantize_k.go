package gguf

import "math"

const (
	groups    = 8  // of 32 values in a block of Q4_K
	topScale  = 63 // scales and minima have six bits
	topLevel  = 15 // values have four
	searched  = 20 // scales to try in addition to the plain one
	firstStep = -1.0
	stepWidth = 0.1
)

// toQ4_K finds scale and minimum of each group of 32 values, rounds them to six bits of a common d and dmin, and
// finally rounds the values.
func toQ4_K(dst []byte, v []float32) {
	var scales, minima [groups]float64
	topS, topM := 0.0, 0.0
	for g := range groups {
		scales[g], minima[g] = affine(v[32*g:][:32])
		topS, topM = max(topS, scales[g]), max(topM, minima[g])
	}
	putHalf(dst, float32(topS/topScale))
	putHalf(dst[2:], float32(topM/topScale))
	packed := dst[4:16]
	clear(packed)
	for g := range groups {
		s, m := sixBits(scales[g], topS), sixBits(minima[g], topM)
		if g < 4 {
			packed[g] |= s
			packed[g+4] |= m
			continue
		}
		packed[g+4] = s&15 | m&15<<4
		packed[g-4] |= s >> 4 << 6
		packed[g] |= m >> 4 << 6
	}
	d, least := float64(half16(dst)), float64(half16(dst[2:]))
	qs := dst[16:144]
	clear(qs)
	for g := range groups {
		s, m := scaleAndMinimum(packed, g)
		scale, minimum := d*float64(s), least*float64(m)
		if scale == 0 {
			continue
		}
		for i, x := range v[32*g:][:32] {
			qs[g/2*32+i] |= level(math.RoundToEven((float64(x)+minimum)/scale), topLevel+1) << (g % 2 * 4)
		}
	}
}

func sixBits(x, top float64) byte {
	if top == 0 {
		return 0
	}
	return byte(min(math.RoundToEven(x*topScale/top), topScale))
}

// affine finds a scale and minimum, both at least 0, such that scale·q − minimum is close to the values, with q from 0
// to 15. Of several roundings it uses the one with the least squared error after a weighted regression; large values
// weigh more.
func affine(v []float32) (scale, minimum float64) {
	low, high, squares := 0.0, float64(v[0]), 0.0
	for _, x := range v {
		low, high = min(low, float64(x)), max(high, float64(x))
		squares += float64(x) * float64(x)
	}
	if high <= low {
		return 0, -low
	}
	mean := math.Sqrt(squares / float64(len(v)))
	scale, minimum = (high-low)/topLevel, -low
	best := math.Inf(1)
	for step := -1; step <= searched; step++ {
		width := float64(topLevel)
		if step >= 0 {
			width += firstStep + stepWidth*float64(step)
		}
		var w, wx, wq, wqq, wqx float64
		for _, x := range v {
			weight, q := mean+math.Abs(float64(x)), nearestLevel(float64(x), low, width/(high-low))
			w, wx = w+weight, wx+weight*float64(x)
			wq, wqq, wqx = wq+weight*q, wqq+weight*q*q, wqx+weight*q*float64(x)
		}
		s, m := (high-low)/topLevel, low
		if step >= 0 {
			det := w*wqq - wq*wq
			if det <= 0 {
				continue
			}
			s, m = (w*wqx-wx*wq)/det, (wqq*wx-wq*wqx)/det
			if m > 0 {
				s, m = wqx/wqq, 0
			}
		}
		loss := 0.0
		for _, x := range v {
			e := s*nearestLevel(float64(x), low, width/(high-low)) + m - float64(x)
			loss += (mean + math.Abs(float64(x))) * e * e
		}
		if loss < best && s >= 0 {
			best, scale, minimum = loss, s, -m
		}
	}
	return scale, minimum
}

func nearestLevel(x, low, perUnit float64) float64 {
	return min(max(math.RoundToEven((x-low)*perUnit), 0), topLevel)
}
