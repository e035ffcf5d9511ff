package policy

import (
	"fmt"
	"math"

	"github.com/rltrain/rltrain/lora"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/transformers"
)

// magnitudes starts DoRA: each row of a weight has the norm that it has without the pair, whose product is zero.
func magnitudes(model *transformers.Causal, pairs []lora.Pair) error {
	layers := layerNames(model.Config.Linears())
	for i := range pairs {
		pair := &pairs[i]
		if err := model.Dense(layers[pair.Module]+".weight", int64(pair.In), func(weight *torch.Var) error {
			values, err := weight.Read()
			pair.Magnitude = make([]float32, pair.Out)
			for o := range len(values) / pair.In {
				squares := 0.0
				for _, w := range values[o*pair.In : (o+1)*pair.In] {
					squares += float64(w) * float64(w)
				}
				pair.Magnitude[o] = float32(math.Sqrt(squares))
			}
			return err
		}); err != nil {
			return fmt.Errorf("policy: %s: %w", pair.Module, err)
		}
	}
	return nil
}

// mergedCopy is a model with a DoRA adapter in its weights, from which the engine generates: it adds pairs to what a layer
// computes, but scales no rows. Other weights are those of the model that it copies.
type mergedCopy struct {
	of      *transformers.Causal
	layers  []adaptedLayer
	model   *transformers.Causal
	weights []*torch.Var // of layers
}

func newMergedCopy(of *transformers.Causal, layers []adaptedLayer) (m *mergedCopy, err error) {
	m = &mergedCopy{of: of, layers: layers}
	defer func() {
		if err != nil {
			m.close()
		}
	}()
	weights := map[string]*torch.Var{}
	for _, l := range layers {
		// The engine packs parameters again at each refresh.
		v, err := torch.Parameter(make([]float32, l.Out*l.In), int64(l.Out), int64(l.In))
		if err != nil {
			return nil, err
		}
		m.weights, weights[l.Layer+".weight"] = append(m.weights, v), v
	}
	if err = m.refresh(); err == nil {
		m.model, err = of.Share(weights)
	}
	return m, err
}

// refresh takes over the adapter as it is now: W + scale·B·A, with rows of the magnitudes.
func (m *mergedCopy) refresh() error {
	for i, l := range m.layers {
		if err := m.of.Dense(l.Layer+".weight", int64(l.In), func(weight *torch.Var) error {
			return torch.Do(torch.NoGrad, func(s *torch.Scope) error {
				w := s.Add(s.Scale(s.MatMul(l.b.T(), l.a.T()), l.scale), weight.T())
				inverse := s.Exp(s.Scale(s.Log(s.SumLast(s.Mul(w, w))), -0.5))
				s.Store(m.weights[i], s.Mul(w, s.View(s.Mul(l.magnitude.T(), inverse), int64(l.Out), 1)))
				return nil
			})
		}); err != nil {
			return err
		}
	}
	return nil
}

func (m *mergedCopy) close() {
	if m.model != nil {
		m.model.Close()
	}
	torch.CloseAll(m.weights...)
}
