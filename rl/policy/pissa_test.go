package policy

import (
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/torch/hub"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// TestPiSSA: the start is PEFT's up to the signs of singular vectors and changes no output, at any scale; what is saved after an update
// is an ordinary adapter of the model in files, and can be put back.
func TestPiSSA(t *testing.T) {
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
		for _, l := range p.adapter.layers { // as an update does
			a := must.Get(l.a.Read())(t)
			for i := range a {
				a[i] *= 1 + 0.1*float32(i%3)
			}
			must.Do(t, l.a.Write(a))
		}
		p.Changed()
		changed := score(p)
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
