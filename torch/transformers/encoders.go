package transformers

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A family is what a model_type means for fields, names and shapes. Adding one is adding
// a table.
//
// Shapes are spelled by one letter a dimension: V vocabulary, P positions, T token
// types, H hidden, I intermediate, C classes, G twice I, F queries, keys and values.
type family struct {
	// classes begins the names of transformers' classes: "Bert" of BertModel.
	classes string
	// own are the family's spellings of fields, by the usual ones.
	own map[string]string
	// types and pad are the defaults of type_vocab_size and pad_token_id; with types 0 there
	// is no such field.
	types, pad int
	eps        float64
	fixedEps   bool // no field may say otherwise
	// offset: positions begin after the padding token's number.
	offset bool
	// special reads what only this family has.
	special func(f *fields, c *Config)

	// prefix is what task models put before the names of the encoder.
	prefix string
	// embeddings and head come once, layer once a layer with "N" for its number, finals after
	// all layers. pooler and head are optional, each as a whole.
	embeddings, layer, finals, pooler, head []moduleRow
	// without is the one module of layer that is not there.
	without string
	// plainPooler: the pooler is the task model's own and takes no prefix.
	plainPooler bool
	// dense is the layer of the head before the one that gives the logits, "" where there is none.
	dense, out string
	// act follows the dense layer of the pooler or the head: "tanh".
	act string
	// targets are the LoRA targets used when nobody names any.
	targets []string
	// old maps endings of names to those that older files use.
	old     map[string]string
	ignored []string // as ignores reads them
}

// postNormLayer are the layers of the core's encoder, under the names of a family.
func postNormLayer(query, key, value, output, attentionNorm, up, down, norm string) []moduleRow {
	return []moduleRow{
		{"encoder.layer.N.attention.self.query", query, "HH", always},
		{"encoder.layer.N.attention.self.key", key, "HH", always},
		{"encoder.layer.N.attention.self.value", value, "HH", always},
		{"encoder.layer.N.attention.output.dense", output, "HH", always},
		{"encoder.layer.N.attention.output.LayerNorm", attentionNorm, "H", always},
		{"encoder.layer.N.intermediate.dense", up, "IH", always},
		{"encoder.layer.N.output.dense", down, "HI", always},
		{"encoder.layer.N.output.LayerNorm", norm, "H", always},
	}
}

// sameName is a module that the core calls as the family does.
func sameName(module, shape, bias string) moduleRow { return moduleRow{module, module, shape, bias} }

var (
	bertEmbeddings = []moduleRow{
		sameName("embeddings.word_embeddings", "VH", ""),
		sameName("embeddings.position_embeddings", "PH", ""),
		sameName("embeddings.token_type_embeddings", "TH", ""),
		sameName("embeddings.LayerNorm", "H", always),
	}
	bertLayer = postNormLayer(
		"encoder.layer.N.attention.self.query", "encoder.layer.N.attention.self.key", "encoder.layer.N.attention.self.value",
		"encoder.layer.N.attention.output.dense", "encoder.layer.N.attention.output.LayerNorm",
		"encoder.layer.N.intermediate.dense", "encoder.layer.N.output.dense", "encoder.layer.N.output.LayerNorm")
	bertOld = map[string]string{"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
	// Numbers that releases before 4.31 stored.
	oldBuffers = []string{"*embeddings.position_ids", "*embeddings.token_type_ids"}
)

var families = map[string]*family{
	"bert": {
		classes: "Bert", types: 2, eps: 1e-12,
		prefix: "bert.", embeddings: bertEmbeddings, layer: bertLayer,
		pooler: []moduleRow{sameName("pooler.dense", "HH", always)},
		head:   []moduleRow{sameName("classifier", "CH", always)},
		out:    "classifier", act: "tanh",
		targets: []string{
			"attention.self.query", "attention.self.key", "attention.self.value",
			"attention.output.dense", "intermediate.dense", "output.dense",
		},
		old:     bertOld,
		ignored: append([]string{"cls.*"}, oldBuffers...), // the heads of pretraining
	},
	"roberta": {
		classes: "Roberta", types: 2, pad: 1, eps: 1e-12, offset: true,
		prefix: "roberta.", embeddings: bertEmbeddings, layer: bertLayer,
		head: []moduleRow{
			sameName("classifier.dense", "HH", always),
			sameName("classifier.out_proj", "CH", always),
		},
		dense: "classifier.dense", out: "classifier.out_proj", act: "tanh",
		targets: []string{"query", "value"},
		old:     bertOld,
		// Sequence classifiers do without the pooler.
		ignored: append([]string{"lm_head.*", "pooler.*", "roberta.pooler.*"}, oldBuffers...),
	},
	"distilbert": {
		classes: "DistilBert", eps: 1e-12, fixedEps: true,
		own: map[string]string{
			"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
			"intermediate_size": "hidden_dim", "hidden_act": "activation",
		},
		prefix: "distilbert.",
		embeddings: []moduleRow{
			sameName("embeddings.word_embeddings", "VH", ""),
			sameName("embeddings.position_embeddings", "PH", ""), // sinusoidal ones are stored too
			sameName("embeddings.LayerNorm", "H", always),
		},
		layer: postNormLayer(
			"transformer.layer.N.attention.q_lin", "transformer.layer.N.attention.k_lin", "transformer.layer.N.attention.v_lin",
			"transformer.layer.N.attention.out_lin", "transformer.layer.N.sa_layer_norm",
			"transformer.layer.N.ffn.lin1", "transformer.layer.N.ffn.lin2", "transformer.layer.N.output_layer_norm"),
		head: []moduleRow{
			sameName("pre_classifier", "HH", always),
			sameName("classifier", "CH", always),
		},
		dense: "pre_classifier", out: "classifier", act: "relu",
		targets: []string{"q_lin", "v_lin"},
		old:     bertOld,
		ignored: append([]string{"vocab_transform.*", "vocab_layer_norm.*", "vocab_projector.*"}, oldBuffers...),
	},
	"modernbert": {
		classes: "ModernBert", pad: 50283, eps: 1e-5, special: modernBert,
		own:    map[string]string{"hidden_act": "hidden_activation", "layer_norm_eps": "norm_eps"},
		prefix: "model.",
		embeddings: []moduleRow{
			{"embed", "embeddings.tok_embeddings", "VH", ""},
			{"embed_norm", "embeddings.norm", "H", "norm_bias"},
		},
		layer: []moduleRow{
			{"layers.N.attn_norm", "layers.N.attn_norm", "H", "norm_bias"},
			{"layers.N.qkv", "layers.N.attn.Wqkv", "FH", "attention_bias"},
			{"layers.N.o", "layers.N.attn.Wo", "HH", "attention_bias"},
			{"layers.N.mlp_norm", "layers.N.mlp_norm", "H", "norm_bias"},
			{"layers.N.gate_up", "layers.N.mlp.Wi", "GH", "mlp_bias"},
			{"layers.N.down", "layers.N.mlp.Wo", "HI", "mlp_bias"},
		},
		without: "layers.0.attn_norm", // the norm of the embeddings is right before
		finals:  []moduleRow{{"norm", "final_norm", "H", "norm_bias"}},
		pooler: []moduleRow{
			sameName("head.dense", "HH", "classifier_bias"),
			sameName("head.norm", "H", "norm_bias"),
		},
		plainPooler: true,
		head:        []moduleRow{sameName("classifier", "CH", always)},
		out:         "classifier",
		targets:     []string{"Wqkv"},
		ignored:     []string{"decoder.*"}, // of pretraining
	},
}

func modelTypes() string {
	return strings.Join(slices.Sorted(maps.Keys(families)), ", ")
}

// TensorNames lists the model's tensors in the order of a forward pass.
func (c *Config) TensorNames() []TensorSpec {
	fam := families[c.ModelType]
	var specs []TensorSpec
	add := func(group string, rows []moduleRow, layer int) {
		prefix := fam.prefix
		if group == "head" || group == "pooler" && fam.plainPooler {
			prefix = ""
		}
		for _, row := range rows {
			if numbered(row.module, layer) == fam.without {
				continue
			}
			tensor := func(end, shape string) {
				name := numbered(row.module, layer) + end
				specs = append(specs, TensorSpec{
					Name: name, Core: numbered(row.layer, layer) + end, Shape: c.shape(shape), Prefix: prefix,
					Candidates: fam.candidates(name, prefix), Group: group,
				})
			}
			tensor(".weight", row.shape)
			if row.bias == always || c.Biases[row.bias] {
				tensor(".bias", row.shape[:1])
			}
		}
	}
	add("", fam.embeddings, 0)
	for i := range c.NumHiddenLayers {
		add("", fam.layer, i)
	}
	add("", fam.finals, 0)
	add("pooler", fam.pooler, 0)
	add("head", fam.head, 0)
	return specs
}

// candidates are the spellings of a canonical name, with and without the prefix.
func (fam *family) candidates(name, prefix string) []string {
	names := []string{name}
	for suffix, old := range fam.old {
		if stem, ok := strings.CutSuffix(name, suffix); ok {
			names = append(names, stem+old)
		}
	}
	if prefix == "" {
		return names
	}
	for _, n := range slices.Clone(names) {
		names = append(names, prefix+n)
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
	case 'G':
		return 2 * c.IntermediateSize
	case 'F':
		return 3 * c.HiddenSize
	case 'C':
		return c.NumLabels
	}
	panic(fmt.Sprintf("transformers: no dimension %q", letter))
}

// Linears lists the linear modules that can carry LoRA, in the order of a forward
// pass.
func (c *Config) Linears() []Linear {
	var list []Linear
	for i := range c.NumHiddenLayers {
		for _, row := range families[c.ModelType].layer {
			if len(row.shape) == 2 {
				list = append(list, Linear{
					Name: numbered(row.module, i), Layer: numbered(row.layer, i),
					Out: c.dim(rune(row.shape[0])), In: c.dim(rune(row.shape[1])),
				})
			}
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

// firstPosition is the row of the position table that a text's first token takes.
func (c *Config) firstPosition() int {
	if families[c.ModelType].offset {
		return c.PadTokenID + 1
	}
	return 0
}

// MaxLength is the longest text that the model has positions for, in tokens.
func (c *Config) MaxLength() int { return c.MaxPositionEmbeddings - c.firstPosition() }
