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
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"github.com/rltrain/rltrain/torch/hub"
)

// LibtorchVersion is the only libtorch that the core is built and tested with.
const LibtorchVersion = "2.11.0"

var library = struct {
	once    sync.Once
	threads int
	device  Device        // as asked for, then as it is
	loaded  chan struct{} // closed once err says how it went
	err     error
}{loaded: make(chan struct{})}

// Start begins to load the native core, with a number of compute threads; 0 means one a core. It takes some
// 0.3 s of one core, in which a caller can read files; whatever needs the core waits for it. Only the first
// call of Start or Open does anything.
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

// Open loads the native core as Start does, and waits until it is there. Do opens the core by itself where
// neither was called.
//
// Errors name the library, and what is missing or broken in it or in the libtorch behind it.
func Open(threads int) error {
	Start(threads)
	<-library.loaded
	return library.err
}

// Threads is the number of compute threads; 0 before Start and Open.
func Threads() int { return library.threads }

// CPUCapability is the widest vector extension that libtorch uses here, such as "AVX512", or "AVX512 and BF16" where
// weights of bfloat16 are multiplied in that type.
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
		return fmt.Errorf("%w; run `make` to build it again", err)
	}
	// Workers that spin for long between regions would take the cores from environments and tokenizers;
	// workers that sleep at once cost a wake-up of some 50 µs a region, half of the time of a small model's
	// step. So they spin for about as long as a wake-up takes. The variables are read once, when the OpenMP
	// runtime is loaded.
	if os.Getenv("OMP_WAIT_POLICY") == "" && os.Getenv("GOMP_SPINCOUNT") == "" {
		for name, value := range map[string]string{"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "10000"} {
			if err := os.Setenv(name, value); err != nil {
				return fmt.Errorf("torch: setting %s: %w", name, err)
			}
		}
	}
	// Where libtorch warns, as of a store that is not there yet, it writes its own stack to standard error. What is wrong
	// comes back as an error.
	if os.Getenv("TORCH_CPP_LOG_LEVEL") == "" {
		if err := os.Setenv("TORCH_CPP_LOG_LEVEL", "ERROR"); err != nil {
			return fmt.Errorf("torch: setting TORCH_CPP_LOG_LEVEL: %w", err)
		}
	}
	if err := provide(path, coreNeeds); err != nil {
		return err
	}
	cpath := C.CString(path)
	defer C.free(unsafe.Pointer(cpath))
	var message [1024]C.char
	if C.rlt_open(cpath, &message[0], C.int(len(message))) != 0 {
		return fmt.Errorf("torch: opening the native core: %s; run `make` to build it again", C.GoString(&message[0]))
	}
	if got := int(C.rlt_abi_version()); got != C.RLT_ABI_VERSION {
		return fmt.Errorf("torch: %s speaks version %d of the interface, this program version %d; run `make` to build both", path, got, C.RLT_ABI_VERSION)
	}
	if got := C.GoString(C.rlt_libtorch_version()); got != LibtorchVersion {
		return fmt.Errorf("torch: %s was built with libtorch %s, want %s; run `make` to build it again", path, got, LibtorchVersion)
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

// findLibrary looks in $RLTRAIN_LIB (the file, or its folder), beside the program and in the user's cache.
func findLibrary() (string, error) {
	var candidates []string
	if given := os.Getenv("RLTRAIN_LIB"); given != "" {
		if info, err := os.Stat(given); err == nil && info.IsDir() {
			given = filepath.Join(given, libraryName)
		}
		if _, err := os.Stat(given); err != nil {
			return "", fmt.Errorf("torch: RLTRAIN_LIB names %s: %w", given, errors.Unwrap(err))
		}
		return given, nil
	}
	if program, err := os.Executable(); err == nil {
		if resolved, err := filepath.EvalSymlinks(program); err == nil {
			program = resolved
		}
		candidates = append(candidates, filepath.Join(filepath.Dir(program), "..", "lib", libraryName))
	}
	if cache, err := hub.CacheDir(); err == nil {
		candidates = append(candidates, filepath.Join(cache, "lib", libraryName))
	}
	for _, path := range candidates {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("torch: the native core %s is neither in %s; run `make`, or set RLTRAIN_LIB to it", libraryName, strings.Join(candidates, " nor in "))
}

// checkWhole reports a shared library that was cut short, in path or in what it needs from its own search
// path: the loader maps such a file without complaint and the process dies at the first missing page.
func checkWhole(path string, seen map[string]bool) error {
	if seen[filepath.Base(path)] {
		return nil
	}
	seen[filepath.Base(path)] = true
	file, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("torch: %s is not a whole shared library: %w", path, err)
	}
	defer file.Close()
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("torch: %w", err)
	}
	for _, section := range file.Sections {
		if section.Type != elf.SHT_NOBITS && section.Offset+section.FileSize > uint64(info.Size()) {
			return fmt.Errorf("torch: %s is cut short: %d bytes, but its section %s ends at %d", path, info.Size(), section.Name, section.Offset+section.FileSize)
		}
	}
	needed, dirs, err := dependencies(file, filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("torch: reading what %s needs: %w", path, err)
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

// dependencies are the names of the libraries that a shared library in the folder origin needs, and the folders of
// its own search path. Of its table of strings only these are read: libtorch's has megabytes of symbols.
func dependencies(file *elf.File, origin string) (needed, dirs []string, err error) {
	for _, tag := range []elf.DynTag{elf.DT_NEEDED, elf.DT_RPATH, elf.DT_RUNPATH} {
		offsets, err := file.DynValue(tag)
		if err != nil {
			return nil, nil, err
		}
		for _, offset := range offsets {
			text, err := dynamicString(file, int64(offset))
			if err != nil {
				return nil, nil, err
			}
			if tag == elf.DT_NEEDED {
				needed = append(needed, text)
				continue
			}
			for _, dir := range strings.Split(text, ":") {
				dirs = append(dirs, strings.ReplaceAll(dir, "$ORIGIN", origin))
			}
		}
	}
	return needed, dirs, nil
}

// dynamicString is what stands at an offset of the strings of the dynamic section.
func dynamicString(file *elf.File, offset int64) (string, error) {
	dynamic := file.SectionByType(elf.SHT_DYNAMIC)
	if dynamic == nil || int(dynamic.Link) >= len(file.Sections) {
		return "", errors.New("its dynamic section has no strings")
	}
	table := file.Sections[dynamic.Link]
	text, err := bufio.NewReader(io.NewSectionReader(table, offset, int64(table.Size)-offset)).ReadString(0)
	if err != nil {
		return "", fmt.Errorf("string %d of its dynamic section: %w", offset, err)
	}
	return strings.TrimSuffix(text, "\x00"), nil
}
