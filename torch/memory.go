package torch

// #include "cuda.h"
// void rlt_give_back(void);
import "C"

import (
	"fmt"
	"runtime/debug"
)

// ReleaseMemory hands memory that is free, Go's too, back to the system. It is for where one kind of work ends and another begins, as
// before and after an evaluation: the blocks of one are of no use to the other, and taking pages anew within training
// would cost time at every step.
func ReleaseMemory() {
	C.rlt_give_back()
	debug.FreeOSMemory()
}

// GPUMemory is what a GPU's memory holds, in bytes.
type GPUMemory struct {
	Allocated, Peak, Reserved int64 // of this process: in use now, in use at most so far, and taken from the GPU
	Free, Total               int64 // of the GPU
}

// MemoryOfGPU is that of the device in use; nil where that is the CPU. It asks libtorch's allocator and waits for nothing.
//
// Errors are those of Open and of CUDA.
func MemoryOfGPU() (*GPUMemory, error) {
	if err := Open(0); err != nil {
		return nil, err
	}
	return library.device.memory()
}

func (d Device) memory() (*GPUMemory, error) {
	if !d.cuda {
		return nil, nil
	}
	var figures [5]C.int64_t
	var message [1024]C.char
	if C.rlt_cuda_memory(C.int32_t(d.gpu), &figures[0], &message[0], C.int32_t(len(message))) != 0 {
		return nil, fmt.Errorf("torch: memory of %s: %s", d, C.GoString(&message[0]))
	}
	return &GPUMemory{
		Allocated: int64(figures[0]), Peak: int64(figures[1]), Reserved: int64(figures[2]), Free: int64(figures[3]), Total: int64(figures[4]),
	}, nil
}

// GPUUse is how busy a GPU has been in the last moments, whoever used it: percent of the time in which it computed, and
// in which its memory was read or written.
type GPUUse struct{ Busy, Memory int }

// UseOfGPU is that of the device in use, as its driver tells it; nil where that is the CPU. It waits for nothing.
//
// Errors are those of Open, and that the driver does not tell.
func UseOfGPU() (*GPUUse, error) {
	if err := Open(0); err != nil {
		return nil, err
	}
	return library.device.use()
}

func (d Device) use() (*GPUUse, error) {
	if !d.cuda {
		return nil, nil
	}
	var percent [2]C.int32_t
	var message [1024]C.char
	if C.rlt_cuda_use(C.int32_t(d.gpu), &percent[0], &message[0], C.int32_t(len(message))) != 0 {
		return nil, fmt.Errorf("torch: use of %s: %s", d, C.GoString(&message[0]))
	}
	return &GPUUse{Busy: int(percent[0]), Memory: int(percent[1])}, nil
}
