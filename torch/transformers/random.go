package transformers

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/rltrain/rltrain/torch"
)

// Random is a model with random weights and no files, for benchmarks and tests: norms 1, biases 0, others normal with
// standard deviation 0.02, as in transformers. dtype is as in Load; "" is fp32.
func Random(config *Config, dtype string, seed uint64) (*Model, error) {
	matrices, known := dtypeOptions[dtype]
	if !known && dtype != "" {
		return nil, fmt.Errorf("transformers: dtype %.40q, want fp32, bf16 or fp16", dtype)
	}
	if !known {
		matrices = torch.F32
	}
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
		as := torch.F32
		if spec.matrix() {
			as = matrices
		}
		v, err := constantAs(data, spec.Shape, as)
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
