package torch

// #include "cuda.h"
// void rlt_give_back(void);
import "C"

import (
	"fmt"
	"runtime/debug"
)

// ReleaseMemory returns free memory, including Go's, to the system. Call it between phases such as training and evaluation,
// whose blocks cannot be reused by each other. Within training, allocating pages again would slow down every step.
func ReleaseMemory() {
	C.rlt_give_back()
	debug.FreeOSMemory()
}

// GPUMemory is the memory use of a GPU, in bytes.
type GPUMemory struct {
	Allocated, Peak, Reserved int64 // of this process: in use, peak in use, and reserved from the GPU
	Free, Total               int64 // of the GPU
}

// MemoryOfGPU returns the memory use of the device in use; nil for the CPU. It asks libtorch's allocator and does not block.
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

// GPUUse is the recent load of a GPU by all processes: percent of time with kernels running, and with memory accesses.
type GPUUse struct{ Busy, Memory int }

// UseOfGPU returns the load of the device in use, from its driver; nil for the CPU. It does not block.
//
// Errors are those of Open, or that the driver does not report it.
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
