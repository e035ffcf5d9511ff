package torch

// #include "loader.h"
import "C"

import (
	"fmt"
	"runtime"
)

// NormKind is the kind of a model's norms.
type NormKind int32

// RMS norm (Zhang and Sennrich 2019), RMS norm with weight 1 + w: x·(1 + w), and layer norm with a bias (Ba 2016).
const (
	NormRMS        NormKind = C.RLT_NORM_RMS
	NormRMSPlusOne NormKind = C.RLT_NORM_RMS_PLUS_ONE
	NormLayer      NormKind = C.RLT_NORM_LAYER
)

// Activation is the non-linearity of an MLP.
type Activation int32

// GELUTanh is the tanh approximation of GELU, in config.json gelu_new or gelu_pytorch_tanh.
const (
	SiLU     Activation = C.RLT_ACT_SILU
	GELU     Activation = C.RLT_ACT_GELU
	GELUTanh Activation = C.RLT_ACT_GELU_TANH
	ReLU     Activation = C.RLT_ACT_RELU
)

// QKVLayout is how linear layers produce queries, keys and values.
type QKVLayout int32

// Three layers "q", "k" and "v"; or one layer "qkv" with outputs in the order q, k, v; or one with q, k, v of head 0, then
// of head 1, and so on.
const (
	QKVSplit       QKVLayout = C.RLT_QKV_SPLIT
	QKVFused       QKVLayout = C.RLT_QKV_FUSED
	QKVInterleaved QKVLayout = C.RLT_QKV_INTERLEAVED
)

// Residual is how a block adds attention and MLP to its input.
type Residual int32

// Sequential; parallel with one shared norm of the input, "attn_norm"; parallel with separate norms.
const (
	ResidualSequential Residual = C.RLT_RESIDUAL_SEQUENTIAL
	ResidualSharedNorm Residual = C.RLT_RESIDUAL_SHARED_NORM
	ResidualParallel   Residual = C.RLT_RESIDUAL_PARALLEL
)

// PostNorms is whether the outputs of attention and MLP have norms: no, besides those of their inputs, or instead of them.
type PostNorms int32

const (
	PostNormsNone PostNorms = C.RLT_POST_NORMS_NONE
	PostNormsAlso PostNorms = C.RLT_POST_NORMS_ALSO
	PostNormsOnly PostNorms = C.RLT_POST_NORMS_ONLY
)

// QKNorm is what norms of queries and keys span, before rotation: nothing, a head, or all heads.
type QKNorm int32

const (
	QKNormNone  QKNorm = C.RLT_QK_NORM_NONE
	QKNormHeads QKNorm = C.RLT_QK_NORM_HEADS
	QKNormAll   QKNorm = C.RLT_QK_NORM_ALL
)

// Distance is how attention knows the distance of a key from its query: not, by a bias of each head, or by comparing queries and
// keys with those of distances (He 2021).
type Distance int32

const (
	DistanceNone    Distance = C.RLT_DISTANCE_NONE
	DistanceBias    Distance = C.RLT_DISTANCE_BIAS
	DistanceContent Distance = C.RLT_DISTANCE_CONTENT
)

// Rope is a rotary position embedding (Su 2021): the angle is position · InvFreq[i], and Factor scales
// cosine and sine. Sequences longer than SwitchLength use LongInvFreq; with SwitchLength 0 none do.
type Rope struct {
	InvFreq, LongInvFreq []float64 // one for each two features that rotate, up to RotaryDim/2; LongInvFreq is nil if unused
	Factor, LongFactor   float64
	SwitchLength         int
}

// LayerShape is what a layer has in place of the model's sizes. Its attention reads the keys and values of layer KeysOf, an earlier
// one or itself. With Sparsity, that share of gate's outputs is about 0.
type LayerShape struct {
	KVHeads, HeadDim, IntermediateSize, KeysOf int
	Sparsity                                   float64
}

// ModelConfig is the architecture of a transformer.
type ModelConfig struct {
	VocabSize, HiddenSize, Layers, Heads, KVHeads, HeadDim, IntermediateSize, MaxPositions int
	// RotaryDim is the largest number of leading head features that rotate, even; 0 means learned positions.
	RotaryDim int
	// TokenTypes is the size of the token type table, whose first row is added to all embeddings; 0 = no table.
	TokenTypes int
	// FirstPosition is the row of position 0 in the table of MaxPositions learned positions.
	FirstPosition int
	Norm          NormKind
	Activation    Activation
	QKV           QKVLayout
	Residual      Residual
	// Gated: the MLP is down(act(gate(x)) · up(x)), else down(act(up(x))). FusedGateUp: gate and up are one layer,
	// "gate_up", or "up_gate" with up first.
	Gated, FusedGateUp bool
	PostNorms          PostNorms
	QKNorm             QKNorm
	RopePairs          bool // head features 2i and 2i+1 rotate together, else i and RotaryDim/2+i
	// EmbedNorm: a norm of the embeddings. Without NormAfter, the first layer then has no norm before its attention.
	EmbedNorm bool
	// NormAfter: norms follow the sums instead of preceding attention and MLP, and there is no final norm. A layer's "sum_norm" norms
	// its input and what attention's norm returns.
	NormAfter        bool
	Bidirectional    bool // an encoder: attention also sees later tokens
	NormEps          float64
	AttentionScale   float64 // factor of q·k
	EmbeddingScale   float64 // factor of token embeddings; 1 = unchanged
	AttentionSoftcap float64 // c·tanh(score/c); 0 = off
	LogitSoftcap     float64 // of the logits, in the engine; 0 = off
	LogitDivisor     float64 // of the hidden states after the final norm, and so of the logits; 0 = off
	// The query at position p is multiplied by 1 + QueryGrowth · ln(1 + ⌊p / QuerySpan⌋); 0 = off.
	QueryGrowth float64
	// EmbeddingSize is the width of embeddings and their norm, which a layer widens; 0 = HiddenSize.
	EmbeddingSize int
	SharedLayers  bool // all layers have the weights of the first one
	// Of layers with a "router": experts, how many of them a token passes, and the width of each. RouterNorm divides the
	// probabilities of those by their sum. SharedSize is the width of the MLP that all tokens pass besides; 0 = none.
	Experts, ExpertsPerToken, ExpertSize, SharedSize int
	RouterNorm                                       bool
	// With ExpertLimit l and ExpertAlpha a, an expert's gate g and up u become min(g, l)·σ(a·min(g, l)) and 1 + u, u
	// within ±l; 0 = as Gated.
	ExpertLimit, ExpertAlpha float64
	RouterSigmoid            bool    // the router's outputs become sigmoids, not a softmax
	RouterScale              float64 // factor of the experts' sum; 0 = none
	WovenExperts             bool    // rows of gate and up take turns in adapters of "experts.gate_up"
	DeltaKeyHeads            int     // of layers with gated delta rules
	GatedQueries             bool    // each head of "q" is a query and a gate: its sigmoid multiplies what attention returns
	Distance                 Distance
	QuerySpan                int
	Windows                  []int // [Layers] attention window in tokens, 0 = unlimited; nil: all 0
	RopeOf                   []int // [Layers] index into Ropes; nil with RotaryDim 0
	Ropes                    []Rope
	Shapes                   []LayerShape // [Layers]; nil if all layers have the model's sizes
	ValueNorm                bool         // an RMS norm without weights of each head's values
}

// check validates the slice lengths, which the core cannot.
func (c ModelConfig) check() error {
	if c.Layers < 1 {
		return fmt.Errorf("torch: NewModel: %d layers", c.Layers)
	}
	if n := len(c.Windows); n != 0 && n != c.Layers {
		return fmt.Errorf("torch: NewModel: %d windows for %d layers", n, c.Layers)
	}
	if n := len(c.RopeOf); c.RotaryDim != 0 && n != c.Layers {
		return fmt.Errorf("torch: NewModel: RopeOf has %d entries for %d layers", n, c.Layers)
	}
	if n := len(c.Shapes); n != 0 && n != c.Layers {
		return fmt.Errorf("torch: NewModel: %d shapes for %d layers", n, c.Layers)
	}
	for i, r := range c.Ropes {
		if n := len(r.InvFreq); n > c.RotaryDim/2 || n < c.RotaryDim/2 && c.Shapes == nil || r.LongInvFreq != nil && len(r.LongInvFreq) != n {
			return fmt.Errorf("torch: NewModel: rope %d has %d and %d frequencies, want half of the %d rotating features", i, n, len(r.LongInvFreq), c.RotaryDim)
		}
	}
	return nil
}

// native converts c for the core; pins keeps its slices in place.
func (c ModelConfig) native(pins *runtime.Pinner) C.rlt_model_config {
	windows := make([]C.int64_t, c.Layers)
	for i, w := range c.Windows {
		windows[i] = C.int64_t(w)
	}
	ropeOf := make([]C.int32_t, len(c.RopeOf))
	for i, r := range c.RopeOf {
		ropeOf[i] = C.int32_t(r)
	}
	floats := func(values []float64) *C.double {
		if len(values) == 0 {
			return nil
		}
		pins.Pin(&values[0])
		return (*C.double)(&values[0])
	}
	ropes := make([]C.rlt_rope, len(c.Ropes))
	for i, r := range c.Ropes {
		ropes[i] = C.rlt_rope{
			inv_freq: floats(r.InvFreq), long_inv_freq: floats(r.LongInvFreq),
			factor: C.double(r.Factor), long_factor: C.double(r.LongFactor), switch_length: C.int64_t(r.SwitchLength),
			features: C.int64_t(2 * len(r.InvFreq)),
		}
	}
	shapes := make([]C.rlt_layer_shape, len(c.Shapes))
	for i, s := range c.Shapes {
		shapes[i] = C.rlt_layer_shape{
			kv_heads: C.int64_t(s.KVHeads), head_dim: C.int64_t(s.HeadDim), intermediate_size: C.int64_t(s.IntermediateSize), keys_of: C.int64_t(s.KeysOf),
			sparsity: C.double(s.Sparsity),
		}
	}
	native := C.rlt_model_config{
		vocab_size: C.int64_t(c.VocabSize), hidden_size: C.int64_t(c.HiddenSize), layers: C.int64_t(c.Layers),
		heads: C.int64_t(c.Heads), kv_heads: C.int64_t(c.KVHeads), head_dim: C.int64_t(c.HeadDim),
		intermediate_size: C.int64_t(c.IntermediateSize), max_positions: C.int64_t(c.MaxPositions), rotary_dim: C.int64_t(c.RotaryDim),
		token_types: C.int64_t(c.TokenTypes), first_position: C.int64_t(c.FirstPosition),
		norm: C.int32_t(c.Norm), activation: C.int32_t(c.Activation), qkv: C.int32_t(c.QKV), residual: C.int32_t(c.Residual),
		gated: cBool(c.Gated), fused_gate_up: cBool(c.FusedGateUp), post_norms: C.int32_t(c.PostNorms), qk_norm: C.int32_t(c.QKNorm), rope_pairs: cBool(c.RopePairs),
		embed_norm: cBool(c.EmbedNorm), norm_after: cBool(c.NormAfter), bidirectional: cBool(c.Bidirectional),
		norm_eps: C.double(c.NormEps), attention_scale: C.double(c.AttentionScale), embedding_scale: C.double(c.EmbeddingScale),
		attention_softcap: C.double(c.AttentionSoftcap), logit_softcap: C.double(c.LogitSoftcap),
		logit_divisor: C.double(c.LogitDivisor), query_growth: C.double(c.QueryGrowth), query_span: C.int64_t(c.QuerySpan),
		embedding_size: C.int64_t(c.EmbeddingSize), shared_layers: cBool(c.SharedLayers), distance: C.int32_t(c.Distance),
		experts: C.int64_t(c.Experts), experts_per_token: C.int64_t(c.ExpertsPerToken), expert_size: C.int64_t(c.ExpertSize),
		shared_size: C.int64_t(c.SharedSize), router_norm: cBool(c.RouterNorm), expert_limit: C.double(c.ExpertLimit), expert_alpha: C.double(c.ExpertAlpha),
		router_sigmoid: cBool(c.RouterSigmoid), router_scale: C.double(c.RouterScale), woven_experts: cBool(c.WovenExperts),
		delta_key_heads: C.int64_t(c.DeltaKeyHeads), gated_queries: cBool(c.GatedQueries), value_norm: cBool(c.ValueNorm),
		windows: &windows[0], n_ropes: C.int32_t(len(ropes)),
	}
	pins.Pin(native.windows)
	if len(ropeOf) > 0 {
		native.ropes = &ropeOf[0]
		pins.Pin(native.ropes)
	}
	if len(shapes) > 0 {
		native.shapes = &shapes[0]
		pins.Pin(native.shapes)
	}
	if len(ropes) > 0 {
		native.rope_tables = &ropes[0]
		pins.Pin(native.rope_tables)
	}
	return native
}
