package transformers

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/torch"
)

// A family is what a model_type means for fields, names and shapes. Adding one is adding a table.
//
// Shapes are spelled by one letter a dimension: V vocabulary, P positions, T token types, H hidden, I
// intermediate, G twice that, Q all query heads, K all key heads, F queries, keys and values, D one
// head, C classes.
type family struct {
	// own are the family's spellings of fields, by the usual ones.
	own map[string]string
	// inner is the field that holds the language model's own fields, "" where they lie at the top.
	inner string
	sizes map[string]int // defaults of shape fields that need not be there

	kvHeads, headDim int  // defaults; 0: as many as heads, hidden_size over heads
	plainHeads       bool // no field may say otherwise
	eps              float64
	fixedEps         bool // no field may say otherwise
	activation       string
	theta            float64
	partial          float64           // default share of a head that rotates; 0: all of it, always; -1: learned positions
	ropeAlias        map[string]string // the family's other names of rope_types
	tied             bool
	fourfold         bool // intermediate_size defaults to 4·hidden_size
	attentionBias    bool // default of the field

	normKind  torch.NormKind
	normAfter bool // norms stand after the sums
	qkv       torch.QKVLayout
	residual  torch.Residual
	// special reads what only this family has.
	special func(f *fields, c *Config)

	// prefixes stand before the names of the base model; transformers' own comes first.
	prefixes []string
	base     []moduleRow       // outside of the layers
	without  string            // the one module that is not there
	layers   string            // "layers.N."
	rows     []moduleRow       // within a layer
	conv1D   bool              // files hold linear weights as [in, out]
	old      map[string]string // endings of names and those that older files have for them
	ignored  []string          // as ignores reads them
	// targets are PEFT's LoRA targets when nobody names any; for phi3, which PEFT has none
	// for, the layer that is like those of the others.
	targets []string

	// Of causal language models: names of the output layer, transformers' own in files first.
	heads    []string
	headBias bool
	// encoder is what encoders have beside; nil for causal language models.
	encoder *encoderFamily
}

// An encoderFamily is what a model_type of encoders has for sequence classifiers.
type encoderFamily struct {
	// classes begins the names of transformers' classes: "Bert" of BertModel.
	classes string
	// types and pad are the defaults of type_vocab_size and pad_token_id; with types 0 there
	// is no such field.
	types, pad int
	// offset: positions begin after the padding token's number.
	offset bool
	// prefix is what task models put before the names of the encoder.
	prefix string
	// pooler and head are optional, each as a whole.
	pooler, head []moduleRow
	// plainPooler: the pooler is the task model's own and takes no prefix.
	plainPooler bool
	// dense is the layer of the head before the one that gives the logits, "" where there is none.
	dense, out string
	// act follows the dense layer of the pooler or the head: "tanh".
	act string
}

// families are all of them: causal language models and encoders.
var families = merged(decoders, encoders)

func merged(tables ...map[string]*family) map[string]*family {
	all := map[string]*family{}
	for _, table := range tables {
		maps.Copy(all, table)
	}
	return all
}

func modelTypes(table map[string]*family) string {
	return strings.Join(slices.Sorted(maps.Keys(table)), ", ")
}

// has reports a module of this name in each layer.
func (fam *family) has(layer string) bool {
	return slices.ContainsFunc(fam.rows, func(r moduleRow) bool { return r.layer == layer })
}

// prefixOf is what task models put before the names of the base model.
func (fam *family) prefixOf() string {
	if fam.encoder != nil {
		return fam.encoder.prefix
	}
	return ""
}

// A TensorSpec is a tensor the model has, or may have.
type TensorSpec struct {
	Name       string   // what the core calls it; of a pooler or a head, its Path
	Path       string   // what transformers' model calls it, of an encoder that stands alone
	Prefix     string   // what sequence classifiers put before Path
	Shape      []int64  // weights of linear modules are [out, in]
	Transposed bool     // files hold a matrix as [in, out]
	Candidates []string // what a folder may call it
	// Group is "" for a tensor that must be there. The tensors of another group, the
	// "pooler" or the "head", are all there or all absent; those of "tied" repeat another.
	Group string
}

// stored is the shape that files give it.
func (s TensorSpec) stored() []int64 {
	if s.Transposed {
		return []int64{s.Shape[1], s.Shape[0]}
	}
	return s.Shape
}

// A moduleRow is one module of a family: a linear layer, an embedding or, with one dimension, a norm.
type moduleRow struct {
	layer  string // the core's name
	module string // transformers' name
	shape  string // of the weight
	bias   string // "", always, or the field of config.json that asks for one
}

const always = "+"

// Linear is a linear module that can carry LoRA; its weight is [Out, In].
type Linear struct {
	Name    string // of the module in transformers' model, as PEFT spells it
	Layer   string // what the core calls it
	In, Out int
}

// numbered puts a layer's number in the place of "N".
func numbered(name string, layer int) string {
	return strings.Replace(name, ".N.", "."+strconv.Itoa(layer)+".", 1)
}

// ignores reports that a folder's tensor is one of those that files carry and the model does
// not need. A "*" at an end of a pattern stands for any rest.
func ignores(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		if stem, ok := strings.CutSuffix(pattern, "*"); ok {
			return strings.HasPrefix(name, stem)
		}
		if tail, ok := strings.CutPrefix(pattern, "*"); ok {
			return strings.HasSuffix(name, tail)
		}
		return name == pattern
	})
}
