package torch

// #include <stdlib.h>
// #include "loader.h"
import "C"

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"unsafe"
)

// libtorch libraries that the core needs, and those that the CUDA library needs in addition, in dependency order.
var (
	coreNeeds = []string{"libgomp.so.1", "libc10.so", "libtorch_cpu.so"}
	cudaNeeds = []string{"libc10_cuda.so", "libtorch_cuda.so"}
)

// provide opens the libtorch libraries that a library needs but its search path does not find, as in a bundle. The library
// then finds them by name because they are open.
//
// Errors say where libtorch was searched, and why that does not work.
func provide(library string, needs []string) error {
	file, err := elf.Open(library)
	if err != nil {
		return fmt.Errorf("torch: %s is not a valid shared library: %w", library, err)
	}
	_, dirs, err := dependencies(file, filepath.Dir(library))
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("torch: reading the dependencies of %s: %w", library, err)
	}
	last := needs[len(needs)-1]
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, last)); err == nil {
			return nil
		}
	}
	folder, from, err := findLibtorch()
	if err != nil {
		return err
	}
	for _, name := range needs {
		if err := preload(filepath.Join(folder, "lib", name)); err != nil {
			return fmt.Errorf("torch: libtorch from %s: %w", from, err)
		}
	}
	return nil
}

func preload(path string) error {
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

// findLibtorch returns the libtorch folder, with include and lib, and its source: LIBTORCH, else the torch package of
// python3. Python is used for nothing else.
func findLibtorch() (folder, from string, err error) {
	if given := os.Getenv("LIBTORCH"); given != "" {
		return given, "LIBTORCH", checkLibtorch("LIBTORCH", given)
	}
	const ask = "import importlib.util as u; s = u.find_spec('torch'); print(s.origin if s else '')"
	const helps = "python3 -m pip install torch==" + LibtorchVersion + ", or set LIBTORCH to the folder of libtorch " + LibtorchVersion
	command := exec.Command("python3", "-c", ask)
	command.Dir = "/" // Python also searches modules in the working directory
	out, err := command.Output()
	if err != nil {
		return "", "", fmt.Errorf("torch: libtorch %s not found: running python3 failed: %w; %s", LibtorchVersion, err, helps)
	}
	origin := strings.TrimSpace(string(out))
	if origin == "" {
		return "", "", fmt.Errorf("torch: libtorch %s not found: python3 has no torch package; %s", LibtorchVersion, helps)
	}
	folder = filepath.Dir(origin)
	return folder, "python3", checkLibtorch("python3's torch", folder)
}

// versionLine matches the version in libtorch's headers.
var versionLine = regexp.MustCompile(`#define TORCH_VERSION\s[^"]*"([^"]*)"`)

// checkLibtorch refuses other versions, which would crash the core later.
func checkLibtorch(name, folder string) error {
	path := filepath.Join(folder, "include", "torch", "headeronly", "version.h")
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("torch: %s (%s) is not libtorch %s: %w", name, folder, LibtorchVersion, err)
	}
	found := versionLine.FindSubmatch(text)
	if found == nil {
		return fmt.Errorf("torch: %s (%s) is not libtorch %s: no version in %s", name, folder, LibtorchVersion, path)
	}
	if got := string(found[1]); got != LibtorchVersion {
		return fmt.Errorf("torch: %s (%s) is libtorch %s, want %s; run python3 -m pip install torch==%s", name, folder, got, LibtorchVersion, LibtorchVersion)
	}
	return nil
}
