// Package libtorch finds the native library of PyTorch on this machine, and says which wheels have it. Python's torch
// package serves as a folder alone: no Python code of it runs.
package libtorch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

const (
	versionHeader = "torch/headeronly/version.h"
	coreHeader    = "include/ATen/ATen.h"
	cpuLibrary    = "lib/libtorch_cpu.so"
	cudaLibrary   = "lib/libtorch_cuda.so"
)

// Found is a libtorch of the pinned version on this machine.
type Found struct {
	Dir  string // has include and lib
	From string // "LIBTORCH", "the cache" or "python3"
}

// Missing is the error of a machine without libtorch, or without its CUDA libraries.
type Missing struct {
	reasons []string
	setup   string // the command that downloads it
}

func (m *Missing) Error() string {
	return fmt.Sprintf("libtorch %s not found: %s; run %s, which downloads it, or set LIBTORCH to its folder", Version, strings.Join(m.reasons, ", "), m.setup)
}

// Find returns the libtorch in LIBTORCH, in rltrain's cache folder, or in the torch package of python3, in this order.
//
// Errors are a *Missing if there is none, or say what is wrong with that in LIBTORCH.
func Find(cache string) (Found, error) {
	if given := os.Getenv("LIBTORCH"); given != "" {
		if err := check(given); err != nil {
			return Found{}, fmt.Errorf("LIBTORCH (%s) is not libtorch %s: %w", given, Version, err)
		}
		return Found{given, "LIBTORCH"}, nil
	}
	dir := filepath.Join(cache, CPU(false).Name)
	err := check(dir)
	if err == nil {
		return Found{dir, "the cache"}, nil
	}
	reasons := []string{dir + ": " + err.Error()}
	if dir, err = installed(); err == nil {
		return Found{dir, "python3"}, nil
	}
	return Found{}, &Missing{append(reasons, err.Error()), "rltrain setup"}
}

// FindCUDA returns the folder of libtorch's CUDA libraries: core if it has them, or that in the cache, or python3's. core
// is the folder that Find found, or "".
//
// Errors are a *Missing if there is none.
func FindCUDA(core, cache string) (string, error) {
	dir := filepath.Join(cache, CUDA().Name)
	reasons := []string{dir + " does not exist"}
	for _, dir := range []string{core, dir} {
		if hasCUDA(dir) {
			return dir, nil
		}
	}
	dir, err := installed()
	if err == nil && hasCUDA(dir) {
		return dir, nil
	}
	if err == nil {
		err = fmt.Errorf("python3's torch (%s) has no usable CUDA libraries", dir)
	}
	return "", &Missing{append(reasons, err.Error()), "rltrain setup --device cuda"}
}

func hasCUDA(dir string) bool {
	missing, err := lacks(filepath.Join(dir, cudaLibrary), map[string]bool{"libtorch_cpu.so": true, "libc10.so": true, "libgomp.so.1": true, "libcudart.so.13": true, "libcupti.so.13": true})
	return err == nil && missing == ""
}

// HasHeaders reports whether a folder has what building the core needs.
func HasHeaders(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, coreHeader))
	return err == nil
}

// installed returns the folder of python3's torch package, if it has the pinned version and all its libraries.
func installed() (string, error) {
	const ask = "import importlib.util as u; s = u.find_spec('torch'); print(s.origin if s else '')"
	command := exec.Command("python3", "-c", ask)
	command.Dir = "/" // Python also searches modules in the working directory
	out, err := command.Output()
	if errors.Is(err, exec.ErrNotFound) {
		return "", errors.New("there is no python3")
	}
	if err != nil {
		return "", fmt.Errorf("running python3 failed: %w", err)
	}
	origin := strings.TrimSpace(string(out))
	if origin == "" {
		return "", errors.New("python3 has no torch package")
	}
	dir := filepath.Dir(origin)
	if err := check(dir); err != nil {
		return "", fmt.Errorf("python3's torch (%s): %w", dir, err)
	}
	missing, err := lacks(filepath.Join(dir, cpuLibrary), map[string]bool{})
	if err != nil {
		return "", fmt.Errorf("python3's torch (%s): %w", dir, err)
	}
	if missing != "" {
		return "", fmt.Errorf("python3's torch (%s) lacks %s", dir, missing)
	}
	return dir, nil
}

// versionLine matches the version in libtorch's headers.
var versionLine = regexp.MustCompile(`#define TORCH_VERSION\s[^"]*"([^"]*)"`)

// check refuses other versions, which would crash the core later.
func check(dir string) error {
	if _, err := os.Stat(dir); err != nil {
		return errors.New("no such folder")
	}
	for _, name := range []string{cpuLibrary, "lib/libc10.so"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("it has no %s", name)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "include", versionHeader))
	if err != nil {
		return fmt.Errorf("it has no include/%s", versionHeader)
	}
	found := versionLine.FindSubmatch(text)
	if found == nil {
		return fmt.Errorf("no version in include/%s", versionHeader)
	}
	if got := string(found[1]); got != Version {
		return fmt.Errorf("it is libtorch %s, want %s", got, Version)
	}
	return nil
}
