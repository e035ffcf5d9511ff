package policy

import (
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/hub"
	"github.com/rltrain/rltrain/torch/torchtest"
)

type doraFixture struct {
	IDs       []int32
	Steps     [][]float32 // log-probabilities before each update
	Gradients struct {
		A []float32 `json:"lora_A"`
		B []float32 `json:"lora_B"`
		M []float32 `json:"lora_magnitude_vector"`
	}
	Start []float32
	Noise struct {
		Alpha, Bound float64
		Added        []float32
		LogProbs     []float32 `json:"log_probs"`
	}
}

// TestDoRAAsPEFT trains an adapter of PEFT further: its scores, gradients and updates are PEFT's.
func TestDoRAAsPEFT(t *testing.T) {
	torchtest.NoLeaks(t)
	want := must.Into[doraFixture](t, files.LoadJSON, filepath.Join("testdata", "dora.json"))
	base := adapterBase(t, "llama")
	p := must.Open(LoadCausalLM(t.Context(), &hub.Client{}, changeAdapter(t, "dora", map[string]any{"base_model_name_or_path": base}), "", "", true))(t)
	sequence := Sequence{IDs: want.IDs, Labels: slices.Repeat([]bool{true}, len(want.IDs))}
	sequence.Labels[0] = false
	first := p.adapter.layers[:2] // down_proj and q_proj
	optimizer := torch.NewOptimizer(torch.AdamEps, torch.ParamGroup{Params: p.Params()})
	defer optimizer.Close()
	near := cmpopts.EquateApprox(1e-4, 2e-5)
	for step, logProbs := range want.Steps {
		expect.Equal(t, logProbs, scoresOf(t, p, want.IDs), near, "log-probabilities")
		if step == 0 {
			of := func(choose func(l adaptedLayer) *torch.Var) (grads []float32) {
				torchtest.Do(t, torch.Train, func(s *torch.Scope) {
					descend(s, p, sequence, true)
					for _, l := range first {
						g, _ := s.Grad(choose(l))
						grads = append(grads, s.Read(g)[:8]...)
					}
				})
				must.Do(t, torch.ZeroGrad(p.Params()))
				return grads
			}
			expect.Equal(t, want.Gradients.A, of(func(l adaptedLayer) *torch.Var { return l.a }), near, "gradients of A")
			expect.Equal(t, want.Gradients.B, of(func(l adaptedLayer) *torch.Var { return l.b }), near, "gradients of B")
			expect.Equal(t, want.Gradients.M, of(func(l adaptedLayer) *torch.Var { return l.magnitude }), near, "gradients of magnitudes")
		}
		torchtest.Do(t, torch.Train, func(s *torch.Scope) { descend(s, p, sequence, false) })
		must.Get(optimizer.Step([]float64{1e-2}, 0))(t)
		p.Changed()
	}
	expect.Failure(p.WithAdapter(adapterData("dora")))(t, "magnitudes of DoRA")
}

// descend adds the gradients of a sequence's mean negative log-likelihood.
func descend(s *torch.Scope, p *CausalLM, q Sequence, checkpoint bool) {
	x := Samples([]Sequence{q})
	out := p.Forward(s, rl.NewBatch(x), Pass{Temperature: 1, Checkpoint: checkpoint})
	s.Backward(s.Scale(s.Sum(out.LogProbs), -1/float64(x[0].Len())))
}

// TestNewDoRA: a new adapter has PEFT's magnitudes and changes nothing.
func TestNewDoRA(t *testing.T) {
	want := must.Into[doraFixture](t, files.LoadJSON, filepath.Join("testdata", "dora.json"))
	base := adapterBase(t, "llama")
	p := must.Open(NewCausalLM(Config{Dir: base, R: 2, Alpha: 4, DoRA: true, Targets: []string{"down_proj", "q_proj"}}))(t)
	expect.Same(t, true, must.Get(p.Fresh())(t), "the base model is the reference")
	var start []float32
	pairs := must.Get(p.adapter.pairs())(t)
	slices.SortFunc(pairs, func(a, b lora.Pair) int { return strings.Compare(a.Module, b.Module) })
	for _, pair := range pairs[:2] {
		start = append(start, pair.Magnitude...)
	}
	expect.Equal(t, want.Start, start, cmpopts.EquateApprox(1e-6, 0), "magnitudes")
	bare := must.Open(LoadCausalLM(t.Context(), &hub.Client{}, base, "", "", false))(t)
	expect.Equal(t, scoresOf(t, bare, want.IDs), scoresOf(t, p, want.IDs), cmpopts.EquateApprox(0, 1e-5), "log-probabilities")
	// On quantized weights it starts from those, and the sampler generates as it scores.
	for _, dora := range []bool{false, true} {
		q := must.Open(NewCausalLM(Config{Dir: base, R: 2, Alpha: 4, DoRA: dora, DType: "int8"}))(t)
		sampler := must.Open(q.NewSampler(1))(t)
		start = append(start[:0], scoresOf(t, q, want.IDs)...)
		expect.Equal(t, start, scoresOf(t, p, want.IDs), cmpopts.EquateApprox(0, 0.1), "log-probabilities")
		generatesAsItScores(t, q, sampler, want.IDs[:3], 0.03)
	}
}

// TestNoiseAsTransformers adds transformers' noise to embeddings, and looks at the size of our own.
func TestNoiseAsTransformers(t *testing.T) {
	want := must.Into[doraFixture](t, files.LoadJSON, filepath.Join("testdata", "dora.json"))
	p := must.Open(LoadCausalLM(t.Context(), &hub.Client{}, adapterBase(t, "llama"), "", "", false))(t)
	rows, targets := make([]int64, len(want.IDs)-1), make([]int64, len(want.IDs)-1)
	for i := range rows {
		rows[i], targets[i] = int64(i), int64(want.IDs[i+1])
	}
	width := p.width()
	torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
		states := p.states(s, [][]int32{want.IDs}, rows, torch.Pass{Adapter: true, Noise: func(packed torch.Packed) []float32 {
			return want.Noise.Added[:len(packed.Tokens)*width] // the last token predicts nothing
		}})
		got, _, _ := p.logProbs(s, states, targets, 1)
		expect.Equal(t, want.Noise.LogProbs, s.Read(got), cmpopts.EquateApprox(0, 1e-4), "log-probabilities")
	})
	twice := &rl.Batch{Sequences: [][]int32{want.IDs[:5], want.IDs}, Dropout: []uint64{4, 9}}
	both := p.noise(twice, want.Noise.Alpha)(torch.Pack(twice.Sequences))
	alone := p.noise(&rl.Batch{Sequences: twice.Sequences[1:], Dropout: twice.Dropout[1:]}, want.Noise.Alpha)(torch.Pack(twice.Sequences[1:]))
	expect.Equal(t, alone, both[5*width:], "noise of a sequence, in any batch")
	size := func(noise []float32) (most, deviation float64) {
		for _, x := range noise {
			most, deviation = max(most, math.Abs(float64(x))), deviation+float64(x)*float64(x)
		}
		return most, math.Sqrt(deviation / float64(len(noise)))
	}
	most, deviation := size(alone)
	expect.True(t, most <= want.Noise.Bound && most > 0.97*want.Noise.Bound && math.Abs(deviation/want.Noise.Bound-1/math.Sqrt(3)) < 0.03,
		"noise up to %g with a standard deviation of %g, want uniform in ±%g", most, deviation, want.Noise.Bound)
}

// TestPiSSA: the start is PEFT's up to the signs of singular vectors and changes no output, at any scale; what is saved after an update
// is an ordinary adapter of the model in files, and can be put back.
func TestPiSSA(t *testing.T) {
	expect.Failure(NewCausalLM(Config{Dir: t.TempDir(), R: 4, Alpha: 8, Init: InitPiSSA}))(t, "config.json")
	torchtest.NoLeaks(t)
	base := adapterBase(t, "llama")
	score := func(p *CausalLM) []float32 { return scoresOf(t, p, []int32{7, 41, 12, 88, 3, 60, 23}) }
	near := cmpopts.EquateApprox(0, 1e-4)
	bare := must.Open(LoadCausalLM(t.Context(), &hub.Client{}, base, "", "", false))(t)
	for _, stabilised := range []bool{false, true} {
		c := Config{Dir: base, R: 3, Alpha: 6, RSLoRA: stabilised, Init: InitPiSSA, Targets: []string{"q_proj", "down_proj"}}
		p := must.Open(NewCausalLM(c))(t)
		expect.Equal(t, score(bare), score(p), near, "log-probabilities at the start")
		expect.Same(t, false, must.Get(p.Fresh())(t), "the model without its adapter is the reference")
		if !stabilised {
			for _, pair := range must.Get(lora.Load(adapterData("pissa_start")))(t).Pairs {
				l := p.adapter.layers[slices.IndexFunc(p.adapter.layers, func(l adaptedLayer) bool { return l.Name == pair.Module })]
				a, b := must.Get(l.a.Read())(t), must.Get(l.b.Read())(t)
				for r := range l.r {
					sign := float32(math.Copysign(1, float64(a[r*l.In]*pair.A[r*l.In])))
					for k := range l.In {
						a[r*l.In+k] *= sign
					}
					for o := range l.Out {
						b[o*l.r+r] *= sign
					}
				}
				expect.Equal(t, pair.A, a, near, "A of ", l.Name)
				expect.Equal(t, pair.B, b, near, "B of ", l.Name)
			}
		}
		changed := score(perturbed(t, p))
		saved, merged := t.TempDir(), filepath.Join(t.TempDir(), "merged")
		must.Do(t, p.Save(saved))
		must.Do(t, p.SaveFull(merged, ""))
		again := must.Open(NewCausalLM(c))(t)
		must.Do(t, again.LoadWeights(saved))
		expect.Equal(t, changed, score(again), "log-probabilities after resuming")
		for _, dir := range []string{saved, merged} {
			q := must.Open(LoadCausalLM(t.Context(), &hub.Client{}, dir, "", "", false))(t)
			expect.Equal(t, changed, score(q), near, "log-probabilities of what was saved")
		}
	}
	expect.Failure(NewCausalLM(Config{Dir: base, R: 33, Alpha: 6, Init: InitPiSSA}))(t, "singular values, less than the rank 33")
}
