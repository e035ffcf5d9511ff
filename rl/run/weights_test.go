package run

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// pair is two weights, of two and three numbers, in a file.
type pair struct {
	vars    []*torch.Var
	changed int
}

func newPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{}
	for _, data := range [][]float32{{1, 2}, {3, 4, 5}} {
		v := must.Open(torch.Parameter(data, int64(len(data))))(t)
		p.vars = append(p.vars, v)
	}
	return p
}

func (p *pair) Params() []*torch.Var { return p.vars }
func (p *pair) Changed()             { p.changed++ }

func (p *pair) SaveWeights(dir string) error {
	s, err := TakeSnapshot(p)
	if err != nil {
		return err
	}
	return safetensors.Write(filepath.Join(dir, "pair.safetensors"), []safetensors.Tensor{values("a", s[0]...), values("b", s[1]...)}, nil)
}

func (p *pair) LoadWeights(dir string) error {
	return readAll(filepath.Join(dir, "pair.safetensors"), func(file *safetensors.File) error {
		for i, name := range []string{"a", "b"} {
			data, err := file.Float32s(name)
			if err != nil {
				return err
			}
			if err := p.vars[i].Write(data); err != nil {
				return err
			}
		}
		return nil
	})
}

func (p *pair) values(t *testing.T) Snapshot {
	t.Helper()
	return must.Get(TakeSnapshot(p))(t)
}

// step descends on the sum of squares.
func (p *pair) step(t *testing.T, o *torch.Optimizer) {
	t.Helper()
	torchtest.Do(t, torch.Train, func(s *torch.Scope) {
		for _, v := range p.vars {
			s.Backward(s.Sum(s.Mul(v.T(), v.T())))
		}
	})
	must.Get(o.Step([]float64{0.1}, 0))(t)
	p.Changed()
}

func TestSnapshots(t *testing.T) {
	torchtest.NoLeaks(t)
	p := newPair(t)
	s := p.values(t)
	s[1][2] = 50
	expect.Equal(t, Snapshot{{1, 2}, {3, 4, 5}}, p.values(t), "a snapshot is the weights themselves")
	err := s.PutBack(p)
	expect.True(t, err == nil && p.changed == 1, "error %v, %d changes reported", err, p.changed)
	expect.Equal(t, Snapshot{{1, 2}, {3, 4, 50}}, p.values(t), "put back")
	expect.Line(t, s[:1].PutBack(p), "1 tensors, want 2")
	expect.Line(t, Snapshot{{1, 2}, {3}}.PutBack(p), "restoring weights")
}

type counters struct {
	Step int     `json:"step"`
	Best float64 `json:"best"`
}

func values(name string, data ...float32) safetensors.Tensor {
	return safetensors.FromFloat32s(name, []int64{int64(len(data))}, data)
}

// TestTrainingStateResumesExactly trains a few steps before and after a checkpoint.
func TestTrainingStateResumesExactly(t *testing.T) {
	torchtest.NoLeaks(t)
	optimizer := func(p *pair) *torch.Optimizer {
		o := torch.NewOptimizer(torch.AdamEps, torch.ParamGroup{Params: p.vars, WeightDecay: 0.1})
		t.Cleanup(o.Close)
		return o
	}
	for name, extra := range map[string]struct{ best, reference Snapshot }{
		"nothing else": {}, "best": {best: Snapshot{{7, 8}, {9, 0.1, 0.2}}}, "both": {Snapshot{{7, 8}, {9, 0.1, 0.2}}, Snapshot{{1, 1}, {1, 1, 1.0 / 3}}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			whole := newPair(t)
			o := optimizer(whole)
			whole.step(t, o)
			whole.step(t, o)
			saved := TrainingState{Weights: whole, Optimizer: o, Best: extra.best, Reference: extra.reference, State: counters{2, 1.0 / 3}}
			must.Do(t, saved.Save(dir))
			whole.step(t, o)

			resumed := newPair(t)
			back := TrainingState{Weights: resumed, Optimizer: optimizer(resumed), State: &counters{}}
			must.Do(t, back.Restore(dir))
			expect.Same(t, 1, resumed.changed, "%d changes reported", resumed.changed)
			expect.Equal(t, &counters{2, 1.0 / 3}, back.State, "state")
			expect.Equal(t, []Snapshot{extra.best, extra.reference}, []Snapshot{back.Best, back.Reference}, "best and reference")
			resumed.step(t, back.Optimizer.(*torch.Optimizer))
			expect.Equal(t, whole.values(t), resumed.values(t), "weights a step later")
		})
	}
}

func TestTrainingStateRefuses(t *testing.T) {
	torchtest.NoLeaks(t)
	p := newPair(t)
	o := torch.NewOptimizer(torch.AdamEps, torch.ParamGroup{Params: p.vars})
	defer o.Close()
	p.step(t, o)
	for name, test := range map[string]struct {
		change func(dir string) error
		want   []string
	}{
		"weights missing": {func(dir string) error { return os.Remove(filepath.Join(dir, "pair.safetensors")) }, []string{"pair.safetensors"}},
		"state missing":   {func(dir string) error { return os.Remove(filepath.Join(dir, stateFile)) }, []string{stateFile}},
		"state broken": {func(dir string) error {
			return os.WriteFile(filepath.Join(dir, stateFile), []byte(`{"state":[]}`), 0o600)
		}, []string{stateFile}},
		"optimiser missing": {func(dir string) error { return os.Remove(filepath.Join(dir, optimizerFile)) }, []string{optimizerFile}},
		"optimiser of others": {func(dir string) error {
			return safetensors.Write(filepath.Join(dir, optimizerFile), []safetensors.Tensor{values("first.0", 1, 2), values("second.0", 1, 2)}, nil)
		}, []string{"has 2 tensors, want 4"}},
		"moment misshapen": {func(dir string) error {
			return safetensors.Write(filepath.Join(dir, optimizerFile), []safetensors.Tensor{
				values("first.0", 1), values("second.0", 1), values("first.1", 1), values("second.1", 1),
			}, nil)
		}, []string{"first.0: "}},
		"best cut short": {func(dir string) error { return Snapshot{{1, 2}}.write(filepath.Join(dir, bestFile)) }, []string{bestFile}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			saved := TrainingState{Weights: p, Optimizer: o, State: counters{}}
			must.Do(t, saved.Save(dir))
			must.Do(t, test.change(dir))
			back := TrainingState{Weights: p, Optimizer: o, State: &counters{}}
			expect.Line(t, back.Restore(dir), append(test.want, "checkpoint: ")...)
		})
	}
}
