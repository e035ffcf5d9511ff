package torch

// #include <stdlib.h>
// #include "loader.h"
import "C"

import (
	"fmt"
	"unsafe"
)

func newTensor(call string, data unsafe.Pointer, have int, dtype DType, device Device, dims []int64) C.rlt_tensor {
	want := 1
	for _, d := range dims {
		want *= int(d)
	}
	if have != want {
		panic(&Error{Call: call, Text: fmt.Sprintf("%d values for the shape %v", have, dims)})
	}
	var h C.rlt_tensor
	must(call, C.rlt_tensor_from(data, C.int32_t(dtype), (*C.int64_t)(unsafe.SliceData(dims)), C.int32_t(len(dims)), device.native(), &h))
	return h
}

// Floats copies data, row-major, into a tensor of shape dims.
func (s *Scope) Floats(data []float32, dims ...int64) Tensor {
	return s.own(newTensor("Floats", unsafe.Pointer(unsafe.SliceData(data)), len(data), F32, library.device, dims))
}

// Ints copies data into an int64 tensor of shape dims: token ids, labels, indices.
func (s *Scope) Ints(data []int64, dims ...int64) Tensor {
	return s.own(newTensor("Ints", unsafe.Pointer(unsafe.SliceData(data)), len(data), I64, library.device, dims))
}

// hostInts is Ints for data that the core reads on the host first.
func (s *Scope) hostInts(data []int64, dims ...int64) Tensor {
	return s.own(newTensor("Ints", unsafe.Pointer(unsafe.SliceData(data)), len(data), I64, Device{}, dims))
}

// Int32s copies data into an int32 tensor of shape dims: sequence boundaries, which the CPU reads on any device.
func (s *Scope) Int32s(data []int32, dims ...int64) Tensor {
	return s.own(newTensor("Int32s", unsafe.Pointer(unsafe.SliceData(data)), len(data), I32, Device{}, dims))
}

// Shape returns the size of each dimension of t.
func (s *Scope) Shape(t Tensor) []int64 {
	s.check(t)
	var dims [8]C.int64_t
	var n C.int32_t
	must("Shape", C.rlt_tensor_shape(t.handle, &dims[0], &n))
	shape := make([]int64, n)
	for i := range shape {
		shape[i] = int64(dims[i])
	}
	return shape
}

// elements is the number of elements of a shape.
func elements(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

// Read returns t as float32, row-major.
func (s *Scope) Read(t Tensor) []float32 {
	n := elements(s.Shape(t))
	data := make([]float32, n)
	must("Read", C.rlt_tensor_read(t.handle, C.RLT_F32, unsafe.Pointer(unsafe.SliceData(data)), C.int64_t(4*n)))
	return data
}

// ReadInts returns an int64 tensor, row-major.
func (s *Scope) ReadInts(t Tensor) []int64 {
	n := elements(s.Shape(t))
	data := make([]int64, n)
	must("ReadInts", C.rlt_tensor_read(t.handle, C.RLT_I64, unsafe.Pointer(unsafe.SliceData(data)), C.int64_t(8*n)))
	return data
}

// Item returns the value of a one-element tensor.
func (s *Scope) Item(t Tensor) float64 {
	s.check(t)
	var value C.float
	must("Item", C.rlt_tensor_read(t.handle, C.RLT_F32, unsafe.Pointer(&value), 4))
	return float64(value)
}

// Wait waits until the device has finished all queued work. The CPU has none.
func Wait() error {
	if !library.device.cuda {
		return nil
	}
	return Do(NoGrad, func(s *Scope) error {
		s.Item(s.Floats([]float32{0}, 1)) // queued after everything else
		return nil
	})
}

// Backward accumulates the gradient of loss [] into its parameters and frees the graph.
func (s *Scope) Backward(loss Tensor) {
	s.check(loss)
	must("Backward", C.rlt_tensor_backward(loss.handle))
}

// Grad returns the accumulated gradient of v; ok is false if there is none.
func (s *Scope) Grad(v *Var) (grad Tensor, ok bool) {
	s.check(v.T())
	var h C.rlt_tensor
	must("Grad", C.rlt_tensor_grad(v.handle, &h))
	if h == 0 {
		return Tensor{}, false
	}
	return s.own(h), true
}

// Parameter copies data into a trainable Var of shape dims.
func Parameter(data []float32, dims ...int64) (*Var, error) {
	v, err := Constant(data, dims...)
	if err != nil {
		return nil, err
	}
	if err := nativeError("Parameter", C.rlt_tensor_require_grad(v.handle)); err != nil {
		v.Close()
		return nil, err
	}
	return v, nil
}

// Constant copies data into a Var of shape dims without a gradient.
func Constant(data []float32, dims ...int64) (v *Var, err error) {
	err = Do(NoGrad, func(s *Scope) error {
		v = s.Keep(s.Floats(data, dims...))
		return nil
	})
	return v, err
}

// Fill returns a Var of shape dims and dtype F32, BF16 or F16 without a gradient. It has the values, row-major and rounded
// to nearest, that each passes to write in consecutive parts. Errors: those of each, or too many values.
func Fill(dtype DType, dims []int64, each func(write func(values []float32) error) error) (v *Var, err error) {
	if err = Do(NoGrad, func(s *Scope) error {
		device := arg{kind: C.RLT_ARG_DEVICE, word: int64(library.device.native())}
		v = s.Keep(s.call(opZeros, integers(elements(dims)), integer(scalarTypes[dtype]), none, device))
		return nil
	}); err != nil {
		return nil, err
	}
	defer v.Close()
	filled := int64(0)
	if err = each(func(values []float32) error {
		n := int64(len(values))
		if filled+n > elements(dims) {
			return fmt.Errorf("torch: more than %d values for the shape %v", elements(dims), dims)
		}
		err := Do(NoGrad, func(s *Scope) error {
			s.call(opCopyInto, operand(s.call(opNarrow, operand(v.T()), integer(0), integer(filled), integer(n))), operand(s.Floats(values, n)))
			return nil
		})
		filled += n
		return err
	}); err != nil {
		return nil, err
	}
	var shaped *Var
	err = Do(NoGrad, func(s *Scope) error {
		shaped = s.Keep(s.View(v.T(), dims...))
		return nil
	})
	return shaped, err
}

// Map maps a file's bytes read-only as a tensor of dtype F32, BF16 or F16; pages are read at first use. The file must not
// change while the Var lives. On a GPU it is a copy.
func Map(path string, offset int64, dtype DType, dims ...int64) (v *Var, err error) {
	err = Do(NoGrad, func(s *Scope) error {
		cpath := C.CString(path)
		defer C.free(unsafe.Pointer(cpath))
		var h C.rlt_tensor
		must("Map", C.rlt_tensor_map(cpath, C.int64_t(offset), C.int32_t(dtype), (*C.int64_t)(unsafe.SliceData(dims)), C.int32_t(len(dims)), &h))
		t := s.own(h)
		if d := library.device; d.cuda {
			t = s.call(opCopy, operand(t), none, none, arg{kind: C.RLT_ARG_DEVICE, word: int64(d.native())})
		}
		v = s.Keep(t)
		return nil
	})
	return v, err
}

// To returns a copy of v as dtype, F32, BF16 or F16, rounded to nearest.
func (v *Var) To(dtype DType) (converted *Var, err error) {
	err = Do(NoGrad, func(s *Scope) error {
		converted = s.Keep(s.to(v.T(), dtype))
		return nil
	})
	return converted, err
}

// Shape returns the size of each dimension of v.
func (v *Var) Shape() (shape []int64, err error) {
	err = Do(NoGrad, func(s *Scope) error {
		shape = s.Shape(v.T())
		return nil
	})
	return shape, err
}

// Elements returns the number of elements of v.
func (v *Var) Elements() (int64, error) {
	shape, err := v.Shape()
	return elements(shape), err
}

// Read returns v as float32, row-major.
func (v *Var) Read() (data []float32, err error) {
	err = Do(NoGrad, func(s *Scope) error {
		data = s.Read(v.T())
		return nil
	})
	return data, err
}

// ReadInto copies v into data, row-major; data must have exactly its number of elements.
func (v *Var) ReadInto(data []float32) error {
	return Do(NoGrad, func(s *Scope) error {
		s.check(v.T())
		must("ReadInto", C.rlt_tensor_read(v.handle, C.RLT_F32, unsafe.Pointer(unsafe.SliceData(data)), C.int64_t(4*len(data))))
		return nil
	})
}

// Write overwrites v with data, row-major; v stays the same parameter.
func (v *Var) Write(data []float32) error {
	return Do(NoGrad, func(s *Scope) error {
		s.check(v.T())
		must("Write", C.rlt_tensor_write(v.handle, (*C.float)(unsafe.SliceData(data)), C.int64_t(len(data))))
		return nil
	})
}

// ZeroGrad drops the gradients of vs.
func ZeroGrad(vs []*Var) error {
	return Do(NoGrad, func(s *Scope) error {
		handles := make([]C.rlt_tensor, len(vs))
		for i, v := range vs {
			s.check(v.T())
			handles[i] = v.handle
		}
		must("ZeroGrad", C.rlt_tensor_zero_grad(unsafe.SliceData(handles), C.int32_t(len(handles))))
		return nil
	})
}
