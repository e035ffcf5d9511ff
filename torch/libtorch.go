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

// Libraries of libtorch's that the core needs, and those that the CUDA library needs beside them, each after what it
// needs itself.
var (
	coreNeeds = []string{"libgomp.so.1", "libc10.so", "libtorch_cpu.so"}
	cudaNeeds = []string{"libc10_cuda.so", "libtorch_cuda.so"}
)

// provide opens what a library needs of libtorch, where its own search path does not lead there: that of a bundle does
// not. The library finds by name what is open already.
//
// Errors say where libtorch was looked for, and why that is not it.
func provide(library string, needs []string) error {
	file, err := elf.Open(library)
	if err != nil {
		return fmt.Errorf("torch: %s is not a whole shared library: %w", library, err)
	}
	_, dirs, err := dependencies(file, filepath.Dir(library))
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("torch: reading what %s needs: %w", library, err)
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
			return fmt.Errorf("torch: of the libtorch of %s: %w", from, err)
		}
	}
	return nil
}

func preload(path string) error {
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("there is no %s", path)
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

// findLibtorch is the folder of libtorch, with include and lib in it, and who named it: LIBTORCH, or else python3 by the
// torch that it has installed. No Python runs for anything else.
func findLibtorch() (folder, from string, err error) {
	if given := os.Getenv("LIBTORCH"); given != "" {
		return given, "LIBTORCH", checkLibtorch("LIBTORCH", given)
	}
	const ask = "import importlib.util as u; s = u.find_spec('torch'); print(s.origin if s else '')"
	const helps = "python3 -m pip install torch==" + LibtorchVersion + ", or set LIBTORCH to the folder of a libtorch " + LibtorchVersion
	command := exec.Command("python3", "-c", ask)
	command.Dir = "/" // Python looks for modules in the current folder, too
	out, err := command.Output()
	if err != nil {
		return "", "", fmt.Errorf("torch: this program needs libtorch %s, and python3, which is to know one, does not run: %w; %s", LibtorchVersion, err, helps)
	}
	origin := strings.TrimSpace(string(out))
	if origin == "" {
		return "", "", fmt.Errorf("torch: this program needs libtorch %s, and python3 has no torch installed: %s", LibtorchVersion, helps)
	}
	folder = filepath.Dir(origin)
	return folder, "python3", checkLibtorch("python3's torch", folder)
}

// versionLine is how libtorch's headers tell its version.
var versionLine = regexp.MustCompile(`#define TORCH_VERSION\s[^"]*"([^"]*)"`)

// checkLibtorch refuses another version: a core that runs with it would break somewhere else.
func checkLibtorch(name, folder string) error {
	path := filepath.Join(folder, "include", "torch", "headeronly", "version.h")
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("torch: %s, %s, is no libtorch %s: %w", name, folder, LibtorchVersion, err)
	}
	found := versionLine.FindSubmatch(text)
	if found == nil {
		return fmt.Errorf("torch: %s, %s, is no libtorch %s: %s tells no version", name, folder, LibtorchVersion, path)
	}
	if got := string(found[1]); got != LibtorchVersion {
		return fmt.Errorf("torch: %s, %s, is libtorch %s, want %s: python3 -m pip install torch==%s", name, folder, got, LibtorchVersion, LibtorchVersion)
	}
	return nil
}
