package libtorch_test

import (
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/libtorch"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/internal/wheel"
)

// library builds a shared library with a search path, which needs others of its folder.
func library(t *testing.T, path, search string, needs ...string) {
	t.Helper()
	args := []string{"-shared", "-fPIC", "-o", path, must.File(t, "x.c", "int x;\n"), "-Wl,--no-as-needed", "-Wl,-rpath," + search, "-L", filepath.Dir(path)}
	for _, name := range needs {
		args = append(args, "-l:"+name)
	}
	out, err := exec.Command("cc", args...).CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("no C compiler")
	}
	expect.Require(t, err == nil, "%s", out)
}

// TestLibrariesOfPython: python3's torch counts if it is whole, and all libraries that it needs.
func TestLibrariesOfPython(t *testing.T) {
	dir, cache := t.TempDir(), t.TempDir()
	at := func(name string) string { return filepath.Join(dir, "lib", name) }
	must.Write(t, filepath.Join(dir, "include/torch/headeronly/version.h"), `#define TORCH_VERSION "`+libtorch.Version+`"`)
	must.Do(t, os.Mkdir(filepath.Join(dir, "lib"), 0o755))
	library(t, at("libfar.so"), "$ORIGIN")
	library(t, at("libc10.so"), "/nowhere:$ORIGIN", "libfar.so")
	library(t, at("libfar.so"), "$ORIGIN", "libc10.so") // they need each other
	library(t, at("libtorch_cpu.so"), "$ORIGIN", "libc10.so", "libm.so.6")
	library(t, at("libnv.so"), "$ORIGIN")
	library(t, at("libtorch_cuda.so"), "$ORIGIN", "libtorch_cpu.so", "libnv.so")
	python := must.Folder(t, map[string]string{"python3": "#!/bin/sh\necho '" + filepath.Join(dir, "__init__.py") + "'\n"})
	must.Do(t, os.Chmod(filepath.Join(python, "python3"), 0o755))
	t.Setenv("PATH", python)
	t.Setenv("LIBTORCH", "")
	whole := func() {
		t.Helper()
		expect.Result(libtorch.Find(cache))(t, libtorch.Found{Dir: dir, From: "python3"}, "Find")
		expect.Result(libtorch.FindCUDA("", cache))(t, dir, "FindCUDA")
	}
	whole()
	expect.True(t, !libtorch.HasHeaders(dir), "a folder without headers has them")
	must.Write(t, filepath.Join(dir, "include/ATen/ATen.h"), "")
	expect.True(t, libtorch.HasHeaders(dir), "headers are not found")
	cuda := "python3's torch (" + dir + ") has no usable CUDA libraries … rltrain setup --device cuda"
	for name, want := range map[string]struct{ gone, cut, cuda string }{
		"libtorch_cpu.so":  {"it has no lib/libtorch_cpu.so", "python3's torch (" + dir + "): ", ""},
		"libc10.so":        {"it has no lib/libc10.so", "python3's torch (" + dir + "): ", ""},
		"libfar.so":        {"python3's torch (" + dir + ") lacks libfar.so", "python3's torch (" + dir + "): ", ""},
		"libnv.so":         {cuda: cuda},
		"libtorch_cuda.so": {cuda: cuda},
	} {
		data := must.Read(t, at(name))
		for left, want := range map[int]string{-1: want.gone, 0: want.cut, 100: want.cut, len(data) / 2: want.cut} {
			if must.Do(t, os.RemoveAll(at(name))); left >= 0 {
				must.Write(t, at(name), data[:left])
			}
			if want != "" {
				expect.Failure(libtorch.Find(cache))(t, want, "rltrain setup")
			}
		}
		if want.cuda != "" {
			expect.Failure(libtorch.FindCUDA("", cache))(t, want.cuda)
		}
		must.Write(t, at(name), data)
	}
	whole()
}

// TestShortSearchPaths: $ORIGIN and the byte after it must fit in place of the search path.
func TestShortSearchPaths(t *testing.T) {
	for search, fits := range map[string]bool{"/a/b/c": false, "/a/b/cd": true} {
		path := filepath.Join(t.TempDir(), "libx.so")
		library(t, path, search)
		before := must.Read(t, path)
		err := libtorch.Portable(path)
		expect.True(t, (err == nil) == fits && (fits || expect.Names(err, "no search path") && must.Read(t, path) == before), "search path %s: %v", search, err)
		_, dirs, err := libtorch.Dependencies(must.Open(elf.Open(path))(t), "/own")
		expect.True(t, err == nil && (len(dirs) == 1 && dirs[0] == "/own") == fits, "search path %s: now %q, %v", search, dirs, err)
	}
}

// TestSets: what is downloaded is for the processor, has the headers if asked for, and a folder of its own.
func TestSets(t *testing.T) {
	for arch, want := range map[string]struct{ name, machine, compute string }{
		"amd64": {"libtorch-" + libtorch.Version, "x86_64", ""}, "arm64": {"libtorch-" + libtorch.Version + "-arm64", "aarch64", "lib/libarm_compute.so"},
	} {
		plain, ok := libtorch.CPUOf(arch, false)
		built, _ := libtorch.CPUOf(arch, true)
		expect.True(t, ok && plain.Name == want.name && built.Name == want.name && plain.Needs == "" && built.Needs == "include/ATen/ATen.h", "%s: %+v", arch, built)
		more := built.Bytes - plain.Bytes
		expect.True(t, more > 30e6 && more < 90e6, "%s: headers have %v bytes", arch, more)
		for headers, s := range map[string]wheel.Set{"": plain, "include/": built} {
			places := s.Parts[0].Places
			expect.Equal(t, []string{headers, want.compute}, []string{places["torch/include/"], places["torch/lib/libarm_compute.so"]}, arch)
			for _, part := range s.Parts {
				expect.True(t, strings.Contains(part.File, want.machine) && len(part.SHA256) == 64, "%s: %+v", arch, part.Wheel)
			}
		}
	}
	_, ok := libtorch.CPUOf("riscv64", true)
	expect.True(t, !ok, "there is libtorch for riscv64")
}
