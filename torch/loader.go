package torch

// #include <stdlib.h>
// #include "cuda.h"
// #include "loader.h"
// #cgo LDFLAGS: -ldl
// #cgo noescape rlt_op_call
// #cgo nocallback rlt_op_call
// #cgo noescape rlt_tensor_free
// #cgo nocallback rlt_tensor_free
import "C"

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"github.com/rltrain/rltrain/internal/libtorch"
	"github.com/rltrain/rltrain/torch/hub"
)

// LibtorchVersion is the only libtorch version that the core supports.
const LibtorchVersion = libtorch.Version

var library = struct {
	once    sync.Once
	threads int
	device  Device        // requested, then resolved
	loaded  chan struct{} // closed once err is set
	err     error
}{loaded: make(chan struct{})}

// Start starts to load the native core with a number of compute threads; 0 means one per processor core. Loading takes
// about 0.3 s, in which the caller can read files; any use of the core waits for it. Only the first call of Start or Open
// has an effect.
func Start(threads int) {
	library.once.Do(func() {
		if threads <= 0 {
			threads = runtime.NumCPU()
		}
		library.threads = threads
		go func() {
			defer close(library.loaded)
			library.err = open(threads)
		}()
	})
}

// Open loads the native core like Start, and waits for it. Do opens the core itself if neither was called.
//
// Errors name the library and what is missing or broken in it or in libtorch.
func Open(threads int) error {
	Start(threads)
	<-library.loaded
	return library.err
}

// Threads returns the number of compute threads; 0 before Start and Open.
func Threads() int { return library.threads }

// CPUCapability returns the widest vector extension that libtorch uses here, such as "AVX512", or "AVX512 and BF16" if it
// multiplies bfloat16 weights natively.
func CPUCapability() (string, error) {
	if err := Open(0); err != nil {
		return "", err
	}
	return C.GoString(C.rlt_cpu_capability()), nil
}

func open(threads int) error {
	path, err := findLibrary()
	if err != nil {
		return err
	}
	if err := checkWhole(path, map[string]bool{}); err != nil {
		return fmt.Errorf("%w; run `make` to rebuild it", err)
	}
	// OpenMP workers that spin for long between regions would take cores from environments and tokenizers. Workers that sleep
	// at once cost a wake-up of about 50 µs per region, half of a small model's step. So they spin for about the time of a
	// wake-up. The OpenMP runtime reads these variables once, when it is loaded.
	if os.Getenv("OMP_WAIT_POLICY") == "" && os.Getenv("GOMP_SPINCOUNT") == "" {
		for name, value := range map[string]string{"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "10000"} {
			if err := os.Setenv(name, value); err != nil {
				return fmt.Errorf("torch: setting %s: %w", name, err)
			}
		}
	}
	// libtorch prints warnings with stack traces to standard error, for example about a store that is not up yet. Real
	// failures are returned as errors.
	if os.Getenv("TORCH_CPP_LOG_LEVEL") == "" {
		if err := os.Setenv("TORCH_CPP_LOG_LEVEL", "ERROR"); err != nil {
			return fmt.Errorf("torch: setting TORCH_CPP_LOG_LEVEL: %w", err)
		}
	}
	found, err := coreLibtorch(path)
	if err != nil {
		return err
	}
	if found.From != ownPath {
		if err := preload(found.Dir, coreNeeds); err != nil {
			return err
		}
	}
	cpath := C.CString(path)
	defer C.free(unsafe.Pointer(cpath))
	var message [1024]C.char
	if C.rlt_open(cpath, &message[0], C.int(len(message))) != 0 {
		return fmt.Errorf("torch: opening the native core: %s; run `make` to rebuild it", C.GoString(&message[0]))
	}
	var version *C.char
	if got := int(C.rlt_abi_version(&version)); got != C.RLT_ABI_VERSION {
		return fmt.Errorf("torch: %s has interface version %d, this program needs %d; run `make` to rebuild both", path, got, C.RLT_ABI_VERSION)
	}
	if got := C.GoString(version); got != LibtorchVersion {
		return fmt.Errorf("torch: %s was built with libtorch %s, want %s; run `make` to rebuild it", path, got, LibtorchVersion)
	}
	if err := nativeError("open", C.rlt_init(C.int32_t(threads))); err != nil {
		return err
	}
	if err := chooseKernels(); err != nil {
		return err
	}
	if library.device, err = library.device.resolve(); err != nil {
		return err
	}
	if library.device.cuda {
		C.rlt_cuda_runs(C.rlt_cuda_runner())
	}
	return nil
}

const libraryName = "librltrain.so"

// Library returns the path of the native core that Open loads.
func Library() (string, error) {
	path, err := findLibrary()
	if err != nil {
		return "", err
	}
	return filepath.Abs(path)
}

// findLibrary looks in $RLTRAIN_LIB (the file or its folder), next to the program, and in the user's cache.
func findLibrary() (string, error) {
	var candidates []string
	if given := os.Getenv("RLTRAIN_LIB"); given != "" {
		if info, err := os.Stat(given); err == nil && info.IsDir() {
			given = filepath.Join(given, libraryName)
		}
		if _, err := os.Stat(given); err != nil {
			return "", fmt.Errorf("torch: RLTRAIN_LIB is %s: %w", given, errors.Unwrap(err))
		}
		return given, nil
	}
	if program, err := os.Executable(); err == nil {
		if resolved, err := filepath.EvalSymlinks(program); err == nil {
			program = resolved
		}
		above := filepath.Join(filepath.Dir(program), "..", "lib")
		candidates = append(candidates, filepath.Join(above, libraryName), filepath.Join(above, "rltrain", libraryName))
	}
	if cache, err := hub.CacheDir(); err == nil {
		candidates = append(candidates, filepath.Join(cache, "lib", libraryName))
	}
	for _, path := range candidates {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("torch: native core %s not found in %s; run `make`, or set RLTRAIN_LIB", libraryName, strings.Join(candidates, ", "))
}

// checkWhole detects truncated shared libraries, in path and its dependencies: the loader maps a truncated file without an
// error, and the process crashes at the first missing page.
func checkWhole(path string, seen map[string]bool) error {
	if seen[filepath.Base(path)] {
		return nil
	}
	seen[filepath.Base(path)] = true
	file, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("torch: %s is not a valid shared library: %w", path, err)
	}
	defer file.Close()
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("torch: %w", err)
	}
	for _, section := range file.Sections {
		if section.Type != elf.SHT_NOBITS && section.Offset+section.FileSize > uint64(info.Size()) {
			return fmt.Errorf("torch: %s is truncated: it has %d bytes, but its section %s ends at %d", path, info.Size(), section.Name, section.Offset+section.FileSize)
		}
	}
	needed, dirs, err := libtorch.Dependencies(file, filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("torch: reading the dependencies of %s: %w", path, err)
	}
	for _, name := range needed {
		for _, dir := range dirs {
			dependency := filepath.Join(dir, name)
			if _, err := os.Stat(dependency); err != nil {
				continue
			}
			if err := checkWhole(dependency, seen); err != nil {
				return err
			}
			break
		}
	}
	return nil
}
