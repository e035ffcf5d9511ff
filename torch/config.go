package torch

// #include "loader.h"
import "C"

import (
	"fmt"
	"runtime"
)

// NormKind is what the norms of a model compute.
type NormKind int32

// RMS norm (Zhang and Sennrich 2019), RMS norm whose weight counts from 1: x·(1 + w), and layer norm (Ba
// 2016), which has a bias.
const (
	NormRMS        NormKind = C.RLT_NORM_RMS
	NormRMSPlusOne NormKind = C.RLT_NORM_RMS_PLUS_ONE
	NormLayer      NormKind = C.RLT_NORM_LAYER
)

// Activation is the non-linearity of an MLP.
type Activation int32

// GELUTanh is GELU's approximation by tanh, which config.json calls gelu_new or gelu_pytorch_tanh.
const (
	SiLU     Activation = C.RLT_ACT_SILU
	GELU     Activation = C.RLT_ACT_GELU
	GELUTanh Activation = C.RLT_ACT_GELU_TANH
	ReLU     Activation = C.RLT_ACT_RELU
)

// QKVLayout says which linear layers make queries, keys and values.
type QKVLayout int32

// Three layers "q", "k" and "v"; or one, "qkv", whose outputs are all of q, then of k, then of v; or one
// whose outputs are q, k, v of head 0, then of head 1 and so on.
const (
	QKVSplit       QKVLayout = C.RLT_QKV_SPLIT
	QKVFused       QKVLayout = C.RLT_QKV_FUSED
	QKVInterleaved QKVLayout = C.RLT_QKV_INTERLEAVED
)

// Residual is how a block adds attention and MLP to its input.
type Residual int32

// One after the other; both computed from one norm of the input, "attn_norm"; both from the input, each with
// a norm of its own.
const (
	ResidualSequential Residual = C.RLT_RESIDUAL_SEQUENTIAL
	ResidualSharedNorm Residual = C.RLT_RESIDUAL_SHARED_NORM
	ResidualParallel   Residual = C.RLT_RESIDUAL_PARALLEL
)

// Rope is one way to rotate queries and keys (Su 2021, halves rotated): the angle is position · InvFreq[i],
// cosine and sine are multiplied by Factor. A sequence longer than SwitchLength takes the long table; with
// SwitchLength 0 none does.
type Rope struct {
	InvFreq, LongInvFreq []float64 // [RotaryDim/2]; LongInvFreq nil where there is none
	Factor, LongFactor   float64
	SwitchLength         int
}

// ModelConfig is the shape and the choices of a transformer.
type ModelConfig struct {
	VocabSize, HiddenSize, Layers, Heads, KVHeads, HeadDim, IntermediateSize, MaxPositions int
	// RotaryDim is how many leading features of a head rotate, even; 0 means learned positions.
	RotaryDim int
	// TokenTypes are the rows of a table of types, of which the first is added to all embeddings; 0: there is none.
	TokenTypes int
	// FirstPosition is the row of the learned positions, MaxPositions of them, that position 0 takes.
	FirstPosition int
	Norm          NormKind
	Activation    Activation
	QKV           QKVLayout
	Residual      Residual
	// Gated: the MLP is down(act(gate(x)) · up(x)), else down(act(up(x))). FusedGateUp: gate and up are one
	// layer, "gate_up", gate first.
	Gated, FusedGateUp bool
	PostNorms          bool // a norm on what attention and MLP add
	QKNorm             bool // an RMS norm of each head's q and k before they rotate
	// EmbedNorm: a norm of the embeddings; without NormAfter, the first layer has none before its attention then.
	EmbedNorm bool
	// NormAfter: norms stand after the sums, not before attention and MLP, and there is none at the end.
	NormAfter        bool
	Bidirectional    bool // attention sees what comes after a token too: an encoder
	NormEps          float64
	AttentionScale   float64 // of q·k
	EmbeddingScale   float64 // of token embeddings; 1 changes nothing
	AttentionSoftcap float64 // c·tanh(score/c); 0 changes nothing
	LogitSoftcap     float64 // of the logits, for the engine; 0 changes nothing
	Windows          []int   // [Layers] only keys less than so many tokens away are seen, 0 = all; nil: all 0
	RopeOf           []int   // [Layers] index into Ropes; nil with RotaryDim 0
	Ropes            []Rope
}

// check sees to the lengths of the slices, which the core cannot.
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
	for i, r := range c.Ropes {
		if len(r.InvFreq) != c.RotaryDim/2 || r.LongInvFreq != nil && len(r.LongInvFreq) != c.RotaryDim/2 {
			return fmt.Errorf("torch: NewModel: rope %d has %d and %d frequencies, want half of the %d features that rotate", i, len(r.InvFreq), len(r.LongInvFreq), c.RotaryDim)
		}
	}
	return nil
}

// native is c as the core takes it, for as long as pins hold.
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
		}
	}
	native := C.rlt_model_config{
		vocab_size: C.int64_t(c.VocabSize), hidden_size: C.int64_t(c.HiddenSize), layers: C.int64_t(c.Layers),
		heads: C.int64_t(c.Heads), kv_heads: C.int64_t(c.KVHeads), head_dim: C.int64_t(c.HeadDim),
		intermediate_size: C.int64_t(c.IntermediateSize), max_positions: C.int64_t(c.MaxPositions), rotary_dim: C.int64_t(c.RotaryDim),
		token_types: C.int64_t(c.TokenTypes), first_position: C.int64_t(c.FirstPosition),
		norm: C.int32_t(c.Norm), activation: C.int32_t(c.Activation), qkv: C.int32_t(c.QKV), residual: C.int32_t(c.Residual),
		gated: cBool(c.Gated), fused_gate_up: cBool(c.FusedGateUp), post_norms: cBool(c.PostNorms), qk_norm: cBool(c.QKNorm),
		embed_norm: cBool(c.EmbedNorm), norm_after: cBool(c.NormAfter), bidirectional: cBool(c.Bidirectional),
		norm_eps: C.double(c.NormEps), attention_scale: C.double(c.AttentionScale), embedding_scale: C.double(c.EmbeddingScale),
		attention_softcap: C.double(c.AttentionSoftcap), logit_softcap: C.double(c.LogitSoftcap),
		windows: &windows[0], n_ropes: C.int32_t(len(ropes)),
	}
	pins.Pin(native.windows)
	if len(ropeOf) > 0 {
		native.ropes = &ropeOf[0]
		pins.Pin(native.ropes)
	}
	if len(ropes) > 0 {
		native.rope_tables = &ropes[0]
		pins.Pin(native.rope_tables)
	}
	return native
}
