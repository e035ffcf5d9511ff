package transformers

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A family is what a model_type means for names and shapes. Adding one is adding
// a table.
//
// Shapes are spelled by one letter a dimension: V vocabulary, P positions, T token
// types, H hidden, I intermediate, C classes.
type family struct {
	// prefix is what task models put before the names of the encoder.
	prefix string
	// embeddings and head come once, layer once a layer with "N" for its number.
	// pooler and head are optional, each as a whole.
	embeddings, layer, pooler, head []tensorRow
	// linears are the modules of a layer that can carry LoRA: output × input is the
	// shape of their weight in layer.
	linears []string
	// targets are the LoRA targets used when nobody names any.
	targets []string
	// old maps endings of names to those that older files use.
	old     map[string]string
	ignored []string // as ignores reads them
}

type tensorRow struct{ name, shape string }

var families = map[string]*family{
	"bert": {
		prefix: "bert.",
		embeddings: []tensorRow{
			{"embeddings.word_embeddings.weight", "VH"},
			{"embeddings.position_embeddings.weight", "PH"},
			{"embeddings.token_type_embeddings.weight", "TH"},
			{"embeddings.LayerNorm.weight", "H"},
			{"embeddings.LayerNorm.bias", "H"},
		},
		layer: []tensorRow{
			{"encoder.layer.N.attention.self.query.weight", "HH"},
			{"encoder.layer.N.attention.self.query.bias", "H"},
			{"encoder.layer.N.attention.self.key.weight", "HH"},
			{"encoder.layer.N.attention.self.key.bias", "H"},
			{"encoder.layer.N.attention.self.value.weight", "HH"},
			{"encoder.layer.N.attention.self.value.bias", "H"},
			{"encoder.layer.N.attention.output.dense.weight", "HH"},
			{"encoder.layer.N.attention.output.dense.bias", "H"},
			{"encoder.layer.N.attention.output.LayerNorm.weight", "H"},
			{"encoder.layer.N.attention.output.LayerNorm.bias", "H"},
			{"encoder.layer.N.intermediate.dense.weight", "IH"},
			{"encoder.layer.N.intermediate.dense.bias", "I"},
			{"encoder.layer.N.output.dense.weight", "HI"},
			{"encoder.layer.N.output.dense.bias", "H"},
			{"encoder.layer.N.output.LayerNorm.weight", "H"},
			{"encoder.layer.N.output.LayerNorm.bias", "H"},
		},
		pooler: []tensorRow{
			{"pooler.dense.weight", "HH"},
			{"pooler.dense.bias", "H"},
		},
		head: []tensorRow{
			{"classifier.weight", "CH"},
			{"classifier.bias", "C"},
		},
		linears: []string{
			"encoder.layer.N.attention.self.query",
			"encoder.layer.N.attention.self.key",
			"encoder.layer.N.attention.self.value",
			"encoder.layer.N.attention.output.dense",
			"encoder.layer.N.intermediate.dense",
			"encoder.layer.N.output.dense",
		},
		targets: []string{
			"attention.self.query", "attention.self.key", "attention.self.value",
			"attention.output.dense", "intermediate.dense", "output.dense",
		},
		old: map[string]string{
			"LayerNorm.weight": "LayerNorm.gamma",
			"LayerNorm.bias":   "LayerNorm.beta",
		},
		ignored: []string{
			"embeddings.position_ids", "bert.embeddings.position_ids",
			"embeddings.token_type_ids", "bert.embeddings.token_type_ids",
			"cls.*", // the heads of pretraining
		},
	},
}

func modelTypes() string {
	return strings.Join(slices.Sorted(maps.Keys(families)), ", ")
}

// TensorNames lists the model's tensors in the order of a forward pass.
func (c *Config) TensorNames() []TensorSpec {
	fam := families[c.ModelType]
	var specs []TensorSpec
	add := func(group string, rows []tensorRow, layer int) {
		for _, row := range rows {
			name := numbered(row.name, layer)
			specs = append(specs, TensorSpec{
				Name: name, Shape: c.shape(row.shape), Candidates: fam.candidates(name, group), Group: group,
			})
		}
	}
	add("", fam.embeddings, 0)
	for i := range c.NumHiddenLayers {
		add("", fam.layer, i)
	}
	add("pooler", fam.pooler, 0)
	add("head", fam.head, 0)
	return specs
}

// candidates are the spellings of a canonical name. A head belongs to the task
// model itself and takes no prefix.
func (fam *family) candidates(name, group string) []string {
	names := []string{name}
	for suffix, old := range fam.old {
		if stem, ok := strings.CutSuffix(name, suffix); ok {
			names = append(names, stem+old)
		}
	}
	if group == "head" {
		return names
	}
	for _, n := range slices.Clone(names) {
		names = append(names, fam.prefix+n)
	}
	return names
}

func (c *Config) shape(letters string) []int64 {
	shape := make([]int64, len(letters))
	for i, letter := range letters {
		shape[i] = int64(c.dim(letter))
	}
	return shape
}

func (c *Config) dim(letter rune) int {
	switch letter {
	case 'V':
		return c.VocabSize
	case 'P':
		return c.MaxPositionEmbeddings
	case 'T':
		return c.TypeVocabSize
	case 'H':
		return c.HiddenSize
	case 'I':
		return c.IntermediateSize
	case 'C':
		return c.NumLabels
	}
	panic(fmt.Sprintf("transformers: no dimension %q", letter))
}

// Linears lists the linear modules that can carry LoRA, in the order of a forward
// pass.
func (c *Config) Linears() []Linear {
	fam := families[c.ModelType]
	shapes := map[string]string{}
	for _, row := range fam.layer {
		shapes[row.name] = row.shape
	}
	var list []Linear
	for i := range c.NumHiddenLayers {
		for _, name := range fam.linears {
			outIn := []rune(shapes[name+".weight"])
			module := numbered(name, i)
			list = append(list, Linear{Name: module, Layer: module, Out: c.dim(outIn[0]), In: c.dim(outIn[1])})
		}
	}
	return list
}

// DefaultTargets are the LoRA targets of the family when nobody names any, in
// PEFT's sense: a module is meant by its full name or by an ending at a dot.
func (c *Config) DefaultTargets() []string {
	return slices.Clone(families[c.ModelType].targets)
}

// Prefix is what the family's task models, such as a sequence classifier, put
// before the canonical names of the encoder: "bert.".
func (c *Config) Prefix() string { return families[c.ModelType].prefix }
