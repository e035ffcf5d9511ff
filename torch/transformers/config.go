package transformers

import (
	"cmp"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/smallfile"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/unpack"
)

// Config is config.json: a model's shape and the description that the core builds it from. Field names follow the
// usual spelling in config.json.
type Config struct {
	ModelType             string // "llama", "bert"
	VocabSize             int
	HiddenSize            int
	NumHiddenLayers       int
	NumAttentionHeads     int // a multiple of NumKeyValueHeads
	NumKeyValueHeads      int // 0: the number of heads
	HeadDim               int // 0: HiddenSize over NumAttentionHeads
	IntermediateSize      int
	EmbeddingSize         int   // of token embeddings; 0: HiddenSize
	NumExperts            int   // of layers that have some
	taps                  int   // of convolutions
	inputSize, inputRows  int   // of a token's input to each layer beside its embedding, 0 for none; and of their table
	laurelRank, streams   int   // of a low-rank map beside attention; streams of hidden states, 0 for one
	layerWidths           []int // intermediate_size of each layer; nil if all have IntermediateSize
	delta                 delta
	HiddenAct             string  // "gelu", the exact one with erf, or another of the core's
	LayerNormEps          float64 // of any norm
	MaxPositionEmbeddings int

	// Fields of causal language models.
	TieWordEmbeddings bool    // the output layer is the embedding
	EOS               []int32 // eos_token_id, which may be a list; nil if missing
	BOS, Pad          int32   // -1 if missing
	Scored            bool    // the folder may be a sequence or token classifier's, with a score layer that the caller reads

	// Fields of encoders.
	TypeVocabSize int // 0 if the family has no token types
	PadTokenID    int // -1 if the file says null
	// ClassifierMean means that the classifier reads the mean over all tokens instead of the first token.
	ClassifierMean bool
	// ClassifierLate means that the classifier reads every token, and the mean of its logits counts.
	ClassifierLate bool
	// ClassifierActivation follows the head's dense layer, in families with a field for it.
	ClassifierActivation string
	// ID2Label names the classes in order; nil if the file has no id2label.
	ID2Label []string
	// NumLabels is the number of classes of the classification head, if there is one: len(ID2Label), else num_labels,
	// else 2 as in transformers.
	NumLabels int

	// Unknown are fields that are neither read nor known to change nothing.
	Unknown []UnknownField

	family  *family         // nil if c was created, not read
	biases  map[string]bool // fields that say whether layers have biases
	core    torch.ModelConfig
	dynamic bool // the rope's kind
	ropes   []ropeSource
	kinds   [][]string      // of each layer, where the family has kinds of layers
	stored  []unpack.Format // of quantised weights
	unused  []string        // patterns of tensors to ignore, beside those of the family

	withoutPositions bool                   // no learned positions, though nothing rotates
	distanceRows     int                    // of the table of distances in files
	normedDistances  bool                   // its rows are normed
	bucketOf         func(distance int) int // the row for a query at i and a key at i - distance
	slopes           []float64              // by which ALiBi lowers each head's scores for each token of distance; nil without
}

// LoadConfig reads config.json of an encoder; LoadCausalConfig that of a causal language model. Both accept the
// dialects of transformers 4 and 5, with the defaults of transformers. An unknown model_type, or a field that is
// missing, out of range or unsupported, is an error that names file and field.
func LoadConfig(dir string) (*Config, error) { return loadConfig(dir, encoders) }

// LoadCausalConfig reads config.json of a causal language model; see LoadConfig.
func LoadCausalConfig(dir string) (*Config, error) { return loadConfig(dir, decoders) }

func loadConfig(dir string, table map[string]*family) (*Config, error) {
	path := filepath.Join(dir, "config.json")
	data, err := smallfile.Read(path)
	if err != nil {
		return nil, fmt.Errorf("transformers: %w", err)
	}
	c, err := parseConfig(data, table)
	if err != nil {
		return nil, fmt.Errorf("transformers: %s: %w", path, err)
	}
	return c, nil
}

// Upper bounds of sizes, far above any real model. They keep a hostile file from causing unbounded work before its
// tensors prove it wrong.
const (
	maxVocab     = 1 << 24
	maxWidth     = 1 << 16
	maxLayers    = 1 << 10
	maxPositions = 1 << 28
)

// parseConfig reads a model_type of one of the families of table.
func parseConfig(data []byte, table map[string]*family) (*Config, error) {
	raw, err := files.Object(data)
	if err != nil {
		return nil, err
	}
	top := &fields{raw: raw}
	c := &Config{ModelType: text(top, "model_type", "")}
	if c.ModelType == "bert" && text(top, "position_embedding_type", "") == "alibi" {
		c.ModelType = "jina_bert"
		if strings.Contains(string(raw["auto_map"]), "qk-post-norm") || strings.Contains(string(raw["_name_or_path"]), "qk-post-norm") {
			c.ModelType = "jina_bert_code"
		}
	}
	if top.err != nil {
		return nil, top.err
	}
	if c.ModelType == "" {
		return nil, fmt.Errorf("model_type is missing, want one of %s", modelTypes(table))
	}
	fam := table[c.ModelType]
	if families[c.ModelType] != nil && families[c.ModelType].encoder != nil && fam == nil {
		return nil, fmt.Errorf("model_type %q is that of an encoder, which classifies texts and cannot generate any; choose a language model: %s", c.ModelType, modelTypes(table))
	}
	if fam == nil {
		return nil, fmt.Errorf("model_type %.40q is not supported, want one of %s", c.ModelType, modelTypes(table))
	}
	f := top
	if inner := fam.inner; inner != "" {
		if f = top.object(inner); f.raw == nil {
			top.fail("%s is missing", inner)
		}
	}
	c.family, f.own, f.older, f.read = fam, fam.own, fam.older, map[string]bool{}
	if c.stored = top.quantised(); f != top {
		c.stored = append(c.stored, f.quantised()...)
	}
	c.readSizes(f)
	if fam.encoder != nil {
		c.readEncoder(f, fam.encoder)
	} else {
		c.TieWordEmbeddings = value(top, "tie_word_embeddings", value(f, "tie_word_embeddings", fam.tied))
		c.readTokens(top, f)
	}
	if err := firstError(top, f); err != nil {
		return nil, err
	}
	c.readBlocks(f)
	if f.err == nil {
		c.refuseUnknown(f)
	}
	return c, f.err
}

func firstError(all ...*fields) error {
	for _, f := range all {
		if f.err != nil {
			return f.err
		}
	}
	return nil
}

func (c *Config) readSizes(f *fields) {
	fam := families[c.ModelType]
	size := func(key string, limit int) int {
		absent, ok := fam.sizes[key]
		if !ok {
			absent = required
		}
		return f.size(key, absent, limit)
	}
	c.VocabSize = size("vocab_size", maxVocab)
	c.HiddenSize = size("hidden_size", maxWidth)
	c.NumHiddenLayers = size("num_hidden_layers", maxLayers)
	c.NumAttentionHeads = size("num_attention_heads", maxLayers)
	c.MaxPositionEmbeddings = size("max_position_embeddings", maxPositions)
	if fam.fourfold && !f.has("intermediate_size") {
		c.IntermediateSize = 4 * c.HiddenSize
	} else if c.readWidths(f); c.layerWidths == nil {
		c.IntermediateSize = size("intermediate_size", 1<<20)
	}
	if fam.embeddingSize > 0 {
		c.EmbeddingSize = f.size("embedding_size", fam.embeddingSize, maxWidth)
	}
	if f.err != nil {
		return
	}
	c.NumKeyValueHeads, c.HeadDim = c.NumAttentionHeads, 0
	if !fam.plainHeads {
		if fam.kvHeads > 0 && !f.isNull("num_key_value_heads") {
			c.NumKeyValueHeads = fam.kvHeads
		}
		c.NumKeyValueHeads = f.size("num_key_value_heads", c.NumKeyValueHeads, maxLayers)
		if fam.headDim > 0 || f.has("head_dim") {
			c.HeadDim = f.size("head_dim", max(fam.headDim, 1), 1<<14)
		}
	}
	switch heads := f.spelled("num_attention_heads"); {
	case f.err != nil:
	case c.HeadDim == 0 && c.HiddenSize%c.NumAttentionHeads != 0:
		f.fail("%s %d is not a multiple of %s %d", f.spelled("hidden_size"), c.HiddenSize, heads, c.NumAttentionHeads)
	case c.HeadDim == 0:
		c.HeadDim = c.HiddenSize / c.NumAttentionHeads
	}
	if f.err == nil && c.NumAttentionHeads%c.NumKeyValueHeads != 0 {
		f.fail("num_attention_heads %d is not a multiple of num_key_value_heads %d", c.NumAttentionHeads, c.NumKeyValueHeads)
	}
}

// readEncoder reads the fields of classifiers.
func (c *Config) readEncoder(f *fields, fam *encoderFamily) {
	if fam.types > 0 {
		c.TypeVocabSize = f.size("type_vocab_size", fam.types, 1<<16)
	}
	c.PadTokenID = f.padToken(fam.pad, c.VocabSize)
	f.labels(c)
	f.refuse(cmp.Or(fam.positions, "absolute"))
	switch {
	case f.err != nil:
	case fam.offset && c.PadTokenID < 0:
		f.fail("pad_token_id is null, but positions begin after it")
	case c.MaxPositionEmbeddings <= c.firstPosition():
		f.fail("max_position_embeddings %d leaves no position after pad_token_id %d", c.MaxPositionEmbeddings, c.PadTokenID)
	}
}

// readTokens reads the special tokens. Models with an inner configuration have some of them at the top level.
func (c *Config) readTokens(top, f *fields) {
	where := func(key string) *fields {
		if top.has(key) {
			return top
		}
		return f
	}
	c.EOS = where("eos_token_id").tokens("eos_token_id", c.VocabSize)
	c.BOS = where("bos_token_id").token("bos_token_id", c.VocabSize)
	c.Pad = where("pad_token_id").token("pad_token_id", c.VocabSize)
}

// tokens reads a token id or a list. Ids outside the vocabulary are dropped, as in transformers: no text contains
// them.
func (f *fields) tokens(key string, vocab int) []int32 {
	var ids []int32
	if raw := f.raw[key]; len(raw) > 0 && raw[0] == '[' {
		ids = value(f, key, ids)
	} else if f.has(key) {
		ids = []int32{value(f, key, int32(0))}
	}
	return slices.DeleteFunc(ids, func(id int32) bool { return id < 0 || int(id) >= vocab })
}

// token reads one token id; -1 if it is outside the vocabulary, which means that the model does not use it.
func (f *fields) token(key string, vocab int) int32 {
	id := value(f, key, int32(-1))
	if int(id) >= vocab {
		return -1
	}
	return max(id, -1)
}

var activations = map[string]torch.Activation{
	"silu": torch.SiLU, "swish": torch.SiLU, "gelu": torch.GELU, "relu": torch.ReLU,
	"gelu_new": torch.GELUTanh, "gelu_fast": torch.GELUTanh, "gelu_pytorch_tanh": torch.GELUTanh,
}

// readBlocks reads the fields that describe a block.
func (c *Config) readBlocks(f *fields) {
	fam := families[c.ModelType]
	epsKey := "rms_norm_eps"
	if fam.normKind == torch.NormLayer {
		epsKey = "layer_norm_eps"
	}
	if c.LayerNormEps = fam.eps; !fam.fixedEps {
		c.LayerNormEps = value(f, epsKey, fam.eps)
	}
	if !(c.LayerNormEps > 0 && c.LayerNormEps < 1) {
		f.fail("%s %g is not between 0 and 1", f.spelled(epsKey), c.LayerNormEps)
	}
	c.HiddenAct = text(f, "hidden_act", fam.activation)
	f.activation("hidden_act", c.HiddenAct)
	rows := slices.Concat(fam.base, fam.allRows())
	if fam.encoder != nil {
		rows = slices.Concat(rows, fam.encoder.pooler, fam.encoder.head)
	}
	c.biases = map[string]bool{}
	for _, row := range rows {
		if row.bias != "" && row.bias != always {
			c.biases[row.bias] = value(f, row.bias, fam.attentionBias)
		}
	}
	c.core = c.plainCore()
	switch {
	case f.err != nil:
	case fam.special != nil:
		fam.special(f, c)
	case fam.encoder == nil:
		f.noLayerTypes()
	}
	if f.err == nil && fam.partial >= 0 && c.core.Ropes == nil {
		c.addRope(f, f.ropeObject(), c.ropeInputs(f))
	}
}

// plainCore is the core's description of a model without special fields.
func (c *Config) plainCore() torch.ModelConfig {
	fam := families[c.ModelType]
	return torch.ModelConfig{
		VocabSize: c.VocabSize, HiddenSize: c.HiddenSize, Layers: c.NumHiddenLayers,
		Heads: c.NumAttentionHeads, KVHeads: c.kvHeads(), HeadDim: c.headDim(),
		IntermediateSize: c.IntermediateSize, MaxPositions: c.MaxPositionEmbeddings,
		TokenTypes: c.TypeVocabSize, FirstPosition: c.firstPosition(),
		Norm: fam.normKind, NormEps: c.LayerNormEps, Activation: activations[c.HiddenAct], QKV: fam.qkv, Residual: fam.residual,
		Gated: fam.gated(), FusedGateUp: fam.gated() && !fam.has("gate"),
		PostNorms: fam.postNorms(), QKNorm: fam.qkNorm(), RopePairs: fam.ropePairs,
		EmbedNorm:     slices.ContainsFunc(fam.base, func(r moduleRow) bool { return r.layer == "embed_norm" }),
		EmbeddingSize: c.widened(), SharedLayers: fam.shared,
		NormAfter: fam.normAfter, Bidirectional: fam.encoder != nil,
		AttentionScale: 1 / math.Sqrt(float64(c.headDim())), EmbeddingScale: 1,
	}
}

// Core is the core's description of the model.
func (c *Config) Core() torch.ModelConfig {
	if c.core.Layers == 0 { // c was created, not read
		return c.plainCore()
	}
	return c.core
}

// widened is the size of embeddings that a layer widens, 0 without such a layer.
func (c *Config) widened() int {
	if c.EmbeddingSize == c.HiddenSize && !families[c.ModelType].alwaysWidens {
		return 0
	}
	return c.EmbeddingSize
}

// storedLayers is the number of layers with weights.
func (c *Config) storedLayers() int {
	if families[c.ModelType].shared {
		return 1
	}
	return c.NumHiddenLayers
}

func (c *Config) headDim() int { return cmp.Or(c.HeadDim, c.HiddenSize/max(c.NumAttentionHeads, 1)) }
func (c *Config) kvHeads() int { return cmp.Or(c.NumKeyValueHeads, c.NumAttentionHeads) }

// firstPosition is the row of the position table for the first token of a text.
func (c *Config) firstPosition() int {
	if e := families[c.ModelType].encoder; e != nil && e.offset {
		return c.PadTokenID + 1
	}
	return 0
}

// MaxLength is the maximum length of a sequence in tokens; 0 means no limit. Learned positions limit it, as does
// dynamic RoPE scaling, which changes with the length beyond. For other language models max_position_embeddings is the
// training length, not a limit.
func (c *Config) MaxLength() int {
	if c.dynamic || c.Core().RotaryDim == 0 || families[c.ModelType].encoder != nil {
		return c.MaxPositionEmbeddings - c.firstPosition()
	}
	return 0
}

// activation maps a name to the core's activation.
func (f *fields) activation(key, name string) torch.Activation {
	found, ok := activations[name]
	if !ok {
		f.fail("%s %.40q is not supported, want \"silu\", \"gelu\", \"gelu_new\" or \"relu\"", f.spelled(key), name)
	}
	return found
}

// refuse rejects fields that describe an unsupported model. Fields that change only training, generation or speed in
// transformers are ignored.
func (f *fields) refuse(positions string) {
	if p := text(f, "position_embedding_type", "absolute"); p != positions {
		f.fail("position_embedding_type %.40q is not supported, want %q", p, positions)
	}
	for _, key := range []string{"is_decoder", "add_cross_attention"} {
		if value(f, key, false) {
			f.fail("%s true is not supported: an encoder is wanted", key)
		}
	}
	if p := value(f, "pruned_heads", map[string]any{}); len(p) > 0 {
		f.fail("pruned_heads is not supported")
	}
}

// padToken reads pad_token_id, which may be null.
func (f *fields) padToken(absent, vocab int) int {
	if string(f.raw["pad_token_id"]) == "null" {
		return -1
	}
	id := value(f, "pad_token_id", absent)
	if f.err == nil && (id < 0 || id >= vocab) {
		f.fail("pad_token_id %d is outside the vocabulary of %d", id, vocab)
	}
	return id
}

// labels reads id2label, whose keys are class numbers in decimal, and num_labels, which older files have instead.
func (f *fields) labels(c *Config) {
	byID := value(f, "id2label", map[string]string(nil))
	c.NumLabels = f.size("num_labels", 2, 1<<20)
	if len(byID) == 0 || f.err != nil {
		return
	}
	if _, ok := f.raw["num_labels"]; ok && c.NumLabels != len(byID) {
		f.fail("num_labels %d, but id2label has %d labels", c.NumLabels, len(byID))
		return
	}
	labels := make([]string, len(byID))
	for i := range labels {
		label, ok := byID[strconv.Itoa(i)]
		if !ok {
			f.fail("id2label has %d labels but none for class %d", len(byID), i)
			return
		}
		labels[i] = label
	}
	c.ID2Label, c.NumLabels = labels, len(labels)
}
