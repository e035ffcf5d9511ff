package transformers

import (
	"fmt"
	"path/filepath"
	"strconv"

	"rltrain/internal/smallfile"
	"rltrain/torch"
)

// Config is the shape of an encoder and of the head a folder may carry. Fields
// bear the names of config.json.
type Config struct {
	ModelType             string // "bert", "roberta", "distilbert", "modernbert"
	VocabSize             int
	HiddenSize            int // a multiple of NumAttentionHeads
	NumHiddenLayers       int
	NumAttentionHeads     int
	IntermediateSize      int
	HiddenAct             string // "gelu", the exact one with erf, or another of those the core knows
	LayerNormEps          float64
	MaxPositionEmbeddings int
	TypeVocabSize         int // 0 where the family has no token types
	PadTokenID            int // -1 where the file says null
	// Biases are the fields that say whether layers have biases.
	Biases map[string]bool
	// ClassifierMean: the family's classifier reads the mean over a text's tokens, not the first.
	ClassifierMean bool
	// ClassifierActivation follows the dense layer of the family's head where a field says which.
	ClassifierActivation string
	// Blocks is what the core builds of a family that is not of post-norm blocks with learned positions.
	Blocks *torch.DecoderConfig
	// ID2Label names the classes in order; nil where the file has no id2label.
	ID2Label []string
	// NumLabels is the number of classes of the folder's classification head, if it
	// has one: len(ID2Label), else num_labels, else 2 as in transformers.
	NumLabels int
}

// LoadConfig reads config.json of the model folder dir. Both dialects are read,
// that of transformers 4 and that of 5. An unknown model_type, or a field that is
// missing, out of range or asks for something unsupported, is an error that names
// the file and the field.
func LoadConfig(dir string) (*Config, error) {
	path := filepath.Join(dir, "config.json")
	data, err := smallfile.Read(path)
	if err != nil {
		return nil, fmt.Errorf("transformers: %w", err)
	}
	c, err := parseConfig(data)
	if err != nil {
		return nil, fmt.Errorf("transformers: %s: %w", path, err)
	}
	return c, nil
}

func parseConfig(data []byte) (*Config, error) {
	raw, err := parseObject(data)
	if err != nil {
		return nil, err
	}
	f := &fields{raw: raw}
	c := &Config{ModelType: text(f, "model_type", "")}
	if f.err != nil {
		return nil, f.err
	}
	if c.ModelType == "" {
		return nil, fmt.Errorf("model_type is missing, want one of %s", modelTypes())
	}
	fam := families[c.ModelType]
	if fam == nil {
		return nil, fmt.Errorf("model_type %.40q is not supported, want one of %s", c.ModelType, modelTypes())
	}
	f.own = fam.own
	// The upper bounds are far above any real model. They keep a hostile file from
	// asking for unbounded work before its tensors can prove it wrong.
	c.VocabSize = f.size("vocab_size", required, 1<<24)
	c.HiddenSize = f.size("hidden_size", required, 1<<16)
	c.NumHiddenLayers = f.size("num_hidden_layers", required, 1<<10)
	c.NumAttentionHeads = f.size("num_attention_heads", required, 1<<10)
	c.IntermediateSize = f.size("intermediate_size", required, 1<<20)
	c.MaxPositionEmbeddings = f.size("max_position_embeddings", required, 1<<24)
	if fam.types > 0 {
		c.TypeVocabSize = f.size("type_vocab_size", fam.types, 1<<16)
	}
	c.LayerNormEps = fam.eps
	if !fam.fixedEps {
		c.LayerNormEps = value(f, "layer_norm_eps", fam.eps)
	}
	c.HiddenAct = text(f, "hidden_act", "gelu")
	c.PadTokenID = f.padToken(fam.pad, c.VocabSize)
	f.labels(c)
	f.refuse()
	if f.err != nil {
		return nil, f.err
	}
	switch {
	case c.HiddenSize%c.NumAttentionHeads != 0:
		f.fail("%s %d is not a multiple of %s %d", f.spelled("hidden_size"), c.HiddenSize, f.spelled("num_attention_heads"), c.NumAttentionHeads)
	case !(c.LayerNormEps > 0 && c.LayerNormEps < 1):
		f.fail("%s %g is not between 0 and 1", f.spelled("layer_norm_eps"), c.LayerNormEps)
	case fam.offset && c.PadTokenID < 0:
		f.fail("pad_token_id is null, but positions begin after it")
	case c.MaxLength() < 1:
		f.fail("max_position_embeddings %d leaves no position after pad_token_id %d", c.MaxPositionEmbeddings, c.PadTokenID)
	}
	f.activation("hidden_act", c.HiddenAct)
	if fam.special != nil && f.err == nil {
		fam.special(f, c)
	}
	return c, f.err
}

// activation finds the core's number of a named one.
func (f *fields) activation(key, name string) torch.Activation {
	found, ok := activations[name]
	if !ok {
		f.fail("%s %.40q is not supported, want \"silu\", \"gelu\", \"gelu_new\" or \"relu\"", f.spelled(key), name)
	}
	return found
}

// refuse reports fields that would make the folder another model than the one
// this package describes. Fields that change only training, generation or speed
// in transformers are not looked at.
func (f *fields) refuse() {
	if p := text(f, "position_embedding_type", "absolute"); p != "absolute" {
		f.fail("position_embedding_type %.40q is not supported, want \"absolute\"", p)
	}
	for _, key := range []string{"is_decoder", "add_cross_attention"} {
		if value(f, key, false) {
			f.fail("%s true is not supported: an encoder is wanted", key)
		}
	}
	f.forbidQuantization()
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

// labels reads id2label, whose keys are the class numbers in decimal, and
// num_labels, which old files have in its place.
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
