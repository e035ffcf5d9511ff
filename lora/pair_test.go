package lora_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/lora"
)

func TestMatch(t *testing.T) {
	names := []string{
		"encoder.layer.0.attention.self.query", "encoder.layer.0.attention.output.dense", "encoder.layer.0.output.dense",
		"encoder.layer.1.attention.self.query", "encoder.layer.1.attention.output.dense", "encoder.layer.1.output.dense", "dense",
	}
	tests := []struct {
		targets []string
		want    []int
	}{
		{[]string{"query"}, []int{0, 3}},
		{[]string{"self.query", "attention.output.dense"}, []int{0, 1, 3, 4}},
		{[]string{"output.dense"}, []int{1, 2, 4, 5}},
		{[]string{"dense"}, []int{1, 2, 4, 5, 6}},
		{[]string{"encoder.layer.1.output.dense"}, []int{5}},
	}
	for _, tt := range tests {
		got := must.Get(lora.Match(names, tt.targets))(t)
		var want []string
		for _, i := range tt.want {
			want = append(want, names[i])
		}
		expect.Equal(t, want, got, tt.targets)
	}
	_, err := lora.Match(names, []string{"query", "uery"})
	want := `lora: target "uery" matches no module; choose from encoder.layer.*.attention.self.query, encoder.layer.*.attention.output.dense, encoder.layer.*.output.dense, dense`
	expect.True(t, err != nil && err.Error() == want, "error %v, want %s", err, want)
	_, err = lora.Match(names, nil)
	expect.True(t, err != nil, "no targets: no error")
}

func TestInit(t *testing.T) {
	p := lora.Init("m", 64, 32, 8, 2, rand.New(rand.NewPCG(1, 2)))
	expect.Require(t, p.Module == "m" && len(p.A) == 8*64 && len(p.B) == 32*8, "%s, %d, %d", p.Module, len(p.A), len(p.B))
	const bound = 0.125 // 1/√64
	var sum, squares float64
	for _, a := range p.A {
		expect.True(t, math.Abs(float64(a)) <= bound, "%g is outside ±%g", a, bound)
		sum += float64(a)
		squares += float64(a) * float64(a)
	}
	// A uniform variable has variance bound²/3; with 512 samples the mean has a standard deviation of bound/39, the variance
	// one of about 1/40 of itself.
	n := float64(len(p.A))
	expect.True(t, math.Abs(sum/n) <= 4*bound/39 && math.Abs(squares/n/(bound*bound/3)-1) <= 0.2,
		"mean %g, mean square %g", sum/n, squares/n)
	for _, b := range p.B {
		expect.Require(t, b == 0, "B is not zero")
	}
	expect.Equal(t, p, lora.Init("m", 64, 32, 8, 2, rand.New(rand.NewPCG(1, 2))))
}

func TestMergeInto(t *testing.T) {
	p := lora.Pair{
		Module: "m", R: 2, In: 3, Out: 2, Scale: 0.5,
		A: []float32{1, 2, 3, 4, 5, 6}, // [2, 3]
		B: []float32{1, 0, -1, 2},      // [2, 2]
	}
	w := []float32{10, 20, 30, 40, 50, 60}
	p.MergeInto(w)
	// B·A = [[1 2 3] [7 8 9]]
	expect.Equal(t, []float32{10.5, 21, 31.5, 43.5, 54, 64.5}, w)
}

func TestMergeIntoByMagnitude(t *testing.T) {
	p := lora.Pair{
		Module: "m", R: 1, In: 2, Out: 2, Scale: 2, A: []float32{1, 0}, B: []float32{1, -1}, Magnitude: []float32{10, 0.5},
	}
	w := []float32{1, 4, 2, -3} // and 2·B·A = [[2 0] [-2 0]]: rows [3 4] and [0 -3], of lengths 5 and 3
	p.MergeInto(w)
	expect.Equal(t, []float32{6, 8, 0, -0.5}, w)
}

func TestMergeIntoPanics(t *testing.T) {
	defer func() {
		r := fmt.Sprint(recover())
		expect.True(t, strings.Contains(r, "module m: the weight has 5 elements, [2 3] needs 6"), "panic %s", r)
	}()
	lora.Init("m", 3, 2, 1, 1, rand.New(rand.NewPCG(1, 2))).MergeInto(make([]float32, 5))
}
