package torch

import (
	"bytes"
	"debug/elf"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// libtorchFolder makes a folder that looks like libtorch of a version.
func libtorchFolder(t *testing.T, version string) string {
	t.Helper()
	folder := t.TempDir()
	for name, text := range map[string]string{
		"__init__.py":                        "",
		"include/torch/headeronly/version.h": "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION \\\n  \"" + version + "\"\n",
	} {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// pythonThat is the only program on the path; it prints a line for any arguments.
func pythonThat(t *testing.T, prints string) {
	t.Helper()
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "python3"), []byte("#!/bin/sh\necho '"+prints+"'\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", folder)
	t.Setenv("LIBTORCH", "")
}

func TestLibtorchFromVariableOrPython(t *testing.T) {
	right, old := libtorchFolder(t, LibtorchVersion), libtorchFolder(t, "2.10.0")
	pythonThat(t, filepath.Join(right, "__init__.py"))
	if folder, from, err := findLibtorch(); folder != right || from != "python3" || err != nil {
		t.Errorf("got %s of %s, %v, want that of Python", folder, from, err)
	}
	t.Setenv("LIBTORCH", old)
	if _, _, err := findLibtorch(); err == nil || !strings.Contains(err.Error(), "LIBTORCH ("+old+") is libtorch 2.10.0, want "+LibtorchVersion) {
		t.Errorf("an old one in LIBTORCH: got %v", err)
	}
	t.Setenv("LIBTORCH", right)
	pythonThat(t, filepath.Join(old, "__init__.py"))
	t.Setenv("LIBTORCH", right)
	if folder, _, err := findLibtorch(); folder != right || err != nil {
		t.Errorf("got %s, %v, want LIBTORCH before Python", folder, err)
	}
}

func TestMissingLibtorchIsNamed(t *testing.T) {
	empty := t.TempDir()
	for name, test := range map[string]struct{ variable, python, want string }{
		"no folder":        {empty + "/nothing", "", "is not libtorch"},
		"an empty folder":  {empty, "", "version.h"},
		"no torch":         {"", " ", "python3 has no torch package"},
		"another's folder": {"", empty + "/__init__.py", "python3's torch"},
		"no python3":       {"", "", "running python3 failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("PATH", empty)
			if test.python != "" {
				pythonThat(t, strings.TrimSpace(test.python))
			}
			t.Setenv("LIBTORCH", test.variable)
			_, _, err := findLibtorch()
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), LibtorchVersion) {
				t.Errorf("got %v, want %q in it, and the version", err, test.want)
			}
		})
	}
}

// TestLibraryWithoutASearchPath opens the libraries needed by a core without a search path, as in a bundle.
func TestLibraryWithoutASearchPath(t *testing.T) {
	path, err := findLibrary()
	if err != nil {
		t.Fatal(err)
	}
	file, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	_, dirs, err := dependencies(file, filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	libtorch := dirs[0]
	if _, err := os.Stat(filepath.Join(libtorch, "libtorch_cpu.so")); err != nil {
		t.Skip("this core is a bundle's, which has lost it already")
	}
	data = bytes.ReplaceAll(data, []byte(libtorch), append([]byte("/nowhere"), make([]byte, len(libtorch)-len("/nowhere"))...))
	lost := filepath.Join(t.TempDir(), libraryName)
	if err := os.WriteFile(lost, data, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LIBTORCH", filepath.Dir(libtorch))
	if err := provide(lost, coreNeeds); err != nil {
		t.Error(err)
	}
	bare := libtorchFolder(t, LibtorchVersion)
	t.Setenv("LIBTORCH", bare)
	if err := provide(lost, coreNeeds); err == nil || !strings.Contains(err.Error(), filepath.Join(bare, "lib", coreNeeds[0])+" is missing") {
		t.Errorf("a folder without libraries: got %v", err)
	}
	if err := provide(path, coreNeeds); err != nil {
		t.Errorf("the core as it was built needs no LIBTORCH: %v", err)
	}
}
