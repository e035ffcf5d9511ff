package transformers_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
	"github.com/rltrain/rltrain/torch/transformers"
)

// encoderCases are the folders written by scripts/fixtures/encoder_families.py.
func encoderCases(t *testing.T) []string {
	t.Helper()
	entries := must.Get(os.ReadDir(filepath.Join("testdata", "encoders")))(t)
	var names []string
	for _, e := range entries {
		names = append(names, filepath.Join("encoders", e.Name()))
	}
	return names
}

// logits are those of the family's sequence classifier with a head of these tensors.
func (f fixture) logits(s *torch.Scope, sequences [][]int32, head map[string]*torch.Var, adapter bool) torch.Tensor {
	packed := torch.Pack(sequences)
	dense, out := f.model.Config.HeadLayers()
	x := f.model.Features(s, packed, torch.Pass{Adapter: adapter}, &transformers.Dense{Weight: head[dense+".weight"], Bias: head[dense+".bias"]})
	return s.Linear(x, head[out+".weight"].T(), head[out+".bias"].T())
}

// headParams are the fixture's head tensors as parameters. If the folder has a head, they must equal it.
func (f fixture) headParams(t *testing.T) map[string]*torch.Var {
	t.Helper()
	params := map[string]*torch.Var{}
	dense, out := f.model.Config.HeadLayers()
	for module, own := range map[string]*transformers.Dense{dense: f.model.Dense, out: f.model.Head} {
		for _, end := range []string{".weight", ".bias"} {
			if module == "" {
				continue
			}
			entry, ok := f.expected.Lookup(module + end)
			expect.Require(t, ok, "no %s in the fixture", module+end)
			want := f.want(t, module+end)
			v := must.Open(torch.Parameter(want, entry.Shape...))(t)
			params[module+end] = v
			if own == nil {
				continue
			}
			stored := own.Weight
			if end == ".bias" {
				stored = own.Bias
			}
			got := must.Get(stored.Read())(t)
			torchtest.Near(t, got, want, 0, fmt.Sprintf("%s of the folder", module+end))
		}
	}
	return params
}

func TestEncoderFamiliesEqualTransformers(t *testing.T) {
	for _, name := range encoderCases(t) {
		t.Run(name, func(t *testing.T) {
			f := open(t, name)
			head := f.headParams(t)
			odd := strings.HasSuffix(name, "_odd")
			expect.True(t, f.model.PoolerNorm != nil || odd == (f.model.Head == nil), "a folder with a head: %v", !odd)
			torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
				hidden, _ := s.Hidden(f.model.Encoder, torch.Pack(f.sequences), torch.Pass{})
				torchtest.Near(t, s.Read(hidden), f.want(t, "hidden"), tolerance, "hidden states")
				torchtest.Near(t, s.Read(f.logits(s, f.sequences, head, false)), f.want(t, "logits"), tolerance, "logits")
			})
		})
	}
}

func TestEncoderFamiliesGradientsEqualPEFT(t *testing.T) {
	for _, name := range encoderCases(t) {
		t.Run(name, func(t *testing.T) {
			f := open(t, name)
			head := f.headParams(t)
			params := f.adapt(t)
			maps.Copy(params, head)
			torchtest.Do(t, torch.Train, func(s *torch.Scope) {
				logits := f.logits(s, f.sequences, head, true)
				torchtest.Near(t, s.Read(logits), f.want(t, "adapted_logits"), tolerance, "logits")
				loss := s.Scale(s.Sum(s.Pick(s.LogSoftmax(logits), s.Ints(f.labels, int64(len(f.labels))))), -1/float64(len(f.labels)))
				torchtest.Near(t, s.Read(loss), f.want(t, "loss"), tolerance, "loss")
				s.Backward(loss)
				compareGradients(t, s, params, f.want)
			})
		})
	}
}
