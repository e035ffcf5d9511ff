package torch

// #include <stdlib.h>
// #include "loader.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// EncoderConfig is the shape of an encoder: post-norm blocks, learned positions, GELU, biases.
type EncoderConfig struct {
	VocabSize, HiddenSize, Layers, Heads, IntermediateSize, MaxPositions, TokenTypes int
	NormEps                                                                          float64
}

// Encoder is a transformer encoder in the native core, on frozen weights, with an adapter on any of its
// linear layers.
type Encoder struct {
	model   *C.rlt_model
	cleanup runtime.Cleanup
	closed  bool
}

// NewEncoder builds an encoder on weights, by AutoModel's names; it retains them, so the caller may close
// its Vars. Errors name the weight that is missing or misshapen.
func NewEncoder(config EncoderConfig, weights map[string]*Var) (*Encoder, error) {
	if err := Open(0); err != nil {
		return nil, err
	}
	native := C.rlt_model_config{
		vocab_size: C.int64_t(config.VocabSize), hidden_size: C.int64_t(config.HiddenSize),
		layers: C.int64_t(config.Layers), heads: C.int64_t(config.Heads),
		intermediate_size: C.int64_t(config.IntermediateSize),
		max_positions:     C.int64_t(config.MaxPositions), token_types: C.int64_t(config.TokenTypes),
		norm_eps: C.double(config.NormEps),
	}
	names := make([]*C.char, 0, len(weights))
	handles := make([]C.rlt_tensor, 0, len(weights))
	for name, v := range weights {
		names = append(names, C.CString(name))
		handles = append(handles, v.handle)
	}
	defer func() {
		for _, name := range names {
			C.free(unsafe.Pointer(name))
		}
	}()
	// The array of C strings lives in C memory too: cgo forbids passing Go memory that holds pointers it
	// cannot vouch for.
	table := (*[1 << 20]*C.char)(C.malloc(C.size_t(len(names)+1) * C.size_t(unsafe.Sizeof(uintptr(0)))))
	defer C.free(unsafe.Pointer(table))
	copy(table[:len(names)], names)
	e := &Encoder{}
	err := nativeError("NewEncoder", C.rlt_model_new(&native, &table[0], unsafe.SliceData(handles), C.int32_t(len(handles)), &e.model))
	runtime.KeepAlive(weights)
	if err != nil {
		return nil, err
	}
	e.cleanup = runtime.AddCleanup(e, func(m *C.rlt_model) {
		forgotten.Add(1)
		C.rlt_model_free(m)
	}, e.model)
	return e, nil
}

// Close frees the encoder. A second Close does nothing.
func (e *Encoder) Close() {
	if !e.closed {
		e.closed = true
		e.cleanup.Stop()
		C.rlt_model_free(e.model)
	}
}

// Adapt puts the adapter y += scale·B·A·dropout(x) on the named linear layer. a [r, in], b [out, r]. The
// encoder retains both; a second call for the layer replaces the first.
func (e *Encoder) Adapt(layer string, a, b *Var, scale float64) error {
	name := C.CString(layer)
	defer C.free(unsafe.Pointer(name))
	err := nativeError("Adapt", C.rlt_model_adapt(e.model, name, a.handle, b.handle, C.double(scale)))
	runtime.KeepAlive(a)
	runtime.KeepAlive(b)
	return err
}

// Packed is a batch of sequences laid end to end, without padding.
type Packed struct {
	Tokens    []int64 // [N]
	Positions []int64 // [N], from 0 in each sequence
	CuSeqlens []int32 // [S+1]: sequence i is tokens CuSeqlens[i] to CuSeqlens[i+1]
}

// Pack lays sequences end to end.
func Pack(sequences [][]int32) Packed {
	total := 0
	for _, ids := range sequences {
		total += len(ids)
	}
	p := Packed{Tokens: make([]int64, 0, total), Positions: make([]int64, 0, total), CuSeqlens: make([]int32, 1, len(sequences)+1)}
	for _, ids := range sequences {
		for i, id := range ids {
			p.Tokens = append(p.Tokens, int64(id))
			p.Positions = append(p.Positions, int64(i))
		}
		p.CuSeqlens = append(p.CuSeqlens, int32(len(p.Tokens)))
	}
	return p
}

// Len is the number of sequences.
func (p Packed) Len() int { return len(p.CuSeqlens) - 1 }

// Dropout is the dropout of the adapters' input. The mask of a token is a hash of its sequence's key, its
// position, the layer and the feature, so it depends neither on the batch nor on the order of calls.
type Dropout struct {
	P    float64  // in [0, 1)
	Keys []uint64 // [S], a key for each sequence
}

// rowKeys is a key for each token.
func (d Dropout) rowKeys(p Packed) []int64 {
	keys := make([]int64, len(p.Tokens))
	for i, key := range d.Keys {
		for t := p.CuSeqlens[i]; t < p.CuSeqlens[i+1]; t++ {
			// An odd multiplier keeps keys of neighbouring positions apart in all 64 bits.
			keys[t] = int64(key + uint64(p.Positions[t])*0x9e3779b97f4a7c15)
		}
	}
	return keys
}

// Hidden runs the encoder on a packed batch: the last block's hidden states [N, H] and the batch's borders
// [S+1] for pooling. With adapter false the result is that of the base model, the reference policy.
func (s *Scope) Hidden(e *Encoder, p Packed, adapter bool, dropout Dropout) (hidden, cuSeqlens Tensor) {
	n := int64(len(p.Tokens))
	cuSeqlens = s.Int32s(p.CuSeqlens, int64(len(p.CuSeqlens)))
	input := C.rlt_model_input{
		tokens:     s.Ints(p.Tokens, n).handle,
		positions:  s.Ints(p.Positions, n).handle,
		cu_seqlens: cuSeqlens.handle,
		dropout:    C.double(dropout.P),
	}
	if adapter {
		input.adapter = 1
	}
	if dropout.P > 0 {
		input.row_keys = s.Ints(dropout.rowKeys(p), n).handle
	}
	var h C.rlt_tensor
	must("Hidden", C.rlt_model_forward(e.model, C.int32_t(s.mode), &input, &h))
	runtime.KeepAlive(e)
	return s.own(h), cuSeqlens
}
