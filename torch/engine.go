package torch

// #include "loader.h"
// #cgo noescape rlt_engine_step
// #cgo nocallback rlt_engine_step
import "C"

import (
	"runtime"
	"slices"
	"unsafe"
)

// Engine generates completions with a decoder by continuous batching: samples enter and leave the batch at any step, and
// the keys and values of a prompt are computed once for all of its samples. On the CPU, a sample's tokens are
// bit-identical for every batch and thread count. On a GPU, the last digits of log-probabilities depend on the batch. An
// Engine is not safe for concurrent use.
type Engine struct {
	engine     *C.rlt_engine
	model      *Model
	cleanup    runtime.Cleanup
	unfinished int
	closed     bool
}

// EngineConfig configures an engine.
type EngineConfig struct {
	Slots int     // samples that run at the same time
	EOS   []int32 // token ids that end a sample
}

// NewEngine returns an engine for the decoder m; close it before m. On the CPU it packs a copy of the weights in their
// types; a GPU uses the weights directly.
func NewEngine(m *Model, c EngineConfig) (*Engine, error) {
	e := &Engine{model: m}
	err := nativeError("NewEngine", C.rlt_engine_new(m.open(), C.int32_t(c.Slots), (*C.int32_t)(unsafe.SliceData(c.EOS)), C.int32_t(len(c.EOS)), &e.engine))
	runtime.KeepAlive(m)
	if err != nil {
		return nil, err
	}
	e.cleanup = runtime.AddCleanup(e, func(native *C.rlt_engine) {
		forgotten.Add(1)
		C.rlt_engine_free(native)
	}, e.engine)
	return e, nil
}

// Close frees the engine, even with running samples. A second Close does nothing.
func (e *Engine) Close() {
	if !e.closed {
		e.closed = true
		e.cleanup.Stop()
		C.rlt_engine_free(e.engine)
	}
}

// Sampling says how tokens are sampled. Filters apply in the order of the transformers library: repetition penalty,
// temperature, top-k, top-p, min-p. Zero turns a filter off.
type Sampling struct {
	Temperature       float64 // at least 0; 0 takes the most likely token, the lowest id in a tie
	TopK              int     // the k most likely tokens, plus ties with the last one
	TopP              float64 // in [0, 1]: the smallest set of most likely tokens with this probability
	MinP              float64 // in [0, 1]: tokens with at least this fraction of the maximum probability
	RepetitionPenalty float64 // at least 0: divides positive logits of seen ids, multiplies negative ones
}

// Request asks for samples of a prompt.
type Request struct {
	Prompt   []int32 // token ids, at least one
	Samples  int
	MaxNew   int // maximum tokens per sample; prompt and completion must fit the model's positions
	Sampling Sampling
	// A token is a function of the logits and (Seed, Stream, sample, index in the completion).
	Seed, Stream uint64
	// Adapter is 0 for the base model (the reference policy), 1 for the model's adapter, or a number of SetAdapter.
	Adapter int
}

// Reason is why a sample ended.
type Reason string

// The reasons.
const (
	ReasonStop      Reason = "stop"       // the token is one of EngineConfig.EOS
	ReasonLength    Reason = "length"     // the token is number MaxNew
	ReasonCancelled Reason = "cancelled"  // no token
	ReasonNotFinite Reason = "not finite" // no token: the logits, or what Sampling makes of them, are not finite
)

// Event is a token of a sample, or its end.
type Event struct {
	Request int64   // number returned by Submit
	Sample  int     // in [0, Request.Samples)
	Token   int32   // -1 for none
	LogProb float32 // under the sampling distribution; 0 at temperature 0
	Raw     float32 // log-softmax of the model's logits
	Done    bool
	Reason  Reason // empty until Done
	// Routes are the experts of the tokens that ran for this one, of a model with experts: of all the prompt for a sample's
	// first token, else of the token before it. A token has ExpertsPerToken in each layer with experts.
	Routes []int16
}

// Submit queues a request and returns its number, from 1. Errors name the value that is out of range.
func (e *Engine) Submit(r Request) (int64, error) {
	native := C.rlt_request{
		samples: C.int32_t(r.Samples), adapter: C.int32_t(r.Adapter), max_new: C.int64_t(r.MaxNew),
		sampling: C.rlt_sampling{
			repetition_penalty: C.double(r.Sampling.RepetitionPenalty), temperature: C.double(r.Sampling.Temperature),
			top_k: C.int64_t(r.Sampling.TopK), top_p: C.double(r.Sampling.TopP), min_p: C.double(r.Sampling.MinP),
		},
		seed: C.uint64_t(r.Seed), stream: C.uint64_t(r.Stream),
	}
	var id C.int64_t
	err := nativeError("Submit", C.rlt_engine_submit(e.open(), &native, (*C.int32_t)(unsafe.SliceData(r.Prompt)), C.int64_t(len(r.Prompt)), &id))
	runtime.KeepAlive(e)
	if err != nil {
		return 0, err
	}
	e.unfinished += r.Samples
	return int64(id), nil
}

// Unfinished returns the number of samples without a final event.
func (e *Engine) Unfinished() int { return e.unfinished }

// StepTokens returns a good number of tokens for a Step, at which long prompts are read. Fewer leave a GPU idle.
func StepTokens() int {
	if library.device.cuda {
		return 8192
	}
	return 512
}

// Step runs the model once on at most maxTokens tokens (at least the engine's slots): the last token of each running
// sample, and prompt tokens that fit. It returns the sampled tokens. After an error while the model runs, the engine
// refuses every Submit, Step and Refresh: close it and create a new one.
func (e *Engine) Step(maxTokens int) ([]Event, error) {
	var found *C.rlt_event
	var n C.int64_t
	if err := nativeError("Step", C.rlt_engine_step(e.open(), C.int64_t(maxTokens), &found, &n)); err != nil {
		return nil, err
	}
	events := make([]Event, n)
	for i, native := range unsafe.Slice(found, n) {
		events[i] = Event{
			Request: int64(native.request), Sample: int(native.sample), Token: int32(native.token),
			LogProb: float32(native.logprob), Raw: float32(native.raw),
		}
		if native.routes != nil {
			events[i].Routes = slices.Clone(unsafe.Slice((*int16)(native.routes), native.n_routes))
		}
		switch native.reason {
		case C.RLT_STOPPED:
			events[i].Reason = ReasonStop
		case C.RLT_LENGTH:
			events[i].Reason = ReasonLength
		case C.RLT_CANCELLED:
			events[i].Reason = ReasonCancelled
		case C.RLT_NOT_FINITE:
			events[i].Reason = ReasonNotFinite
		}
		if events[i].Reason != "" {
			events[i].Done = true
			e.unfinished--
		}
	}
	runtime.KeepAlive(e)
	return events, nil
}

// Cancel ends a sample: the next Step reports it, and its slot is free at once. A finished sample is ignored. An unknown
// request or sample is an error.
func (e *Engine) Cancel(id int64, sample int) error {
	err := nativeError("Cancel", C.rlt_engine_cancel(e.open(), C.int64_t(id), C.int32_t(sample)))
	runtime.KeepAlive(e)
	return err
}

// Refresh reloads the adapters set by Adapt and all weights that may have changed. It returns an error while samples are
// unfinished, because a completion must come from one policy version.
func (e *Engine) Refresh() error {
	err := nativeError("Refresh", C.rlt_engine_refresh(e.open()))
	runtime.KeepAlive(e)
	return err
}

// SetAdapter copies the adapter of m, another model on the same weights, for requests with that number (at least 2); nil
// removes it. One batch can mix adapters. A number out of range, other weights, or unfinished samples with that number are
// errors.
func (e *Engine) SetAdapter(number int, m *Model) error {
	var from *C.rlt_model
	if m != nil {
		from = m.open()
	}
	err := nativeError("SetAdapter", C.rlt_engine_adapter(e.open(), C.int32_t(number), from))
	runtime.KeepAlive(e)
	runtime.KeepAlive(m)
	return err
}

func (e *Engine) open() *C.rlt_engine {
	if e.closed || e.model.closed {
		panic("torch: use of an Engine after it or its model was closed")
	}
	return e.engine
}
