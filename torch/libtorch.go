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

// Ready reports whether the native core and libtorch are on this machine, without loading them.
//
// Errors are a *libtorch.Missing if only libtorch is missing.
func Ready() error {
	core, err := findLibrary()
	if err != nil {
		return err
	}
	_, err = coreLibtorch(core)
	return err
}

// coreLibtorch returns the libtorch folder for the core at path; "" if the core's own search path leads to libtorch.
func coreLibtorch(path string) (string, error) {
	reaches, err := reaches(path, coreNeeds)
	if reaches || err != nil {
		return "", err
	}
	cache, err := hub.CacheDir()
	if err != nil {
		return "", err
	}
	found, err := libtorch.Find(cache)
	return found.Dir, err
}

// cudaLibtorch is coreLibtorch for the CUDA library at path, which core belongs to.
func cudaLibtorch(path, core string) (string, error) {
	reaches, err := reaches(path, cudaNeeds)
	if reaches || err != nil {
		return "", err
	}
	cache, err := hub.CacheDir()
	if err != nil {
		return "", err
	}
	folder, err := coreLibtorch(core)
	if err != nil {
		return "", err
	}
	return libtorch.FindCUDA(folder, cache)
}

// reaches reports whether a library's own search path leads to the last of the libraries that it needs. In a package, which
// comes without libtorch, it does not.
func reaches(library string, needs []string) (bool, error) {
	file, err := elf.Open(library)
	if err != nil {
		return false, fmt.Errorf("torch: %s is not a valid shared library: %w", library, err)
	}
	_, dirs, err := libtorch.Dependencies(file, filepath.Dir(library))
	if err := errors.Join(err, file.Close()); err != nil {
		return false, fmt.Errorf("torch: reading the dependencies of %s: %w", library, err)
	}
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, needs[len(needs)-1])); err == nil {
			return true, nil
		}
	}
	return false, nil
}

// preload opens libraries of the libtorch in folder. A library that needs them then finds them by name because they are open.
func preload(folder string, needs []string) error {
	if folder == "" {
		return nil
	}
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
