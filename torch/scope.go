package torch

// #include <stdlib.h>
// #include "loader.h"
import "C"

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Mode is how a scope's operator calls treat autograd.
type Mode int32

// Train records the graph that Backward needs; NoGrad does not.
const (
	Train  Mode = C.RLT_TRAIN
	NoGrad Mode = C.RLT_NO_GRAD
)

// DType is the element type of a tensor in the native core.
type DType int32

// Element types. Computation is in F32; the others are for ids, sequence boundaries and stored weights.
const (
	F32  DType = C.RLT_F32
	I64  DType = C.RLT_I64
	I32  DType = C.RLT_I32
	BF16 DType = C.RLT_BF16
	F16  DType = C.RLT_F16
	U8   DType = C.RLT_U8 // rows of blocks of quantised weights
)

// Size is the size of an element in bytes.
func (d DType) Size() int64 {
	switch d {
	case I64:
		return 8
	case BF16, F16:
		return 2
	case U8:
		return 1
	default:
		return 4
	}
}

// Tensor is an operand: a value that can be copied freely. It is invalid once its owner, a Scope or a Var, is closed; using
// it then panics.
type Tensor struct {
	handle C.rlt_tensor
	owner  *owner // an interior pointer that keeps the Scope or Var reachable
}

type owner struct {
	closed atomic.Bool
	isVar  bool
}

// A Scope owns every tensor made through it and frees them together. It belongs to one goroutine.
type Scope struct {
	owner
	mode  Mode
	owned []C.rlt_tensor
	lent  []*owner // Vars used in this scope, reachable until it ends
}

// Do runs f in a new scope and frees all tensors made in it, even after a panic. It returns f's error, or the *Error of the
// operator that failed inside f.
func Do(mode Mode, f func(s *Scope) error) (err error) {
	if err := Open(0); err != nil {
		return err
	}
	if mode == Train {
		// Autograd numbers its nodes per OS thread and runs backward in that order. On several threads, a goroutine would sum
		// gradients in another order, with different rounding from run to run.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	s := newScope(mode)
	defer func() {
		s.free()
		switch failure := recover().(type) {
		case nil:
		case *Error:
			err = failure
		case failed:
			err = failure.error
		default:
			panic(failure)
		}
	}()
	return f(s)
}

func newScope(mode Mode) *Scope { return &Scope{mode: mode, owned: make([]C.rlt_tensor, 0, 64)} }

// free never recycles a scope: a stale Tensor must keep pointing to a closed one.
func (s *Scope) free() {
	if n := len(s.owned); n > 0 {
		C.rlt_tensor_free(&s.owned[0], C.int32_t(n))
	}
	s.owned, s.lent = nil, nil
	s.closed.Store(true)
}

// Live returns the number of tensor handles that Go holds.
func Live() int64 {
	if Open(0) != nil {
		return 0
	}
	return int64(C.rlt_live())
}

// A Var is a tensor that outlives scopes: a parameter, a weight, optimiser state.
type Var struct {
	owner
	handle  C.rlt_tensor
	cleanup runtime.Cleanup
}

var forgotten atomic.Int64

// Forgotten counts Vars that were never closed, so that the garbage collector freed them.
func Forgotten() int64 { return forgotten.Load() }

func newVar(handle C.rlt_tensor) *Var {
	v := &Var{owner: owner{isVar: true}, handle: handle}
	v.cleanup = runtime.AddCleanup(v, func(h C.rlt_tensor) {
		forgotten.Add(1)
		C.rlt_tensor_free(&h, 1)
	}, handle)
	return v
}

// Keep moves t out of its scope. It panics if this scope does not own t.
func (s *Scope) Keep(t Tensor) *Var {
	s.check(t)
	for i := len(s.owned) - 1; i >= 0; i-- {
		if s.owned[i] == t.handle {
			s.owned[i] = 0
			return newVar(t.handle)
		}
	}
	panic("torch: Keep of a tensor that this scope does not own")
}

// Store copies t, of the same shape, into v.
func (s *Scope) Store(v *Var, t Tensor) { s.call(opCopyInto, operand(v.T()), operand(t)) }

// T returns v as an operand.
func (v *Var) T() Tensor { return Tensor{v.handle, &v.owner} }

// open returns the tensor of an open Var.
func (v *Var) open() C.rlt_tensor {
	if v.closed.Load() {
		panic("torch: use of a Var after it was closed")
	}
	return v.handle
}

// Close frees v. A second Close does nothing.
func (v *Var) Close() {
	if v.closed.CompareAndSwap(false, true) {
		v.cleanup.Stop()
		C.rlt_tensor_free(&v.handle, 1)
	}
}

// CloseAll closes all non-nil Vars of vs.
func CloseAll(vs ...*Var) {
	for _, v := range vs {
		if v != nil {
			v.Close()
		}
	}
}

// check refuses closed tensors and keeps used Vars reachable: otherwise a Var whose last mention is v.T() could be collected
// and freed before the call.
func (s *Scope) check(t Tensor) {
	if s.closed.Load() || t.owner == nil || t.owner.closed.Load() {
		panic("torch: use of a tensor after its scope or Var was closed")
	}
	if t.owner.isVar {
		s.lent = append(s.lent, t.owner)
	}
}

// own registers a result.
func (s *Scope) own(h C.rlt_tensor) Tensor {
	s.owned = append(s.owned, h)
	return Tensor{h, &s.owner}
}

// op is a dispatcher operator, looked up at its first call.
type op struct {
	name, overload string
	once           sync.Once
	handle         C.rlt_op
}

func (o *op) find() C.rlt_op {
	o.once.Do(func() {
		name, overload := C.CString(o.name), C.CString(o.overload)
		defer C.free(unsafe.Pointer(name))
		defer C.free(unsafe.Pointer(overload))
		must(o.name, C.rlt_op_find(name, overload, &o.handle))
	})
	return o.handle
}

// arg is an argument of an operator call, as encoded on rlt_op_call's tape. The zero value is None.
type arg struct {
	kind    int64
	word    int64
	ints    []int64
	tensor  Tensor
	tensors []Tensor
}

var none = arg{kind: C.RLT_ARG_NONE}

func operand(t Tensor) arg     { return arg{kind: C.RLT_ARG_TENSOR, tensor: t} }
func operands(ts []Tensor) arg { return arg{kind: C.RLT_ARG_TENSORS, tensors: ts} }
func integer(i int64) arg      { return arg{kind: C.RLT_ARG_INT, word: i} }
func integers(is ...int64) arg { return arg{kind: C.RLT_ARG_INTS, ints: is} }
func real64(f float64) arg     { return arg{kind: C.RLT_ARG_DOUBLE, word: int64(math.Float64bits(f))} }
func scalar(f float64) arg     { return arg{kind: C.RLT_ARG_SCALAR, word: int64(math.Float64bits(f))} }

func boolean(b bool) arg {
	if b {
		return arg{kind: C.RLT_ARG_BOOL, word: 1}
	}
	return arg{kind: C.RLT_ARG_BOOL}
}

// write appends args to tape. It refuses closed tensors.
func (s *Scope) write(tape []int64, args []arg) []int64 {
	for i := range args {
		a := &args[i]
		tape = append(tape, a.kind)
		switch a.kind {
		case C.RLT_ARG_NONE:
		case C.RLT_ARG_TENSOR:
			s.check(a.tensor)
			tape = append(tape, int64(a.tensor.handle))
		case C.RLT_ARG_TENSORS:
			tape = append(tape, int64(len(a.tensors)))
			for _, t := range a.tensors {
				s.check(t)
				tape = append(tape, int64(t.handle))
			}
		case C.RLT_ARG_INTS:
			tape = append(append(tape, int64(len(a.ints))), a.ints...)
		default:
			tape = append(tape, a.word)
		}
	}
	return tape
}

// call runs o on args; the scope owns its single result.
func (s *Scope) call(o *op, args ...arg) Tensor {
	var result [1]C.rlt_tensor
	s.callInto(result[:], o, args...)
	return s.own(result[0])
}

// callInto runs o on args, stores its results in results and returns their number.
func (s *Scope) callInto(results []C.rlt_tensor, o *op, args ...arg) int {
	var room [48]int64
	tape := s.write(room[:0], args)
	var got C.int32_t
	must(o.name, C.rlt_op_call(o.find(), C.int32_t(s.mode), (*C.int64_t)(unsafe.SliceData(tape)),
		C.int32_t(len(tape)), C.int32_t(len(args)), unsafe.SliceData(results), C.int32_t(len(results)), &got))
	return int(got)
}
