package policy

import (
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// anotherTiny is a model of another width with tinyPolicy's tokens.
func anotherTiny(t *testing.T) *CausalLM {
	t.Helper()
	dir := t.TempDir() + "/other"
	must.Do(t, TinyModel(dir, 1, 64, 11))
	return must.Open(NewCausalLM(Config{Dir: dir}))(t)
}

// capped is a model whose logits have a soft cap.
func capped(t *testing.T, limit float64) *CausalLM {
	t.Helper()
	dir := adapterBase(t, "../../../../torch/transformers/testdata/causal/gemma2")
	for name, change := range map[string]func(map[string]any){
		"config.json": func(c map[string]any) { c["final_logit_softcapping"] = limit },
		"tokenizer.json": func(c map[string]any) {
			maps.DeleteFunc(c["model"].(map[string]any)["vocab"].(map[string]any), func(_ string, id any) bool { return id.(float64) > 60 })
		},
	} {
		content := must.Into[map[string]any](t, files.LoadJSON, filepath.Join(dir, name))
		change(content)
		must.Do(t, files.SaveJSON(filepath.Join(dir, name), content))
	}
	return must.Open(NewCausalLM(Config{Dir: dir, Full: true}))(t)
}

// distributions is log π of every token at each action, in float64 from the policy's log-probabilities.
func distributions(t *testing.T, p *CausalLM, x *rl.Sample, temperature float64) [][]float64 {
	t.Helper()
	var asked []*rl.Sample
	for token := range p.VocabSize() {
		y := *x
		y.Actions = slices.Repeat([]int32{int32(token)}, x.Len())
		asked = append(asked, &y)
	}
	all := make([][]float64, x.Len())
	torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
		for i, l := range s.Read(p.Forward(s, rl.NewBatch(asked), Pass{Temperature: temperature}).LogProbs) {
			all[i%x.Len()] = append(all[i%x.Len()], float64(l))
		}
	})
	return all
}

// apart is a divergence by its definition.
func (d Divergence) apart(p, q []float64) float64 {
	kl := func(a, b []float64) float64 {
		sum := 0.0
		for i := range a {
			sum += math.Exp(a[i]) * (a[i] - b[i])
		}
		return sum
	}
	switch d.Kind {
	case ReverseKL:
		return kl(p, q)
	case ForwardKL:
		return kl(q, p)
	}
	m := make([]float64, len(p))
	for i := range m {
		m[i] = math.Log(d.Mix*math.Exp(q[i]) + (1-d.Mix)*math.Exp(p[i]))
	}
	return d.Mix*kl(q, m) + (1-d.Mix)*kl(p, m)
}

// TestDiverge compares each divergence with its definition in float64, and its gradient with finite differences for
// some weights of the head, a layer and the tied embedding.
func TestDiverge(t *testing.T) {
	tiny, other, low, high := tinyPolicy(t, Config{Full: true}), anotherTiny(t), capped(t, 1), capped(t, 3)
	x := &rl.Sample{Tokens: []int32{3, 9, 14, 20, 8, 1}, Rows: []int{1, 2, 3, 4}, Actions: []int32{14, 20, 8, 1}}
	weight, temperature := []float32{0.5, 0.25, 1, 2}, 0.7
	for _, test := range []struct {
		Divergence
		p, teacher *CausalLM
	}{{Divergence{Kind: ReverseKL}, tiny, other}, {Divergence{Kind: ForwardKL}, low, high}, {Divergence{Kind: JSD, Mix: 0.3}, tiny, other}} {
		t.Run(test.Kind, func(t *testing.T) {
			d, p, teacher := test.Divergence, test.p, test.teacher
			value := func() float64 {
				student, taught := distributions(t, p, x, temperature), distributions(t, teacher, x, temperature)
				sum := 0.0
				for i, w := range weight {
					sum += float64(w) * d.apart(student[i], taught[i])
				}
				return sum
			}
			want := value()
			must.Do(t, torch.Do(torch.Train, func(s *torch.Scope) error {
				batch := rl.NewBatch([]*rl.Sample{x})
				out := p.Forward(s, batch, Pass{Temperature: temperature})
				loss, err := Diverge(s, out, teacher.Forward(s, batch, Pass{Temperature: temperature}), d, weight)
				if err != nil {
					return err
				}
				got := s.Item(loss)
				// Log-probabilities in float32 have an error of some 1e-7 whatever the divergence.
				expect.True(t, math.Abs(got-want) <= 1e-4*math.Abs(want)+1e-6, "divergence %v, want %v", got, want)
				s.Backward(loss)
				return nil
			}))
			for n, v := range p.Params() {
				var slopes []float32
				torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
					g, ok := s.Grad(v)
					expect.Require(t, ok, "parameter %d has no gradient", n)
					slopes = s.Read(g)
				})
				if n%5 > 0 {
					continue // enough of them
				}
				at := 0
				for i := range slopes {
					if math.Abs(float64(slopes[i])) > math.Abs(float64(slopes[at])) {
						at = i
					}
				}
				values := must.Get(v.Read())(t)
				const step = 1e-3
				shifted := func(by float32) float64 {
					old := values[at]
					values[at] = old + by
					defer func() { values[at] = old }()
					must.Do(t, v.Write(values))
					return value()
				}
				numeric := (shifted(step) - shifted(-step)) / (2 * step)
				must.Do(t, v.Write(values))
				got := float64(slopes[at])
				expect.True(t, math.Abs(got-numeric) <= 1e-3+2e-2*math.Abs(numeric), "parameter %d: slope %v, by differences %v", n, got, numeric)
			}
			must.Do(t, torch.ZeroGrad(p.Params()))
		})
	}
}

func TestSameTokens(t *testing.T) {
	p := tinyPolicy(t, Config{})
	expect.NoError(t, p.CheckSameTokenizer(anotherTiny(t)), "CheckSameTokenizer")
	dir := filepath.Join(t.TempDir(), "other")
	must.Do(t, TinyModel(dir, 1, 32, 1))
	path := filepath.Join(dir, "tokenizer.json")
	text := must.Get(os.ReadFile(path))(t)
	must.Do(t, os.WriteFile(path, []byte(strings.NewReplacer(`"a":`, `"b":`, `"b":`, `"a":`).Replace(string(text))), 0o600))
	expect.Error(t, p.CheckSameTokenizer(must.Open(NewCausalLM(Config{Dir: dir}))(t)), `2 of 99 tokens differ, such as "a"`)
}
