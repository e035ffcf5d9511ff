package torch

// #include <stdlib.h>
// #include "loader.h"
import "C"

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"github.com/rltrain/rltrain/internal/libtorch"
	"github.com/rltrain/rltrain/torch/hub"
)

// libtorch libraries that the core needs, and those that the CUDA library needs in addition, in dependency order.
var (
	coreNeeds = []string{"libgomp.so.1", "libc10.so", "libtorch_cpu.so"}
	cudaNeeds = []string{"libc10_cuda.so", "libtorch_cuda.so"}
)

// ABIVersion is the version of the native core's C interface that this program needs.
const ABIVersion = C.RLT_ABI_VERSION

// ownPath is where libtorch is if the search path of the native core leads to it.
const ownPath = "the search path of " + libraryName

// FindLibtorch returns the libtorch that Open uses, without loading it.
//
// Errors are a *libtorch.Missing if the native core is there and libtorch is not.
func FindLibtorch() (libtorch.Found, error) {
	core, err := findLibrary()
	if err != nil {
		return libtorch.Found{}, err
	}
	return coreLibtorch(core)
}

// coreLibtorch returns the libtorch for the core at path: that on its own search path, or any.
func coreLibtorch(path string) (libtorch.Found, error) {
	own, err := reaches(path, coreNeeds)
	if err != nil || own != "" {
		return libtorch.Found{Dir: filepath.Dir(own), From: ownPath}, err
	}
	cache, err := hub.CacheDir()
	if err != nil {
		return libtorch.Found{}, err
	}
	return libtorch.Find(cache)
}

// cudaLibtorch returns the folder of the libraries for the CUDA library at path, which core belongs to; "" if its own search
// path leads to them.
func cudaLibtorch(path, core string) (string, error) {
	own, err := reaches(path, cudaNeeds)
	if own != "" || err != nil {
		return "", err
	}
	cache, err := hub.CacheDir()
	if err != nil {
		return "", err
	}
	found, err := coreLibtorch(core)
	if err != nil {
		return "", err
	}
	return libtorch.FindCUDA(found.Dir, cache)
}

// reaches returns the folder on a library's own search path that has the last of the libraries it needs; "" if none has. A
// package comes without libtorch, so that none has.
func reaches(library string, needs []string) (string, error) {
	file, err := elf.Open(library)
	if err != nil {
		return "", fmt.Errorf("torch: %s is not a valid shared library: %w", library, err)
	}
	_, dirs, err := libtorch.Dependencies(file, filepath.Dir(library))
	if err := errors.Join(err, file.Close()); err != nil {
		return "", fmt.Errorf("torch: reading the dependencies of %s: %w", library, err)
	}
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, needs[len(needs)-1])); err == nil {
			return dir, nil
		}
	}
	return "", nil
}

// preload opens libraries of the libtorch in folder. A library that needs them then finds them by name because they are open.
func preload(folder string, needs []string) error {
	for _, name := range needs {
		if err := preloadFile(filepath.Join(folder, "lib", name)); err != nil {
			return fmt.Errorf("torch: libtorch: %w", err)
		}
	}
	return nil
}

func preloadFile(path string) error {
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("%s is missing", path)
	}
	if err := checkWhole(path, map[string]bool{}); err != nil {
		return err
	}
	cpath := C.CString(path)
	defer C.free(unsafe.Pointer(cpath))
	var message [1024]C.char
	if C.rlt_preload(cpath, &message[0], C.int(len(message))) != 0 {
		return errors.New(C.GoString(&message[0]))
	}
	return nil
}
