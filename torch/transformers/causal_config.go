package transformers

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"

	"rltrain/internal/smallfile"
	"rltrain/torch"
)

// CausalConfig is config.json of a causal language model: its shape, and what the core builds
// of it. Fields bear the names of config.json in its usual spelling, whatever the family's.
type CausalConfig struct {
	ModelType             string // "llama"
	VocabSize             int
	HiddenSize            int
	NumHiddenLayers       int
	NumAttentionHeads     int // a multiple of NumKeyValueHeads
	NumKeyValueHeads      int
	HeadDim               int
	IntermediateSize      int
	MaxPositionEmbeddings int
	TieWordEmbeddings     bool    // the output layer is the embedding
	EOS                   []int32 // eos_token_id, which may be a list; nil where there is none
	BOS, Pad              int32   // -1 where there is none

	family  *causalFamily
	biases  map[string]bool // fields that say whether layers have biases
	decoder torch.DecoderConfig
	dynamic bool // the rope's kind
}

// LoadCausalConfig reads config.json of the model folder dir, in the dialect of transformers 4
// or 5, with transformers' defaults of absent fields. An unknown model_type, or a field that is
// missing, out of range or asks for something unsupported, is an error that names the file and
// the field.
func LoadCausalConfig(dir string) (*CausalConfig, error) {
	path := filepath.Join(dir, "config.json")
	data, err := smallfile.Read(path)
	if err != nil {
		return nil, fmt.Errorf("transformers: %w", err)
	}
	c, err := parseCausalConfig(data)
	if err != nil {
		return nil, fmt.Errorf("transformers: %s: %w", path, err)
	}
	return c, nil
}

// Upper bounds of sizes, far above any real model. They keep a hostile file from asking for
// unbounded work before its tensors can prove it wrong.
const (
	maxVocab     = 1 << 24
	maxWidth     = 1 << 16
	maxLayers    = 1 << 10
	maxPositions = 1 << 28
)

func parseCausalConfig(data []byte) (*CausalConfig, error) {
	raw, err := parseObject(data)
	if err != nil {
		return nil, err
	}
	top := &fields{raw: raw}
	c := &CausalConfig{ModelType: text(top, "model_type", "")}
	if top.err != nil {
		return nil, top.err
	}
	if c.ModelType == "" {
		return nil, fmt.Errorf("model_type is missing, want one of %s", causalTypes())
	}
	if c.family = causalFamilies[c.ModelType]; c.family == nil {
		return nil, fmt.Errorf("model_type %.40q is not supported, want one of %s", c.ModelType, causalTypes())
	}
	f := top
	if inner := c.family.inner; inner != "" {
		if f = top.object(inner); f.raw == nil {
			top.fail("%s is missing", inner)
		}
	}
	f.own = c.family.own
	top.forbidQuantization()
	f.forbidQuantization()
	c.readSizes(f)
	c.TieWordEmbeddings = value(top, "tie_word_embeddings", value(f, "tie_word_embeddings", c.family.tied))
	c.readTokens(top, f)
	if err := firstError(top, f); err != nil {
		return nil, err
	}
	c.readDecoder(f)
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

func (c *CausalConfig) readSizes(f *fields) {
	fam := c.family
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
	} else {
		c.IntermediateSize = size("intermediate_size", 1<<20)
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

// readTokens reads the special tokens, of which models with an inner object have some at the top.
func (c *CausalConfig) readTokens(top, f *fields) {
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

// tokens reads a token id or a list of them. As in transformers, one that is outside of the vocabulary is one that no
// text has: it is left out.
func (f *fields) tokens(key string, vocab int) []int32 {
	var ids []int32
	if raw := f.raw[key]; len(raw) > 0 && raw[0] == '[' {
		ids = value(f, key, ids)
	} else if f.has(key) {
		ids = []int32{value(f, key, int32(0))}
	}
	return slices.DeleteFunc(ids, func(id int32) bool { return id < 0 || int(id) >= vocab })
}

// token reads one token id. Models give ids outside of their vocabulary for tokens that they do
// without: -1 here.
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

func (c *CausalConfig) readDecoder(f *fields) {
	fam := c.family
	epsKey := "rms_norm_eps"
	if fam.normKind == torch.NormLayer {
		epsKey = "layer_norm_eps"
	}
	eps := value(f, epsKey, fam.eps)
	if !(eps > 0 && eps < 1) {
		f.fail("%s %g is not between 0 and 1", f.spelled(epsKey), eps)
	}
	activation := f.activation("hidden_act", text(f, "hidden_act", fam.activation))
	c.biases = map[string]bool{}
	for _, row := range fam.rows {
		if row.bias != "" && row.bias != always {
			c.biases[row.bias] = value(f, row.bias, fam.attentionBias)
		}
	}
	c.decoder = torch.DecoderConfig{
		VocabSize: c.VocabSize, HiddenSize: c.HiddenSize, Layers: c.NumHiddenLayers,
		Heads: c.NumAttentionHeads, KVHeads: c.NumKeyValueHeads, HeadDim: c.HeadDim,
		IntermediateSize: c.IntermediateSize, MaxPositions: c.MaxPositionEmbeddings,
		Norm: fam.normKind, NormEps: eps, Activation: activation, QKV: fam.qkv, Residual: fam.residual,
		Gated: fam.has("gate") || fam.has("gate_up"), FusedGateUp: fam.has("gate_up"),
		PostNorms: fam.has("post_attn_norm"), QKNorm: fam.has("q_norm"),
		AttentionScale: 1 / math.Sqrt(float64(c.HeadDim)), EmbeddingScale: 1,
	}
	if fam.special != nil {
		fam.special(f, c)
	} else {
		f.noLayerTypes()
	}
	if f.err == nil && fam.partial >= 0 && c.decoder.Ropes == nil {
		c.addRope(f, f.ropeObject(), c.ropeInputs(f))
	}
}

// ropeInputs are the fields beside the RoPE parameters.
func (c *CausalConfig) ropeInputs(f *fields) ropeInputs {
	partial := c.family.partial
	in := ropeInputs{headDim: c.HeadDim, maxPositions: c.MaxPositionEmbeddings, wholeHead: partial == 0, alias: c.family.ropeAlias}
	if in.wholeHead {
		partial = 1
	}
	in.theta = f.positive("rope_theta", c.family.theta)
	in.partial = f.positive("partial_rotary_factor", partial)
	const original = "original_max_position_embeddings"
	if in.original = c.family.sizes[original]; f.has(original) {
		in.original = f.size(original, required, maxPositions)
	}
	return in
}

// addRope computes one more table; the first is that of all layers at first.
func (c *CausalConfig) addRope(f, parameters *fields, in ropeInputs) {
	if f.err != nil {
		return
	}
	for _, layers := range []string{"full_attention", "sliding_attention"} {
		if parameters.has(layers) {
			parameters.fail("%s is not supported for this model_type: one kind of RoPE for all layers is wanted", layers)
		}
	}
	table, kind, rotary := rope(parameters, in)
	if f.err = parameters.err; f.err != nil {
		return
	}
	c.dynamic = c.dynamic || kind == "dynamic"
	c.decoder.RotaryDim = rotary
	c.decoder.Ropes = append(c.decoder.Ropes, table)
	if c.decoder.RopeOf == nil {
		c.decoder.RopeOf = make([]int, c.NumHiddenLayers)
	}
}

// Decoder is what the core builds.
func (c *CausalConfig) Decoder() torch.DecoderConfig { return c.decoder }

// MaxLength is the longest sequence that the model can take, in tokens; 0 means any. Learned
// positions end, and so does the range in which dynamically scaled RoPE does not change with the
// length; elsewhere max_position_embeddings is what the model was trained for, no limit.
func (c *CausalConfig) MaxLength() int {
	if c.dynamic || c.decoder.RotaryDim == 0 {
		return c.MaxPositionEmbeddings
	}
	return 0
}
