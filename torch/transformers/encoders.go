package transformers

import (
	"cmp"
	"slices"

	"github.com/rltrain/rltrain/torch"
)

// postNorm is a family of blocks like BERT's, with the given module names.
func postNorm(fam family, embeddings []moduleRow, q, k, v, o, attentionNorm, up, down, mlpNorm string) *family {
	fam.activation, fam.partial = cmp.Or(fam.activation, "gelu"), -1
	fam.normKind, fam.normAfter, fam.plainHeads = torch.NormLayer, true, true
	fam.base = embeddings
	fam.rows = []moduleRow{
		{"q", q, "QH", always},
		{"k", k, "KH", always},
		{"v", v, "KH", always},
		{"o", o, "HQ", always},
		{"attn_norm", attentionNorm, "H", always},
		{"up", up, "IH", always},
		{"down", down, "HI", always},
		{"mlp_norm", mlpNorm, "H", always},
	}
	fam.old = map[string]string{"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
	fam.prefixes = []string{"", fam.encoder.prefix}
	// Numbers that releases before 4.31 stored.
	fam.ignored = append(fam.ignored, "*embeddings.position_ids", "*embeddings.token_type_ids")
	return &fam
}

// bert is postNorm with BERT's module names.
func bert(fam family) *family {
	fam.layers = "encoder.layer.N."
	return postNorm(fam, slices.Concat(bertEmbeddings, fam.base), "attention.self.query", "attention.self.key", "attention.self.value",
		"attention.output.dense", "attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm")
}

// roberta is the family of RoBERTa, whose descendants differ in their tokenizers.
func roberta(classes string) *family {
	return bert(family{
		eps: 1e-12,
		encoder: &encoderFamily{
			classes: classes, types: 2, pad: 1, offset: true, prefix: "roberta.",
			head: twoLayers, dense: "classifier.dense", out: "classifier.out_proj", act: "tanh",
		},
		targets: []string{"query", "value"},
		// Sequence classifiers do not use the pooler.
		ignored: []string{"lm_head.*", "pooler.*", "roberta.pooler.*"},
	})
}

// jina is a family of jina v2's encoders, whose code is on the hub and not in transformers.
func jina(up, gated, down, mlpNorm string, more ...moduleRow) *family {
	fam := postNorm(family{
		eps: 1e-12, special: jinaBert, layers: "encoder.layer.N.",
		encoder: &encoderFamily{
			classes: "JinaBert", types: 2, positions: "alibi", prefix: "bert.",
			pooler: []moduleRow{sameName("pooler.dense", "HH", always)},
			head:   []moduleRow{sameName("classifier", "CH", always)},
			out:    "classifier", act: "tanh",
		},
		targets: []string{"query", "value"},
		ignored: []string{"cls.*"},
	}, withoutPositions, "attention.self.query", "attention.self.key", "attention.self.value",
		"attention.output.dense", "attention.output.LayerNorm", gated, down, mlpNorm)
	at := slices.IndexFunc(fam.rows, func(r moduleRow) bool { return r.layer == "up" })
	fam.rows[at] = moduleRow{up, gated, "GH", ""}
	fam.rows = append(fam.rows, more...)
	return fam
}

// twoLayers is a head with a dense layer of its own.
var twoLayers = []moduleRow{sameName("classifier.dense", "HH", always), sameName("classifier.out_proj", "CH", always)}

// sameName is a module outside of the core.
func sameName(module, shape, bias string) moduleRow { return moduleRow{module, module, shape, bias} }

var (
	bertEmbeddings = []moduleRow{
		{"embed", "embeddings.word_embeddings", "VE", ""},
		{"positions", "embeddings.position_embeddings", "PE", ""}, // sinusoidal ones are stored too
		{"types", "embeddings.token_type_embeddings", "TE", ""},
		{"embed_norm", "embeddings.LayerNorm", "E", always},
	}
	withoutTypes     = slices.DeleteFunc(slices.Clone(bertEmbeddings), func(r moduleRow) bool { return r.layer == "types" })
	withoutPositions = slices.DeleteFunc(slices.Clone(bertEmbeddings), func(r moduleRow) bool { return r.layer == "positions" })
)

// encoders are the families of classifiers.
var encoders = map[string]*family{
	"bert": bert(family{
		eps: 1e-12,
		encoder: &encoderFamily{
			classes: "Bert", types: 2, prefix: "bert.",
			pooler: []moduleRow{sameName("pooler.dense", "HH", always)},
			head:   []moduleRow{sameName("classifier", "CH", always)},
			out:    "classifier", act: "tanh",
		},
		targets: []string{
			"attention.self.query", "attention.self.key", "attention.self.value",
			"attention.output.dense", "intermediate.dense", "output.dense",
		},
		ignored: []string{"cls.*"}, // the heads of pretraining
	}),
	"jina_bert": jina("gate_up", "mlp.gated_layers", "mlp.wo", "mlp.layernorm"),
	"jina_bert_code": jina("up_gate", "mlp.up_gated_layer", "mlp.down_layer", "layer_norm_2",
		moduleRow{"sum_norm", "layer_norm_1", "H", always},
		moduleRow{"q_norm", "attention.self.layer_norm_q", "H", always},
		moduleRow{"k_norm", "attention.self.layer_norm_k", "H", always}),
	"roberta":     roberta("Roberta"),
	"xlm-roberta": roberta("XLMRoberta"), // bge-m3, multilingual e5
	"camembert":   roberta("Camembert"),
	"electra": bert(family{
		eps: 1e-12, embeddingSize: 128,
		base: []moduleRow{{"embed_proj", "embeddings_project", "HE", always}},
		encoder: &encoderFamily{
			classes: "Electra", types: 2, prefix: "electra.",
			head: twoLayers, dense: "classifier.dense", out: "classifier.out_proj", act: "gelu",
		},
		targets: []string{"query", "value"},
		ignored: []string{"discriminator_predictions.*", "generator_predictions.*", "generator_lm_head.*"},
	}),
	"albert": postNorm(family{
		eps: 1e-12, activation: "gelu_new", embeddingSize: 128, alwaysWidens: true, shared: true,
		special: func(f *fields, c *Config) {
			for _, key := range []string{"num_hidden_groups", "inner_group_num"} {
				if n := value(f, key, 1); n != 1 {
					f.fail("%s %d is not supported, want 1", key, n)
				}
			}
		},
		layers: "encoder.albert_layer_groups.0.albert_layers.0.",
		encoder: &encoderFamily{
			classes: "Albert", types: 2, prefix: "albert.",
			pooler: []moduleRow{sameName("pooler", "HH", always)},
			head:   []moduleRow{sameName("classifier", "CH", always)},
			out:    "classifier", act: "tanh",
		},
		targets: []string{"query", "value"},
		ignored: []string{"predictions.*", "sop_classifier.*"},
	}, append(slices.Clone(bertEmbeddings), moduleRow{"embed_proj", "encoder.embedding_hidden_mapping_in", "HE", always}),
		"attention.query", "attention.key", "attention.value", "attention.dense", "attention.LayerNorm",
		"ffn", "ffn_output", "full_layer_layer_norm"),
	"mpnet": postNorm(family{
		eps: 1e-12, special: mpnetFields, layers: "encoder.layer.N.",
		encoder: &encoderFamily{
			classes: "MPNet", pad: 1, offset: true, prefix: "mpnet.",
			head: twoLayers, dense: "classifier.dense", out: "classifier.out_proj", act: "tanh",
		},
		targets: []string{"attn.q", "attn.v"},
		ignored: []string{"lm_head.*", "pooler.*", "mpnet.pooler.*"},
	}, append(slices.Clone(withoutTypes), moduleRow{"distances", "encoder.relative_attention_bias", "RN", ""}),
		"attention.attn.q", "attention.attn.k", "attention.attn.v", "attention.attn.o", "attention.LayerNorm",
		"intermediate.dense", "output.dense", "output.LayerNorm"),
	"deberta-v2": postNorm(family{ // DeBERTa v3 too
		eps: 1e-7, special: debertaFields, layers: "encoder.layer.N.",
		encoder: &encoderFamily{
			classes: "DebertaV2", prefix: "deberta.",
			head:  []moduleRow{sameName("pooler.dense", "HH", always), sameName("classifier", "CH", always)},
			dense: "pooler.dense", out: "classifier", act: "gelu",
		},
		targets: []string{"query_proj", "value_proj"},
		ignored: []string{"lm_predictions.*", "mask_predictions.*", "cls.*"},
	}, slices.Concat(bertEmbeddings, []moduleRow{
		{"distances", "encoder.rel_embeddings", "RH", ""},
		{"distances_norm", "encoder.LayerNorm", "H", always},
	}), "attention.self.query_proj", "attention.self.key_proj", "attention.self.value_proj",
		"attention.output.dense", "attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"),
	"distilbert": postNorm(family{
		eps: 1e-12, fixedEps: true,
		own: map[string]string{
			"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
			"intermediate_size": "hidden_dim", "hidden_act": "activation",
		},
		layers: "transformer.layer.N.",
		encoder: &encoderFamily{
			classes: "DistilBert", prefix: "distilbert.",
			head: []moduleRow{
				sameName("pre_classifier", "HH", always),
				sameName("classifier", "CH", always),
			},
			dense: "pre_classifier", out: "classifier", act: "relu",
		},
		targets: []string{"q_lin", "v_lin"},
		ignored: []string{"vocab_transform.*", "vocab_layer_norm.*", "vocab_projector.*"},
	}, withoutTypes, "attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin", "sa_layer_norm",
		"ffn.lin1", "ffn.lin2", "output_layer_norm"),
	"eurobert": { // bidirectional Llama
		eps: 1e-5, activation: "silu", theta: 1e4, special: euroBert, older: map[string]string{"classifier_pooling": "clf_pooling"},
		prefixes: []string{"", "model."}, layers: "layers.N.", base: llamaBase,
		rows: slices.Concat(llamaNorms, splitRows("attention_bias", "attention_bias"), gatedRows("mlp_bias")),
		encoder: &encoderFamily{
			classes: "EuroBert", pad: 128001, prefix: "model.",
			head:  []moduleRow{sameName("dense", "HH", always), sameName("classifier", "CH", always)},
			dense: "dense", out: "classifier", act: "gelu",
		},
		targets: queryValue,
		ignored: []string{"lm_head.*"},
	},
	"nomic_bert": {
		eps: 1e-12, activation: "silu", theta: 1e3, normKind: torch.NormLayer, normAfter: true, plainHeads: true, special: nomicBert,
		older: map[string]string{ // config.json as the models are published
			"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "intermediate_size": "n_inner",
			"max_position_embeddings": "n_positions", "layer_norm_eps": "layer_norm_epsilon", "rope_theta": "rotary_emb_base",
		},
		prefixes: []string{"", "nomic_bert.", "encoder.", "nomic_bert.encoder.", "bert.", "bert.encoder."}, layers: "layers.N.",
		base: withoutPositions,
		rows: slices.Concat(splitRows("", ""), []moduleRow{{"attn_norm", "post_attention_layernorm", "H", always}},
			gatedRows(""), []moduleRow{{"mlp_norm", "post_mlp_layernorm", "H", always}}),
		old: map[string]string{
			"embeddings.LayerNorm.weight": "emb_ln.weight", "embeddings.LayerNorm.bias": "emb_ln.bias",
			"self_attn.o_proj.weight": "attn.out_proj.weight", "mlp.up_proj.weight": "mlp.fc11.weight",
			"mlp.gate_proj.weight": "mlp.fc12.weight", "mlp.down_proj.weight": "mlp.fc2.weight",
			"post_attention_layernorm.weight": "norm1.weight", "post_attention_layernorm.bias": "norm1.bias",
			"post_mlp_layernorm.weight": "norm2.weight", "post_mlp_layernorm.bias": "norm2.bias",
		},
		joined: map[string][]string{"attn.Wqkv.weight": {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"}},
		encoder: &encoderFamily{
			classes: "NomicBert", types: 2, prefix: "nomic_bert.",
			pooler: []moduleRow{sameName("pooler.dense", "HH", always)},
			head:   []moduleRow{sameName("classifier", "CH", always)},
			out:    "classifier", act: "tanh",
		},
		targets: queryValue,
		ignored: []string{"cls.*"},
	},
	"modernbert": {
		eps: 1e-5, activation: "gelu", normKind: torch.NormLayer, qkv: torch.QKVFused, plainHeads: true, special: modernBert,
		own:      map[string]string{"hidden_act": "hidden_activation", "layer_norm_eps": "norm_eps"},
		prefixes: []string{"", "model."}, layers: "layers.N.",
		base: []moduleRow{
			{"embed", "embeddings.tok_embeddings", "VH", ""},
			{"embed_norm", "embeddings.norm", "H", "norm_bias"},
			{"norm", "final_norm", "H", "norm_bias"},
		},
		without: "layers.0.attn_norm", // the norm of the embeddings comes directly before
		rows: []moduleRow{
			{"attn_norm", "attn_norm", "H", "norm_bias"},
			{"qkv", "attn.Wqkv", "FH", "attention_bias"},
			{"o", "attn.Wo", "HQ", "attention_bias"},
			{"mlp_norm", "mlp_norm", "H", "norm_bias"},
			{"gate_up", "mlp.Wi", "GH", "mlp_bias"},
			{"down", "mlp.Wo", "HI", "mlp_bias"},
		},
		encoder: &encoderFamily{
			classes: "ModernBert", pad: 50283, prefix: "model.",
			pooler: []moduleRow{
				sameName("head.dense", "HH", "classifier_bias"),
				sameName("head.norm", "H", "norm_bias"),
			},
			plainPooler: true,
			head:        []moduleRow{sameName("classifier", "CH", always)},
			out:         "classifier",
		},
		targets: []string{"Wqkv"},
		ignored: []string{"decoder.*"}, // of pretraining
	},
}
