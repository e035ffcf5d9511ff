package torch

// #include <stdlib.h>
// #include "cuda.h"
// #include "loader.h"
import "C"

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"unsafe"
)

const cudaLibraryName = "librltrain_cuda.so"

// Device is where tensors are created: "cpu", "cuda", "cuda:N" for GPU N, or "auto" for the first GPU if it is usable, else
// the CPU.
type Device struct {
	auto bool
	cuda bool
	gpu  int // index among the GPUs of CUDA_VISIBLE_DEVICES
}

// ParseDevice parses a Device. Errors list the valid values.
func ParseDevice(text string) (Device, error) {
	switch text {
	case "cpu":
		return Device{}, nil
	case "auto":
		return Device{auto: true}, nil
	case "cuda":
		return Device{cuda: true}, nil
	}
	number, found := strings.CutPrefix(text, "cuda:")
	gpu, err := strconv.ParseUint(number, 10, 7)
	if !found || err != nil || strconv.FormatUint(gpu, 10) != number {
		return Device{}, fmt.Errorf("unknown device %q; use auto, cpu, cuda or cuda:NUMBER", text)
	}
	return Device{cuda: true, gpu: int(gpu)}, nil
}

func (d Device) String() string {
	switch {
	case d.auto:
		return "auto"
	case d.cuda:
		return "cuda:" + strconv.Itoa(d.gpu)
	default:
		return "cpu"
	}
}

// UseDevice sets where tensors are created. Call it before Start and Open, which report what is missing.
func UseDevice(d Device) { library.device = d }

// DeviceInUse returns where tensors are created: "cpu" or "cuda:0".
//
// Errors are those of Open.
func DeviceInUse() (string, error) {
	if err := Open(0); err != nil {
		return "", err
	}
	return library.device.String(), nil
}

// PrefersBF16 reports whether frozen weights should be bfloat16: on GPUs with bfloat16 arithmetic, which have compute
// capability 8.0 or newer.
//
// Errors are those of Open.
func PrefersBF16() (bool, error) {
	if err := Open(0); err != nil {
		return false, err
	}
	return library.device.prefersBF16()
}

func (d Device) prefersBF16() (bool, error) {
	if !d.cuda {
		return false, nil
	}
	found, err := gpus()
	if err != nil {
		return false, err
	}
	return found[d.gpu].Major >= 8, nil
}

// native is the device's number in the core.
func (d Device) native() C.int32_t {
	if d.cuda {
		return C.int32_t(d.gpu)
	}
	return C.RLT_CPU
}

// A GPU is a CUDA device.
type GPU struct {
	Name         string
	Memory       int64 // bytes
	Major, Minor int   // compute capability
}

// ErrNoDriver means that this machine has no NVIDIA driver.
var ErrNoDriver = errors.New("torch: no NVIDIA driver is loaded (/dev/nvidiactl is missing); install one, or use --device cpu")

// GPUs returns the devices of CUDA_VISIBLE_DEVICES. It loads the CUDA libraries, some gigabytes, if they and a driver exist.
//
// Errors name what is missing and the fix: the driver (ErrNoDriver), a library, its dependency, or a newer driver.
func GPUs() ([]GPU, error) {
	if err := Open(0); err != nil {
		return nil, err
	}
	return gpus()
}

func gpus() ([]GPU, error) {
	if err := loadCUDA(); err != nil {
		return nil, err
	}
	var message [1024]C.char
	var n C.int32_t
	if C.rlt_cuda_count(&n, &message[0], C.int32_t(len(message))) != 0 {
		return nil, fmt.Errorf("torch: CUDA finds no GPU: %s; CUDA 13.0 needs a driver of version 580 or newer (see nvidia-smi), and a GPU that CUDA_VISIBLE_DEVICES, now %q, does not hide", C.GoString(&message[0]), os.Getenv("CUDA_VISIBLE_DEVICES"))
	}
	found := make([]GPU, n)
	for i := range found {
		var what C.rlt_cuda_device
		if C.rlt_cuda_describe(C.int32_t(i), &what, &message[0], C.int32_t(len(message))) != 0 {
			return nil, fmt.Errorf("torch: GPU %d: %s", i, C.GoString(&message[0]))
		}
		found[i] = GPU{Name: C.GoString(&what.name[0]), Memory: int64(what.memory), Major: int(what.major), Minor: int(what.minor)}
	}
	return found, nil
}

// driverFiles exist if a driver is loaded, on Linux and on WSL.
var driverFiles = []string{"/dev/nvidiactl", "/dev/dxg"}

func hasDriver() bool {
	for _, name := range driverFiles {
		if _, err := os.Stat(name); err == nil {
			return true
		}
	}
	return false
}

// findCUDA looks next to the native core.
func findCUDA() (string, error) {
	core, err := findLibrary()
	if err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(core), cudaLibraryName)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("torch: %s is missing, which a GPU needs; run `make cuda`, or use --device cpu", path)
	}
	return path, nil
}

// loadCUDA opens the CUDA library once, after the core.
var loadCUDA = sync.OnceValue(tryCUDA)

func tryCUDA() error {
	path, err := findCUDA()
	if err != nil {
		return err
	}
	if !hasDriver() {
		return ErrNoDriver
	}
	return openCUDA(path)
}

func openCUDA(path string) error {
	if err := checkWhole(path, map[string]bool{}); err != nil {
		return fmt.Errorf("%w; run `make cuda` to rebuild it", err)
	}
	core, err := findLibrary()
	if err != nil {
		return err
	}
	folder, err := cudaLibtorch(path, core)
	if err != nil {
		return err
	}
	if folder != "" {
		if err := preload(folder, cudaNeeds); err != nil {
			return err
		}
	}
	// If an operator's schema has changed, the process would crash.
	if !bytes.Equal(stampOf(path), stampOf(core)) {
		return fmt.Errorf("torch: %s was built for another core than %s; run `make cuda` to rebuild it", path, core)
	}
	cpath := C.CString(path)
	defer C.free(unsafe.Pointer(cpath))
	var message [1024]C.char
	if C.rlt_open_cuda(cpath, &message[0], C.int(len(message))) != 0 {
		return fmt.Errorf("torch: opening the CUDA library: %s; run `make cuda` to build it and download its dependencies", C.GoString(&message[0]))
	}
	if got := int(C.rlt_cuda_version()); got != C.RLT_CUDA_VERSION {
		return fmt.Errorf("torch: %s has interface version %d, this program needs %d; run `make cuda` to rebuild it", path, got, C.RLT_CUDA_VERSION)
	}
	if got := C.GoString(C.rlt_cuda_libtorch_version()); got != LibtorchVersion {
		return fmt.Errorf("torch: %s was built with libtorch %s, want %s; run `make cuda` to rebuild it", path, got, LibtorchVersion)
	}
	return nil
}

// stampOf returns the build stamp of one of our libraries (csrc/abi/stamp.cc), or nil if it has none.
func stampOf(path string) []byte {
	file, err := elf.Open(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	section := file.Section(".rltrain")
	if section == nil {
		return nil
	}
	stamp, err := section.Data()
	if err != nil {
		return nil
	}
	return stamp
}

// oldest is the minimum compute capability of the kernels in csrc/cuda.
var oldest = GPU{Major: 8}

// resolve makes d concrete: auto becomes the first GPU if it is fully usable, else the CPU.
func (d Device) resolve() (Device, error) {
	if d.auto {
		if _, err := findCUDA(); err != nil || !hasDriver() {
			return Device{}, nil
		}
		if gpu, err := (Device{cuda: true}).resolve(); err == nil {
			return gpu, nil
		}
		return Device{}, nil
	}
	if !d.cuda {
		return d, nil
	}
	found, err := gpus()
	if err != nil {
		return d, fmt.Errorf("--device %s: %w", d, err)
	}
	if d.gpu >= len(found) {
		return d, fmt.Errorf("--device %s: there are %d GPUs, numbered from 0 (CUDA_VISIBLE_DEVICES is %q); choose one of them", d, len(found), os.Getenv("CUDA_VISIBLE_DEVICES"))
	}
	gpu := found[d.gpu]
	if gpu.Major < oldest.Major || gpu.Major == oldest.Major && gpu.Minor < oldest.Minor {
		return d, fmt.Errorf("--device %s: %s has compute capability %d.%d, but at least %d.%d is needed; use a newer GPU, or --device cpu", d, gpu.Name, gpu.Major, gpu.Minor, oldest.Major, oldest.Minor)
	}
	var message [1024]C.char
	if C.rlt_cuda_try(C.int32_t(d.gpu), &message[0], C.int32_t(len(message))) != 0 {
		return d, fmt.Errorf("--device %s: %s (compute capability %d.%d) fails a test computation: %s; use another GPU, or --device cpu", d, gpu.Name, gpu.Major, gpu.Minor, C.GoString(&message[0]))
	}
	return d, nil
}
