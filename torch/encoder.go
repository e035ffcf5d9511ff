package torch

// #include "loader.h"
import "C"

// EncoderConfig is the shape of an encoder: post-norm blocks, learned positions, biases.
type EncoderConfig struct {
	VocabSize, HiddenSize, Layers, Heads, IntermediateSize, MaxPositions int
	TokenTypes                                                           int // 0: no embeddings of types
	FirstPosition                                                        int // row of the position table that position 0 takes
	Activation                                                           Activation
	NormEps                                                              float64
}

// NewEncoder builds an encoder on weights, by the names of BERT's AutoModel; it retains them, so the caller may close
// its Vars. Errors name the weight that is missing or misshapen.
func NewEncoder(c EncoderConfig, weights map[string]*Var) (*Model, error) {
	native := C.rlt_model_config{
		vocab_size: C.int64_t(c.VocabSize), hidden_size: C.int64_t(c.HiddenSize),
		layers: C.int64_t(c.Layers), heads: C.int64_t(c.Heads), intermediate_size: C.int64_t(c.IntermediateSize),
		max_positions: C.int64_t(c.MaxPositions), token_types: C.int64_t(c.TokenTypes), first_position: C.int64_t(c.FirstPosition),
		activation: C.int32_t(c.Activation), norm_eps: C.double(c.NormEps),
	}
	return newModel("NewEncoder", weights, func(names **C.char, tensors *C.rlt_tensor, n C.int32_t, m **C.rlt_model) *C.rlt_error {
		return C.rlt_model_new(&native, names, tensors, n, m)
	})
}
