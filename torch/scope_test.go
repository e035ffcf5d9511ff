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
		if err := torch.Do(torch.NoGrad, func(s *torch.Scope) error {
			a, b := s.Floats([]float32{1, 2}, 2), s.Floats([]float32{3, 5}, 2)
			expect.Panic(t, func() { refused(s, a) }, name)
			got := s.Read(s.Sub(b, s.Neg(a)))
			expect.True(t, got[0] == 4 && got[1] == 7, "after %s: 3+1, 5+2: got %v", name, got)
			return nil
		}); err != nil {
			t.Errorf("after %s: %v", name, err)
		}
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
	must.Do(t, torch.Do(torch.NoGrad, func(s *torch.Scope) error {
		v, err := torch.Constant([]float32{1, 2, 3}, 3)
		if err != nil {
			return err
		}
		lent := v.T()
		neg := s.Neg(lent)
		for range 3 {
			runtime.GC()
		}
		expect.Same(t, forgotten, torch.Forgotten(), "the Var was collected while its scope was open")
		expect.Equal(t, []float32{-1, -2, -3}, s.Read(neg))
		v.Close()
		return nil
	}))
}

// TestAdamW compares three steps with the update computed in float64.
func TestAdamW(t *testing.T) {
	torchtest.NoLeaks(t)
	const rate, decay, limit = 0.1, 0.01, 0.5
	start := []float32{1, -2, 0.5}
	p := must.Open(torch.Parameter(start, 3))(t)
	o := torch.NewOptimizer(torch.AdamEps, torch.ParamGroup{Params: []*torch.Var{p}, WeightDecay: decay})
	defer o.Close()

	want := []float64{1, -2, 0.5}
	m, v := make([]float64, 3), make([]float64, 3)
	for step := 1; step <= 3; step++ {
		torchtest.Do(t, torch.Train, func(s *torch.Scope) {
			s.Backward(s.Sum(s.Mul(p.T(), p.T())))
		})
		norm := must.Get(o.Step([]float64{rate}, limit))(t)
		wantNorm := 0.0
		for _, x := range want {
			wantNorm += 4 * x * x
		}
		wantNorm = math.Sqrt(wantNorm)
		expect.True(t, math.Abs(norm-wantNorm) <= 1e-5, "step %d: norm %v, want %v", step, norm, wantNorm)
		for i, x := range want {
			g := 2 * x * min(1, limit/wantNorm)
			m[i] = 0.9*m[i] + 0.1*g
			v[i] = 0.999*v[i] + 0.001*g*g
			mHat, vHat := m[i]/(1-math.Pow(0.9, float64(step))), v[i]/(1-math.Pow(0.999, float64(step)))
			want[i] = x - rate*decay*x - rate*mHat/(math.Sqrt(vHat)+torch.AdamEps)
		}
	}
	got := must.Get(p.Read())(t)
	for i := range want {
		expect.True(t, math.Abs(float64(got[i])-want[i]) <= 1e-5, "parameter %d: %v, want %v", i, got[i], want[i])
	}
}

// TestAdamWClipsGroupsApart infers from the first moments, a tenth of the clipped gradients, which norm clipped each
// group: two groups share a norm, one is separate.
func TestAdamWClipsGroupsApart(t *testing.T) {
	torchtest.NoLeaks(t)
	const limit = 5
	var params []*torch.Var
	for _, x := range []float32{3, 4, 100} { // the gradients of ½Σx²
		p := must.Get(torch.Parameter([]float32{x}, 1))(t)
		defer p.Close()
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
	build := func() (*torch.Model, map[string]*torch.Var) {
		weights := decoderWeights(t, config, rand.New(rand.NewPCG(1, 2)), torch.Constant)
		m := must.Get(torch.NewModel(config, weights))(t)
		return m, weights
	}
	m, weights := build()
	defer func() {
		for _, v := range weights {
			v.Close()
		}
	}()
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
	entropy := func(ps ...float64) float32 {
		var h float64
		for _, p := range ps {
			h -= p * math.Log(p)
		}
		return float32(h)
	}
	weight := []float32{0, ln(2), ln(5)}
	for _, tc := range []struct {
		name          string
		weight        []float32
		bias          []float32
		options       torch.HeadOptions
		want, entropy []float32
	}{
		{"plain", weight, nil, torch.HeadOptions{}, []float32{ln(5.0 / 8), ln(1.0 / 8)}, []float32{entropy(1./8, 2./8, 5./8), entropy(1./8, 2./8, 5./8)}},
		{"all bias", []float32{0, 0, 0}, weight, torch.HeadOptions{}, []float32{ln(5.0 / 8), ln(1.0 / 8)}, []float32{entropy(1./8, 2./8, 5./8), entropy(1./8, 2./8, 5./8)}},
		{"temperature", weight, nil, torch.HeadOptions{Temperature: 0.5}, []float32{ln(25.0 / 30), ln(1.0 / 30)}, []float32{entropy(1./30, 4./30, 25./30), entropy(1./30, 4./30, 25./30)}},
		{"tight softcap", weight, nil, torch.HeadOptions{Softcap: 1e-6}, []float32{ln(1.0 / 3), ln(1.0 / 3)}, []float32{ln(3), ln(3)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			hidden := must.Open(torch.Parameter([]float32{1, 1}, 2, 1))(t)
			err := torch.Do(torch.Train, func(s *torch.Scope) error {
				var bias *torch.Tensor
				if tc.bias != nil {
					b := s.Floats(tc.bias, 3)
					bias = &b
				}
				logprobs, entropy, rank := s.TokenLogProbs(hidden.T(), s.Floats(tc.weight, 3, 1), bias, []int64{2, 0}, tc.options)
				expect.True(t, torchtest.MaxDiff(s.Read(logprobs), tc.want) <= 1e-5, "logprobs %v, want %v", s.Read(logprobs), tc.want)
				expect.True(t, torchtest.MaxDiff(s.Read(entropy), tc.entropy) <= 1e-5, "entropy %v, want %v", s.Read(entropy), tc.entropy)
				expect.Equal(t, []float32{0, 2}, s.Read(rank), "rank")
				s.Backward(s.Sum(logprobs))
				if tc.name == "plain" {
					// The target's weight minus its mean: ln 5 - (2 ln 2 + 5 ln 5)/8, and the same for 0.
					grad, _ := s.Grad(hidden)
					mean := (2*ln(2) + 5*ln(5)) / 8
					expect.True(t, torchtest.MaxDiff(s.Read(grad), []float32{ln(5) - mean, -mean}) <= 1e-5, "gradient %v", s.Read(grad))
				}
				return nil
			})
			must.Do(t, err)
		})
	}
}

func TestTokenLogProbsNamesABadTarget(t *testing.T) {
	torchtest.NoLeaks(t)
	err := torch.Do(torch.NoGrad, func(s *torch.Scope) error {
		s.TokenLogProbs(s.Floats([]float32{1, 1}, 2, 1), s.Floats([]float32{1, 1, 1}, 3, 1), nil, []int64{2, 3}, torch.HeadOptions{})
		return nil
	})
	var native *torch.Error
	expect.True(t, errors.As(err, &native) && strings.Contains(native.Text, "target 3 at position 1"), "error %v", err)
}
