package torch

// #include <stdlib.h>
// #include "loader.h"
import "C"

import (
	"runtime"
	"unsafe"
)

// Model is a transformer in the native core, with optional adapters on its linear layers.
type Model struct {
	model   *C.rlt_model
	cleanup runtime.Cleanup
	closed  bool
}

// NewModel builds a model on weights. It retains them, so the caller may close its Vars. Names are those of rltrain.h, such
// as "embed.weight" and "layers.0.q.weight". Linear weights and the embedding may be F32, BF16 or F16; others are F32. A
// layer's linear weight may be quantised (see [QuantType]). A Parameter is trained. Errors name the missing, extra or
// misshapen weight, or the invalid field of c.
func NewModel(c ModelConfig, weights map[string]*Var) (*Model, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if err := Open(0); err != nil {
		return nil, err
	}
	names := make([]*C.char, 0, len(weights))
	handles := make([]C.rlt_tensor, 0, len(weights))
	for name, v := range weights {
		names = append(names, C.CString(name))
		handles = append(handles, v.open())
	}
	defer func() {
		for _, name := range names {
			C.free(unsafe.Pointer(name))
		}
	}()
	var pins runtime.Pinner
	defer pins.Unpin()
	native := c.native(&pins)
	m := &Model{}
	err := nativeError("NewModel", C.rlt_model_new(&native, unsafe.SliceData(names), unsafe.SliceData(handles), C.int32_t(len(handles)), &m.model))
	runtime.KeepAlive(weights)
	if err != nil {
		return nil, err
	}
	m.cleanup = runtime.AddCleanup(m, func(m *C.rlt_model) {
		forgotten.Add(1)
		C.rlt_model_free(m)
	}, m.model)
	return m, nil
}

// Close frees the model. A second Close does nothing.
func (m *Model) Close() {
	if !m.closed {
		m.closed = true
		m.cleanup.Stop()
		C.rlt_model_free(m.model)
	}
}

func (m *Model) open() *C.rlt_model {
	if m.closed {
		panic("torch: use of a Model after it was closed")
	}
	return m.model
}

// Adapt puts the adapter y += scale·B·A·dropout(x) on the named linear layer. a [r, in], b [out, r]. With magnitude [out], a
// Parameter, each row of W + scale·B·A has that norm (DoRA); nil = none. The model retains all. A second call for the layer
// replaces the first. The experts of a layer have one adapter, see rlt_model_adapt.
func (m *Model) Adapt(layer string, a, b, magnitude *Var, scale float64) error {
	name := C.CString(layer)
	defer C.free(unsafe.Pointer(name))
	var norms C.rlt_tensor
	if magnitude != nil {
		norms = magnitude.open()
	}
	err := nativeError("Adapt", C.rlt_model_adapt(m.open(), name, a.open(), b.open(), norms, C.double(scale)))
	runtime.KeepAlive(m)
	runtime.KeepAlive(a)
	runtime.KeepAlive(b)
	runtime.KeepAlive(magnitude)
	return err
}

// Pass configures a forward pass.
type Pass struct {
	Adapter bool    // false: the base model, which is the reference policy
	Dropout Dropout // of the adapters' input
	// Noise, if not nil, returns what is added to the embeddings of a batch's tokens, a row for each.
	Noise func(p Packed) []float32
	// Checkpoint keeps only each block's input for Backward and recomputes the rest (Chen 2016): the same gradients in about
	// a third more time.
	Checkpoint bool
	// Rows, if not nil, are the rows needed from the batch; the last layer computes only these.
	Rows []int64
	// Load, if not nil, receives sums over all tokens and layers with experts, [2, E]: the probabilities of each expert, and
	// the tokens that it got.
	Load *Tensor
}

// Hidden runs the model on a packed batch. It returns the last layer's hidden states after the final norm, if any, [N,
// H] or [len(Rows), H], and the batch's sequence boundaries [S+1] for pooling.
func (s *Scope) Hidden(m *Model, p Packed, pass Pass) (hidden, cuSeqlens Tensor) {
	n := int64(len(p.Tokens))
	cuSeqlens = s.Int32s(p.CuSeqlens, int64(len(p.CuSeqlens)))
	input := C.rlt_model_input{
		tokens:     s.hostInts(p.Tokens, n).handle,
		positions:  s.hostInts(p.Positions, n).handle,
		cu_seqlens: cuSeqlens.handle,
		adapter:    cBool(pass.Adapter),
		dropout:    C.double(pass.Dropout.P),
		checkpoint: cBool(pass.Checkpoint),
	}
	if p.Continues != nil {
		input.continues = s.Int32s(p.Continues, int64(len(p.Continues))).handle
	}
	if p.Routes != nil {
		input.routes = s.Int32s(p.Routes, n, int64(len(p.Routes))/n).handle
	}
	if pass.Rows != nil {
		input.rows = s.hostInts(pass.Rows, int64(len(pass.Rows))).handle
	}
	if pass.Dropout.P > 0 {
		input.row_keys = s.Ints(pass.Dropout.rowKeys(p), n).handle
	}
	if pass.Noise != nil {
		noise := pass.Noise(p)
		input.noise = s.Floats(noise, n, int64(len(noise))/n).handle
	}
	var h, load C.rlt_tensor
	var loads *C.rlt_tensor
	if pass.Load != nil {
		loads = &load
	}
	must("Hidden", C.rlt_model_forward(m.open(), C.int32_t(s.mode), &input, &h, loads))
	runtime.KeepAlive(m)
	if pass.Load != nil {
		*pass.Load = s.own(load)
	}
	return s.own(h), cuSeqlens
}

func cBool(b bool) C.int32_t {
	if b {
		return 1
	}
	return 0
}
