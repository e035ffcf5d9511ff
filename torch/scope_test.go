package torch_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
)

func TestOperators(t *testing.T) {
	torchtest.NoLeaks(t)
	torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
		a := s.Floats([]float32{1, 2, 3, 4, 5, 6}, 2, 3)
		index := s.Ints([]int64{2, 0}, 2)
		for _, tc := range []struct {
			name string
			got  torch.Tensor
			want []float32
		}{
			{"Add", s.Add(a, a), []float32{2, 4, 6, 8, 10, 12}},
			{"Sub", s.Sub(a, a), []float32{0, 0, 0, 0, 0, 0}},
			{"Mul", s.Mul(a, a), []float32{1, 4, 9, 16, 25, 36}},
			{"Scale", s.Scale(a, -0.5), []float32{-0.5, -1, -1.5, -2, -2.5, -3}},
			{"Shift", s.Shift(a, 1), []float32{2, 3, 4, 5, 6, 7}},
			{"Clamp", s.Clamp(a, 2, 5), []float32{2, 2, 3, 4, 5, 5}},
			{"Minimum", s.Minimum(a, s.Scale(a, -1)), []float32{-1, -2, -3, -4, -5, -6}},
			{"Maximum", s.Maximum(a, s.Neg(a)), []float32{1, 2, 3, 4, 5, 6}},
			{"Sum", s.Sum(a), []float32{21}},
			{"SumLast", s.SumLast(a), []float32{6, 15}},
			{"MatMul", s.MatMul(a, s.Floats([]float32{1, 0, 0, 1, 1, 1}, 3, 2)), []float32{4, 5, 10, 11}},
			{"Pick", s.Pick(a, index), []float32{3, 4}},
			{"Rows", s.Rows(a, s.Ints([]int64{1}, 1)), []float32{4, 5, 6}},
			{"SegmentMean", s.SegmentMean(a, s.Int32s([]int32{0, 2}, 2)), []float32{2.5, 3.5, 4.5}},
		} {
			expect.Equal(t, tc.want, s.Read(tc.got), tc.name)
		}
	})
}

// A refused call leaves no state behind for the next one.
func TestRefusedCallDoesNotAffectTheNext(t *testing.T) {
	for name, refused := range map[string]func(s *torch.Scope, a torch.Tensor){
		"a tensor of no scope":   func(s *torch.Scope, a torch.Tensor) { s.Add(a, torch.Tensor{}) },
		"shapes that do not fit": func(s *torch.Scope, a torch.Tensor) { s.Add(a, s.Floats([]float32{1, 2, 3}, 3)) },
	} {
		torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
			a, b := s.Floats([]float32{1, 2}, 2), s.Floats([]float32{3, 5}, 2)
			expect.Panic(t, func() { refused(s, a) }, name)
			expect.Equal(t, []float32{4, 7}, s.Read(s.Sub(b, s.Neg(a))), "after ", name)
		})
	}
}

func TestErrorsNameTheOperator(t *testing.T) {
	torchtest.NoLeaks(t)
	err := torch.Do(torch.NoGrad, func(s *torch.Scope) error {
		s.Linear(s.Floats(make([]float32, 4), 2, 2), s.Floats(make([]float32, 6), 2, 3), s.Floats(make([]float32, 2), 2))
		return nil
	})
	var native *torch.Error
	expect.True(t, errors.As(err, &native) && native.Call == "aten::linear" && !strings.Contains(native.Text, "\n"), "got %v, want a one-line error of aten::linear", err)
}

func TestGradModeBelongsToTheScope(t *testing.T) {
	torchtest.NoLeaks(t)
	p := must.Open(torch.Parameter([]float32{3}, 1))(t)
	for _, tc := range []struct {
		mode torch.Mode
		want bool
	}{{torch.NoGrad, false}, {torch.Train, true}} {
		err := torch.Do(tc.mode, func(s *torch.Scope) error {
			s.Backward(s.Sum(s.Mul(p.T(), p.T())))
			return nil
		})
		expect.Same(t, err == nil, tc.want, "mode %v: backward gave %v", tc.mode, err)
	}
	torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
		g, ok := s.Grad(p)
		expect.True(t, ok && s.Item(g) == 6, "gradient of p² at 3: %v %v, want 6", ok, s.Item(g))
	})
}

func TestUseAfterCloseIsCaught(t *testing.T) {
	torchtest.NoLeaks(t)
	var stale torch.Tensor
	torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
		stale = s.Floats([]float32{1}, 1)
	})
	defer func() {
		r, ok := recover().(string)
		expect.True(t, ok && strings.Contains(r, "after its scope"), "recovered %v, want the panic about a closed scope", r)
	}()
	_ = torch.Do(torch.NoGrad, func(s *torch.Scope) error {
		s.Neg(stale)
		return nil
	})
}

func TestVarLentToAScopeIsNotCollected(t *testing.T) {
	torchtest.NoLeaks(t)
	forgotten := torch.Forgotten()
	torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
		v := must.Get(torch.Constant([]float32{1, 2, 3}, 3))(t)
		lent := v.T()
		neg := s.Neg(lent)
		for range 3 {
			runtime.GC()
		}
		expect.Same(t, forgotten, torch.Forgotten(), "the Var was collected while its scope was open")
		expect.Equal(t, []float32{-1, -2, -3}, s.Read(neg))
		v.Close()
	})
}

// TestAdamWClipsGroupsApart infers from the first moments, a tenth of the clipped gradients, which norm clipped each
// group: two groups share a norm, one is separate.
func TestAdamWClipsGroupsApart(t *testing.T) {
	torchtest.NoLeaks(t)
	const limit = 5
	var params []*torch.Var
	for _, x := range []float32{3, 4, 100} { // the gradients of ½Σx²
		p := must.Open(torch.Parameter([]float32{x}, 1))(t)
		params = append(params, p)
	}
	backward := func(scale float64) {
		t.Helper()
		torchtest.Do(t, torch.Train, func(s *torch.Scope) {
			for _, p := range params {
				s.Backward(s.Scale(s.Sum(s.Mul(p.T(), p.T())), scale/2))
			}
		})
	}
	for _, test := range []struct {
		apart [3]bool
		limit float64
		norm  float64
		want  [3]float64
	}{
		{[3]bool{false, false, true}, limit, 5, [3]float64{3, 4, limit}},
		{[3]bool{false, false, true}, 4, 5, [3]float64{2.4, 3.2, 4}},
		{[3]bool{true, true, true}, 3.5, 0, [3]float64{3, 3.5, 3.5}},
		{[3]bool{}, limit, math.Sqrt(10025), [3]float64{15 / math.Sqrt(10025), 20 / math.Sqrt(10025), 500 / math.Sqrt(10025)}},
		{[3]bool{false, false, true}, 0, 5, [3]float64{3, 4, 100}},
	} {
		var groups []torch.ParamGroup
		for i, p := range params {
			groups = append(groups, torch.ParamGroup{Params: []*torch.Var{p}, Apart: test.apart[i]})
		}
		o := torch.NewOptimizer(torch.AdamEps, append(groups, torch.ParamGroup{Apart: true})...)
		backward(1)
		norm, err := o.Step(make([]float64, 4), test.limit) // learning rate 0: the parameters stay
		must.Do(t, err)
		states := must.Get(o.States())(t)
		for i, want := range test.want {
			moment := must.Get(states[2*i].Read())(t)
			got := 10 * float64(moment[0])
			expect.True(t, math.Abs(got-want) <= 1e-4 && math.Abs(norm-test.norm) <= 1e-4, "%+v: gradient %d is clipped to %v, the norm is %v", test, i, got, norm)
		}
		o.Close()
	}

	o := torch.NewOptimizer(torch.AdamEps, torch.ParamGroup{Params: params[:2]}, torch.ParamGroup{Params: params[2:], Apart: true})
	defer o.Close()
	torchtest.Do(t, torch.Train, func(s *torch.Scope) {
		for i, p := range params {
			s.Backward(s.Scale(s.Sum(p.T()), []float64{1, 1, math.Inf(1)}[i]))
		}
	})
	var nonFinite *torch.NonFiniteError
	_, err := o.Step([]float64{1, 1}, limit)
	expect.True(t, errors.As(err, &nonFinite), "error %v, want that a norm is not finite", err)
	for i, want := range []float32{3, 4, 100} {
		got, err := params[i].Read()
		expect.True(t, err == nil && got[0] == want, "a refused step leaves %v, %v; want %v", got, err, want)
	}
	must.Do(t, torch.ZeroGrad(params))
}

func TestThreadRunsOnOneOSThreadAndCarriesPanics(t *testing.T) {
	thread := torch.NewThread()
	defer thread.Close()
	wrong := errors.New("wrong")
	err := thread.Do(t.Context(), func(context.Context) error { return wrong })
	expect.True(t, errors.Is(err, wrong), "got %v, want %v", err, wrong)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	busy, block, finished := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		finished <- thread.Do(context.Background(), func(context.Context) error {
			close(busy)
			<-block
			return nil
		})
	}()
	<-busy
	err = thread.Do(ended, func(context.Context) error { return nil })
	expect.True(t, errors.Is(err, context.Canceled), "on a busy thread, got %v, want %v", err, context.Canceled)
	close(block)
	expect.NoError(t, <-finished, "value")
	defer func() {
		expect.Same(t, "inside", recover(), "recovered")
	}()
	_ = thread.Do(t.Context(), func(context.Context) error { panic("inside") })
}

// Handles of closed tensors never reach the core.
func TestClosedModelsAndVarsAreCaught(t *testing.T) {
	config := smallDecoder()
	weights := decoderWeights(t, config, rand.New(rand.NewPCG(1, 2)))
	m := must.Get(torch.NewModel(config, weights))(t)
	a := must.Get(torch.Constant(make([]float32, 2*config.HiddenSize), 2, int64(config.HiddenSize)))(t)
	a.Close()
	caught := func(what, want string, f func()) {
		t.Helper()
		defer func() {
			r, ok := recover().(string)
			expect.True(t, ok && strings.Contains(r, want), "%s: recovered %v, want a panic with %q", what, r, want)
		}()
		f()
	}
	caught("an adapter of a closed Var", "use of a Var after it was closed", func() { _ = m.Adapt("layers.0.attn.q", a, a, nil, 1) })
	m.Close()
	m.Close()
	caught("Adapt", "use of a Model after it was closed", func() { _ = m.Adapt("layers.0.attn.q", a, a, nil, 1) })
	caught("NewEngine", "use of a Model after it was closed", func() { _, _ = torch.NewEngine(m, torch.EngineConfig{Slots: 1}) })
	caught("Hidden", "use of a Model after it was closed", func() {
		_ = torch.Do(torch.NoGrad, func(s *torch.Scope) error {
			s.Hidden(m, torch.Pack([][]int32{{1, 2}}), torch.Pass{})
			return nil
		})
	})
	for _, v := range weights {
		v.Close()
	}
	caught("a model of closed Vars", "use of a Var after it was closed", func() { _, _ = torch.NewModel(config, weights) })
}

// Logits 0, ln 2, ln 5 have probabilities 1/8, 2/8, 5/8; at temperature ½ (squared) 1/30, 4/30, 25/30.
func TestTokenLogProbs(t *testing.T) {
	torchtest.NoLeaks(t)
	ln := func(x float64) float32 { return float32(math.Log(x)) }
	torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
		products := []float32{0, ln(2), ln(5)}
		weight, bias := s.Floats(products, 3, 1), s.Floats(products, 3)
		for name, tc := range map[string]struct {
			weight  torch.Tensor
			bias    *torch.Tensor
			options torch.HeadOptions
			p       []float64
		}{
			"plain":         {weight, nil, torch.HeadOptions{}, []float64{1. / 8, 2. / 8, 5. / 8}},
			"all bias":      {s.Scale(weight, 0), &bias, torch.HeadOptions{}, []float64{1. / 8, 2. / 8, 5. / 8}},
			"temperature":   {weight, nil, torch.HeadOptions{Temperature: 0.5}, []float64{1. / 30, 4. / 30, 25. / 30}},
			"tight softcap": {weight, nil, torch.HeadOptions{Softcap: 1e-6}, []float64{1. / 3, 1. / 3, 1. / 3}},
		} {
			logprobs, entropy, rank := s.TokenLogProbs(s.Floats([]float32{1, 1}, 2, 1), tc.weight, tc.bias, []int64{2, 0}, tc.options)
			h := float32(0)
			for _, p := range tc.p {
				h -= float32(p) * ln(p)
			}
			torchtest.Near(t, s.Read(logprobs), []float32{ln(tc.p[2]), ln(tc.p[0])}, 1e-5, name+": log-probabilities")
			torchtest.Near(t, s.Read(entropy), []float32{h, h}, 1e-5, name+": entropy")
			expect.Equal(t, []float32{0, 2}, s.Read(rank), name+": rank")
		}
	})
	err := torch.Do(torch.NoGrad, func(s *torch.Scope) error {
		s.TokenLogProbs(s.Floats([]float32{1, 1}, 2, 1), s.Floats([]float32{1, 1, 1}, 3, 1), nil, []int64{2, 3}, torch.HeadOptions{})
		return nil
	})
	expect.Error(t, err, "target 3 at position 1")
}
