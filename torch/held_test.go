package torch_test

import (
	"errors"
	"strings"
	"testing"

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
		if got := s.Read(grad); got[0] != 4 || got[1] != 6 {
			t.Errorf("gradient %v, want [4 6]", got)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	var failed *torch.Error
	if err := held.Do(func(s *torch.Scope) error { s.Mul(y, s.Floats([]float32{1, 2, 3}, 3)); return nil }); !errors.As(err, &failed) {
		t.Errorf("a product that does not fit: %v", err)
	}
	held.Close()
	held.Close()
	defer func() {
		if r, ok := recover().(string); !ok || !strings.Contains(r, "use of a Held after it was closed") {
			t.Errorf("recovered %v", r)
		}
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
	if held != nil || !errors.Is(err, want) {
		t.Errorf("%v, %v", held, err)
	}
}
