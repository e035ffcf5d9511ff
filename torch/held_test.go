package torch_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
)

func TestHeldGoesOn(t *testing.T) {
	torchtest.NoLeaks(t)
	w := must.Get(torch.Parameter([]float32{2, 3}, 2))(t)
	defer w.Close()
	var y torch.Tensor
	held := must.Get(torch.Hold(torch.Train, func(s *torch.Scope) error {
		y = s.Mul(w.T(), w.T())
		return nil
	}))(t)
	if err := held.Do(func(s *torch.Scope) error {
		s.Backward(s.Sum(y))
		grad, _ := s.Grad(w)
		got := s.Read(grad)
		expect.True(t, got[0] == 4 && got[1] == 6, "gradient %v, want [4 6]", got)
		return nil
	}); err != nil {
		t.Error(err)
	}
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
