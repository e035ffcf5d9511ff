package transformers

import (
	"math/rand/v2"
	"strings"

	"github.com/rltrain/rltrain/torch"
)

// Random is a model of the given shape with random weights and no files, for benchmarks and tests: norms
// start at one, biases at zero, the rest is normal with deviation 0.02 as transformers initialises it.
func Random(config *Config, seed uint64) (*Model, error) {
	rng := rand.New(rand.NewPCG(seed, 0))
	weights := map[string]*torch.Var{}
	defer func() {
		for _, v := range weights {
			v.Close()
		}
	}()
	m := &Model{Config: config}
	for _, spec := range config.TensorNames() {
		if spec.Group != "" {
			continue
		}
		n := int64(1)
		for _, d := range spec.Shape {
			n *= d
		}
		data := make([]float32, n)
		switch {
		case len(spec.Shape) == 1 && strings.HasSuffix(spec.Name, ".weight"):
			for i := range data {
				data[i] = 1
			}
		case !strings.HasSuffix(spec.Name, ".bias"):
			for i := range data {
				data[i] = float32(rng.NormFloat64() * 0.02)
			}
		}
		v, err := torch.Constant(data, spec.Shape...)
		if err != nil {
			return nil, err
		}
		weights[spec.Name] = v
		m.Parameters += n
	}
	var err error
	m.Encoder, err = torch.NewModel(config.Core(), weights)
	return m, err
}
