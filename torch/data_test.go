package torch_test

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// TestFill checks that parts end up one after the other, rounded like a conversion of the whole.
func TestFill(t *testing.T) {
	torchtest.NoLeaks(t)
	data := make([]float32, 3*70)
	for i := range data {
		data[i] = float32(i*i%97)/7 - 3
	}
	parts := func(sizes ...int) func(func([]float32) error) error {
		return func(write func([]float32) error) error {
			rest := data
			for _, n := range sizes {
				if err := write(rest[:n]); err != nil {
					return err
				}
				rest = rest[n:]
			}
			return nil
		}
	}
	for _, dtype := range []torch.DType{torch.F32, torch.BF16, torch.F16} {
		want := must.Open(must.Open(torch.Constant(data, 3, 70))(t).To(dtype))(t)
		got := must.Open(torch.Fill(dtype, []int64{3, 70}, parts(1, 99, 0, 110)))(t)
		expect.Equal(t, []int64{3, 70}, must.Get(got.Shape())(t), "shape")
		expect.Equal(t, must.Get(want.Read())(t), must.Get(got.Read())(t), dtype)
	}
	v, err := torch.Fill(torch.F32, []int64{2, 70}, parts(100, 41))
	expect.True(t, v == nil && err != nil && strings.Contains(err.Error(), "140 values"), "too many values: %v", err)
	failed := errors.New("the file ends early")
	v, err = torch.Fill(torch.F32, []int64{4}, func(func([]float32) error) error { return failed })
	expect.True(t, v == nil && errors.Is(err, failed), "a source that fails: %v", err)
}

func TestHeldGoesOn(t *testing.T) {
	torchtest.NoLeaks(t)
	w := must.Open(torch.Parameter([]float32{2, 3}, 2))(t)
	var y torch.Tensor
	held := must.Get(torch.Hold(torch.Train, func(s *torch.Scope) error {
		y = s.Mul(w.T(), w.T())
		return nil
	}))(t)
	must.Do(t, held.Do(func(s *torch.Scope) error {
		s.Backward(s.Sum(y))
		grad, _ := s.Grad(w)
		expect.Equal(t, []float32{4, 6}, s.Read(grad), "gradient")
		return nil
	}))
	var failed *torch.Error
	err := held.Do(func(s *torch.Scope) error { s.Mul(y, s.Floats([]float32{1, 2, 3}, 3)); return nil })
	expect.True(t, errors.As(err, &failed), "a product that does not fit: %v", err)
	held.Close()
	held.Close()
	defer func() {
		r, ok := recover().(string)
		expect.True(t, ok && strings.Contains(r, "use of a Held after it was closed"), "recovered %v", r)
	}()
	_ = held.Do(func(*torch.Scope) error { return nil })
}

func TestHoldFreesWhatFailed(t *testing.T) {
	torchtest.NoLeaks(t)
	want := errors.New("no")
	held, err := torch.Hold(torch.NoGrad, func(s *torch.Scope) error {
		s.Floats([]float32{1}, 1)
		return want
	})
	expect.True(t, held == nil && errors.Is(err, want), "%v, %v", held, err)
}

// TestOutOfMemoryIsKnown requests more memory than a process can address, and causes an unrelated error.
func TestOutOfMemoryIsKnown(t *testing.T) {
	const n = 1 << 23
	err := torch.Do(torch.NoGrad, func(s *torch.Scope) error {
		values := make([]float32, n)
		s.Mul(s.Floats(values, n, 1), s.Floats(values, 1, n))
		return nil
	})
	expect.True(t, torch.OutOfMemory(fmt.Errorf("step 3: %w", err)), "%v is taken for no matter of memory", err)
	err = torch.Do(torch.NoGrad, func(s *torch.Scope) error {
		s.Mul(s.Floats(make([]float32, 2), 2), s.Floats(make([]float32, 3), 3))
		return nil
	})
	expect.True(t, err != nil && !torch.OutOfMemory(err) && !torch.OutOfMemory(nil), "%v is taken for a matter of memory", err)
	// Messages of libtorch and CUDA on a GPU.
	for _, text := range []string{
		"CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.19 GiB of which 3.06 MiB is free.",
		"CUDA error: out of memory",
		"CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
	} {
		expect.True(t, torch.OutOfMemory(&torch.Error{Call: "linear", Text: text}), "%q is taken for no matter of memory", text)
	}
}

// TestHeaderIsSmallAndDocumented reads the C header: few functions, each with a comment and an entry in the list of
// symbols looked up at load time.
func TestHeaderIsSmallAndDocumented(t *testing.T) {
	header, loader := must.Read(t, "../csrc/include/rltrain.h"), must.Read(t, "loader.c")
	declared := regexp.MustCompile(`(?m)^[a-z_0-9]+[ *a-z_0-9]*?(rlt_[a-z_]+)\([^;]*\);`).FindAllStringSubmatchIndex(header, -1)
	n := len(declared)
	expect.True(t, n >= 20 && n <= 40, "%d functions, want 20 to 40", n)
	for _, at := range declared {
		name := header[at[2]:at[3]]
		expect.True(t, strings.HasSuffix(strings.TrimRight(header[:at[0]], "\n"), "*/"), "%s has no comment before it", name)
		expect.True(t, strings.Contains(loader, "X("+name+")"), "%s is not in the list of loader.c", name)
	}
}

func TestPackSharedStoresPrefixesOnce(t *testing.T) {
	prompt := []int32{1, 2, 3, 4, 5, 6, 7, 8, 9}
	with := func(more ...int32) []int32 { return append(append([]int32{}, prompt...), more...) }
	for name, test := range map[string]struct {
		sequences [][]int32
		limits    []int
		cu        []int32
		continues []int32
		place     []int64
	}{
		"two answers to a prompt": {
			[][]int32{with(20, 21), with(30)}, []int{9, 9}, []int32{0, 9, 11, 12}, []int32{-1, 0, 0},
			[]int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 1, 2, 3, 4, 5, 6, 7, 8, 11},
		},
		"an answer of no token": {
			[][]int32{with(), with(30)}, []int{9, 9}, []int32{0, 9, 9, 10}, []int32{-1, 0, 0},
			[]int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9},
		},
		"the limit of one": {
			[][]int32{with(20), with(20)}, []int{10, 8}, []int32{0, 8, 10, 12}, []int32{-1, 0, 0},
			[]int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 7, 10, 11},
		},
		"too little in common": {
			[][]int32{{1, 2, 3, 4, 5, 6, 7, 20}, {1, 2, 3, 4, 5, 6, 7, 21}}, []int{8, 8}, []int32{0, 8, 16}, []int32{-1, -1},
			[]int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
		},
		"one alone": {[][]int32{{1, 2}}, []int{2}, []int32{0, 2}, []int32{-1}, []int64{0, 1}},
		"none":      {nil, nil, []int32{0}, nil, nil},
	} {
		p, place := torch.PackShared(test.sequences, test.limits)
		diff := cmp.Diff(test.cu, p.CuSeqlens) + cmp.Diff(test.continues, p.Continues) + cmp.Diff(test.place, place)
		expect.True(t, diff == "", "%s (-want +got):\n%s", name, diff)
		at := 0
		for i, ids := range test.sequences {
			for position, id := range ids {
				row := place[at]
				expect.True(t, p.Tokens[row] == int64(id) && p.Positions[row] == int64(position), "%s: token %d of sequence %d is %d at position %d, want %d at %d", name, position, i, p.Tokens[row], p.Positions[row], id, position)
				at++
			}
		}
	}
}

// TestPackSharedSeparatesPrompts: completions of two prompts with a common prefix stay two groups, because together
// they would share less.
func TestPackSharedSeparatesPrompts(t *testing.T) {
	a, b := make([]int32, 40), make([]int32, 40)
	for i := range 20 {
		a[20+i], b[20+i] = 1, 2
	}
	p, _ := torch.PackShared([][]int32{append(a, 3), append(a, 4), append(b, 3), append(b, 4)}, []int{40, 40, 40, 40})
	expect.Equal(t, []int32{-1, 0, 0, -1, 3, 3}, p.Continues, "continues")
}
