package transformers

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/torch"
)

// A family describes the fields, names and shapes of a model_type. To add one, add a table.
//
// Shapes use one letter per dimension: V vocabulary, P positions, T token types, H hidden, I intermediate, G
// 2·intermediate, E embeddings, R buckets of distances, N heads, Q all query heads, K all key heads, F queries, keys and values, D one head, C classes, X experts, M width of an expert, S of what all tokens pass, B three H, L taps of a convolution, J twice Q. Z and Y a token's input to one layer and to all, r rows of these, l rank of a LAuReL, s streams, t their square. Of delta rules: A value heads, O one of them, W all of them, U keys twice and W.
type family struct {
	// own maps usual field names to the family's names.
	own map[string]string
	// older maps usual field names to those of older files, which have a field only under one of both.
	older map[string]string
	// inner is the field that contains the language model's fields; "" if they are at the top level.
	inner string
	sizes map[string]int // defaults of optional shape fields

	kvHeads, headDim int  // defaults; 0: as many as heads, hidden_size over heads
	plainHeads       bool // no field may override it
	eps              float64
	fixedEps         bool // no field may override it
	activation       string
	theta            float64
	partial          float64           // default fraction of a head that rotates; 0: always all of it; -1: learned positions
	ropeAlias        map[string]string // the family's other names of rope_types
	tied             bool
	fourfold         bool // intermediate_size defaults to 4·hidden_size
	widths           bool // intermediate_size may be a list, with one of each layer
	attentionBias    bool // default of the field
	ropePairs        bool // see torch.ModelConfig
	embeddingSize    int  // default of the field; 0 if the family has none
	alwaysWidens     bool // embeddings pass a layer even if they are as wide as hidden states
	shared           bool // one layer's weights serve all

	normKind  torch.NormKind
	normAfter bool // norms come after the sums
	qkv       torch.QKVLayout
	residual  torch.Residual
	// special reads fields that only this family has.
	special func(f *fields, c *Config)

	// prefixes come before the names of the base model; the first is transformers' own.
	prefixes []string
	base     []moduleRow // outside of the layers
	without  string      // the one module that is missing
	layers   string      // "layers.N."
	rows     []moduleRow // within a layer
	// kinds are further rows, of layers of each kind; Config.kinds says which a layer has.
	kinds  map[string][]moduleRow
	conv1D bool                // files store linear weights as [in, out]
	old    map[string]string   // name suffixes and their spellings in older files
	joined map[string][]string // name suffixes of tensors that hold the rows of several, for each expert "E" in turn
	// woven means that joined tensors have a matrix [in, out] for each expert, whose columns are those of the joined in turn.
	woven   bool
	experts string   // module of a layer's experts, if files call it otherwise than transformers
	ignored []string // patterns of tensors to ignore, see ignores
	// targets are the default LoRA targets in PEFT. PEFT has none for phi3, which gets the equivalent layer.
	targets []string

	// Of causal language models: names of the output layer, transformers' first.
	heads    []string
	headBias bool
	// encoder has the fields of encoders; nil for causal language models.
	encoder *encoderFamily
}

// An encoderFamily describes the sequence classifiers of an encoder's model_type.
type encoderFamily struct {
	// classes is the prefix of transformers' class names: "Bert" for BertModel.
	classes string
	// types and pad are the defaults of type_vocab_size and pad_token_id. If types is 0, the field does not exist.
	types, pad int
	// offset means that positions start after the padding token's id.
	offset    bool
	positions string // the one position_embedding_type; "" for absolute
	// prefix comes before the encoder's names in task models.
	prefix string
	// pooler and head are optional; each is complete or absent.
	pooler, head []moduleRow
	// plainPooler means that the pooler belongs to the task model and has no prefix.
	plainPooler bool
	// dense is the layer of the head before the logits; "" for none.
	dense, out string
	// act is the activation after the dense layer of the pooler or head: "tanh".
	act string
}

// families are all model types.
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

// has reports whether each layer has a module of this name.
func (fam *family) has(layer string) bool {
	return slices.ContainsFunc(fam.allRows(), func(r moduleRow) bool { return r.layer == layer })
}

// gated reports whether MLPs have a gate.
func (fam *family) gated() bool { return fam.has("gate") || fam.has("gate_up") || fam.has("up_gate") }

// allRows are the modules of layers of any kind.
func (fam *family) allRows() []moduleRow {
	rows := slices.Clone(fam.rows)
	for _, more := range fam.kinds {
		rows = append(rows, more...)
	}
	return rows
}

// postNorms says where the rows have norms.
func (fam *family) postNorms() torch.PostNorms {
	switch {
	case !fam.has("post_attn_norm"):
		return torch.PostNormsNone
	case fam.has("attn_norm"):
		return torch.PostNormsAlso
	}
	return torch.PostNormsOnly
}

// qkNorm says what the norms of the rows span.
func (fam *family) qkNorm() torch.QKNorm {
	for _, r := range fam.allRows() {
		if r.layer == "q_norm" && r.shape == "D" {
			return torch.QKNormHeads
		} else if r.layer == "q_norm" {
			return torch.QKNormAll
		}
	}
	return torch.QKNormNone
}

// prefixOf is the prefix of the base model's names in task models.
func (fam *family) prefixOf() string {
	if fam.encoder != nil {
		return fam.encoder.prefix
	}
	return ""
}

// A TensorSpec describes a tensor that the model has or may have.
type TensorSpec struct {
	Name       string   // the core's name; for a pooler or a head, its Path
	Path       string   // transformers' name, without the prefix of a task model
	Prefix     string   // the prefix of sequence classifiers before Path
	Shape      []int64  // weights of linear modules are [out, in]
	Transposed bool     // files store a matrix as [in, out]
	Candidates []string // possible names in a folder
	Joined     []Joined // tensors in a folder of which it may be a part; those that hold several experts are the only names
	// Group is "" for a required tensor. Tensors of group "pooler" or "head" are all present or all absent. Tensors of
	// group "tied" repeat another.
	Group string
}

// Joined is a tensor of a folder with the rows of several of the model's, all of one shape.
type Joined struct {
	Name         string
	At, Len      int  // the model's tensor is in part At of Len
	First, Every int  // the rows of the part that it is: First, First + Every, ...
	Turned       bool // the part is stored as [in, out]
}

// part says which part of a tensor in a folder s is.
func (s TensorSpec) part(name string) Joined {
	for _, j := range s.Joined {
		if j.Name == name {
			return j
		}
	}
	return Joined{Name: name, Len: 1, Every: 1, Turned: s.Transposed}
}

// direct reports whether the part is the tensor's rows as they are.
func (j Joined) direct() bool { return j.Every == 1 && !j.Turned }

// stored is the shape of the part of a file's tensor that has s.
func (s TensorSpec) stored(j Joined) []int64 {
	shape := slices.Clone(s.Shape)
	shape[0] *= int64(j.Every)
	if j.Turned {
		slices.Reverse(shape)
	}
	return shape
}

// A moduleRow is one module of a family: a linear layer, an embedding or, with one dimension, a norm.
type moduleRow struct {
	layer  string // the core's name
	module string // transformers' name
	shape  string // of the weight
	bias   string // "" for never, always, or the field of config.json that enables it
}

const always = "+"

// Linear is a linear module that can have a LoRA adapter; its weight is [Out, In].
type Linear struct {
	Name    string // of the module in transformers' model, as PEFT spells it
	Layer   string // the core's name
	In, Out int
	Experts int // how many experts of a layer have such a weight; 0: it is the layer's
}

// adaptable reports whether the module is a linear layer that can have an adapter.
func (r moduleRow) adaptable() bool {
	return len(r.shape) == 2 && !strings.HasPrefix(r.layer, "experts.") && !slices.Contains(weighing, r.layer)
}

// weighing are modules of a layer that choose and weigh what others make, and convolutions. They have no adapters and stay float32.
var weighing = []string{"router", "router_bias", "shared_gate", "conv", "streams_router", "predict", "correct"}

// each lists the row for each of n experts, or once if it has no "E".
func (r moduleRow) each(n int) []moduleRow {
	if !strings.Contains(r.layer+".", ".E.") {
		return []moduleRow{r}
	}
	rows := make([]moduleRow, n)
	for e := range rows {
		replace := func(name string) string {
			return strings.TrimSuffix(strings.Replace(name+".", ".E.", "."+strconv.Itoa(e)+".", 1), ".")
		}
		rows[e] = moduleRow{replace(r.layer), replace(r.module), r.shape, r.bias}
	}
	return rows
}

// numbered replaces "N" in a name by a layer number.
func numbered(name string, layer int) string {
	return strings.Replace(name, ".N.", "."+strconv.Itoa(layer)+".", 1)
}

// ignores reports whether the model ignores a tensor of the folder. "*" at either end of a pattern matches anything.
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
