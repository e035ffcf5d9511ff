package transformers

import (
	"cmp"
	"strings"

	"github.com/rltrain/rltrain/torch"
)

// HeadLayers names the linear modules of the family's classification head: out, which gives the logits, and dense
// before it. dense is "" if there is none or if it is frozen with the encoder, like BERT's pooler.
func (c *Config) HeadLayers() (dense, out string) {
	fam := families[c.ModelType].encoder
	return fam.dense, fam.out
}

// HeadModules are the modules of a classifier whose weights PEFT stores whole.
func (c *Config) HeadModules() []string {
	modules := []string{"classifier"}
	if dense, _ := c.HeadLayers(); dense != "" && !strings.Contains(dense, "classifier") {
		first, _, _ := strings.Cut(dense, ".")
		modules = append(modules, first)
	}
	return modules
}

// PoolerName is the module that pooling "family" requires in a folder; "" for none.
func (c *Config) PoolerName() string {
	if pooler := families[c.ModelType].encoder.pooler; len(pooler) > 0 {
		return pooler[0].module
	}
	return ""
}

// Architectures returns the names of transformers' classes of the encoder and its sequence classifier.
func (c *Config) Architectures() (encoder, classifier string) {
	name := families[c.ModelType].encoder.classes
	return name + "Model", name + "ForSequenceClassification"
}

// Features returns the input [S, H] of the last layer of the family's sequence classifiers, for a batch: one vector per
// text, after a dense layer and its activation. dense is that layer of the trained head, if the family has one; else
// Pooler is used.
func (m *Model) Features(s *torch.Scope, packed torch.Packed, pass torch.Pass, dense *Dense) torch.Tensor {
	var x torch.Tensor
	switch {
	case m.Config.ClassifierLate: // the layer of the logits is linear, so that the mean before it is that after it
		all, begins := s.Hidden(m.Encoder, packed, pass)
		return s.SegmentMean(m.dense(s, all, dense), begins)
	case m.Config.ClassifierMean:
		x = s.SegmentMean(s.Hidden(m.Encoder, packed, pass))
	default:
		pass.Rows = make([]int64, packed.Len())
		for i := range pass.Rows {
			pass.Rows[i] = int64(packed.CuSeqlens[i])
		}
		x, _ = s.Hidden(m.Encoder, packed, pass)
	}
	x = m.dense(s, x, dense)
	if m.PoolerNorm != nil {
		x = s.LayerNorm(x, m.PoolerNorm.Weight.T(), m.PoolerNorm.Bias.T(), m.Config.LayerNormEps)
	}
	return x
}

// dense is the layer before the logits, with its activation.
func (m *Model) dense(s *torch.Scope, x torch.Tensor, trained *Dense) torch.Tensor {
	if families[m.Config.ModelType].encoder.dense != "" {
		x = s.Linear(x, trained.Weight.T(), trained.Bias.T())
	} else {
		x = s.FrozenLinear(x, m.Pooler.Weight.T(), m.Pooler.Bias.T())
	}
	return headActivations[m.Config.headActivation()](s, x)
}

func (c *Config) headActivation() string {
	return cmp.Or(c.ClassifierActivation, families[c.ModelType].encoder.act)
}

// headActivations are the activations that heads may have.
var headActivations = map[string]func(*torch.Scope, torch.Tensor) torch.Tensor{
	"tanh": (*torch.Scope).Tanh, "relu": (*torch.Scope).ReLU, "gelu": (*torch.Scope).GELU, "silu": (*torch.Scope).SiLU,
}
