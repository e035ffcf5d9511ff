package torch_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

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
		whole := must.Get(torch.Constant(data, 3, 70))(t)
		want := must.Get(whole.To(dtype))(t)
		got := must.Get(torch.Fill(dtype, []int64{3, 70}, parts(1, 99, 0, 110)))(t)
		shape, err := got.Shape()
		expect.True(t, err == nil && slices.Equal(shape, []int64{3, 70}), "shape %v, %v", shape, err)
		gotValues := must.Get(got.Read())(t)
		wantValues, err := want.Read()
		expect.True(t, err == nil && slices.Equal(gotValues, wantValues), "%v: parts differ from the whole (%v)", dtype, err)
		torch.CloseAll(whole, want, got)
	}
	v, err := torch.Fill(torch.F32, []int64{2, 70}, parts(100, 41))
	expect.True(t, v == nil && err != nil && strings.Contains(err.Error(), "140 values"), "too many values: %v", err)
	failed := errors.New("the file ends early")
	v, err = torch.Fill(torch.F32, []int64{4}, func(func([]float32) error) error { return failed })
	expect.True(t, v == nil && errors.Is(err, failed), "a source that fails: %v", err)
}
