package libtorch

import (
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// fake makes a folder that looks like libtorch of a version. Its libraries are this test's program.
func fake(t *testing.T, dir, version string, libraries ...string) string {
	t.Helper()
	for _, name := range append(libraries, cpuLibrary, "lib/libc10.so") {
		path := filepath.Join(dir, name)
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.Do(t, os.Symlink(must.Get(os.Executable())(t), path))
	}
	path := filepath.Join(dir, "include", versionHeader)
	must.Write(t, path, "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION \\\n  \""+version+"\"\n")
	return dir
}

// pythonThat is the only program on the path; it prints a line for any arguments. There is no other libtorch.
func pythonThat(t *testing.T, prints string) {
	t.Helper()
	folder := t.TempDir()
	if prints != "" {
		must.Do(t, os.WriteFile(filepath.Join(folder, "python3"), []byte("#!/bin/sh\necho '"+strings.TrimSpace(prints)+"'\n"), 0o700))
	}
	t.Setenv("PATH", folder)
	t.Setenv("LIBTORCH", "")
}

// TestFindOrder: LIBTORCH comes before the cache, and the cache before Python.
func TestFindOrder(t *testing.T) {
	given, cache, python := fake(t, t.TempDir(), Version), t.TempDir(), fake(t, t.TempDir(), Version)
	pythonThat(t, filepath.Join(python, "__init__.py"))
	want := func(dir, from string) {
		t.Helper()
		found, err := Find(cache)
		expect.True(t, found == (Found{dir, from}) && err == nil, "got %v, %v, want %s", found, err, from)
	}
	want(python, "python3")
	own := fake(t, filepath.Join(cache, CPU(false).Name), Version)
	want(own, "the cache")
	t.Setenv("LIBTORCH", given)
	want(given, "LIBTORCH")
	t.Setenv("LIBTORCH", fake(t, t.TempDir(), "2.10.0"))
	var missing *Missing
	if _, err := Find(cache); err == nil || errors.As(err, &missing) || !strings.Contains(err.Error(), "it is libtorch 2.10.0, want "+Version) {
		t.Errorf("an old one in LIBTORCH: got %v", err)
	}
}

// TestPythonSearchesNoWorkingDirectory: a folder named torch there is not python3's package.
func TestPythonSearchesNoWorkingDirectory(t *testing.T) {
	pythonThat(t, "")
	script := "#!/bin/sh\nif [ -e torch/__init__.py ]; then echo \"$PWD/torch/__init__.py\"; fi\n" // as Python does
	must.Do(t, os.WriteFile(filepath.Join(os.Getenv("PATH"), "python3"), []byte(script), 0o700))
	dir := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(fake(t, filepath.Join(dir, "torch"), Version), "__init__.py"), nil, 0o600))
	t.Chdir(dir)
	found, err := Find(t.TempDir())
	expect.True(t, err != nil && strings.Contains(err.Error(), "python3 has no torch package"), "got %v, %v", found, err)
}

func TestMissingIsNamed(t *testing.T) {
	empty := t.TempDir()
	for name, test := range map[string]struct{ variable, python, want string }{
		"no folder":        {empty + "/nothing", "", "LIBTORCH (" + empty + "/nothing) is not libtorch"},
		"an empty folder":  {empty, "", "it has no lib/libtorch_cpu.so"},
		"no torch":         {"", " ", "python3 has no torch package"},
		"another's folder": {"", empty + "/__init__.py", "python3's torch (" + empty + ")"},
		"an old torch":     {"", fake(t, t.TempDir(), "2.9.1") + "/__init__.py", "it is libtorch 2.9.1, want"},
		"no python3":       {"", "", "there is no python3"},
	} {
		t.Run(name, func(t *testing.T) {
			pythonThat(t, test.python)
			t.Setenv("LIBTORCH", test.variable)
			_, err := Find(empty)
			var missing *Missing
			expect.True(t, err != nil && strings.Contains(err.Error(), test.want) && strings.Contains(err.Error(), Version) && errors.As(err, &missing) == (test.variable == ""), "got %v, want %q in it, and the version", err, test.want)
			expect.True(t, test.variable != "" || strings.Contains(err.Error(), "rltrain setup"), "%v does not say how to get it", err)
		})
	}
}

func TestFindCUDA(t *testing.T) {
	core, cache := fake(t, t.TempDir(), Version), t.TempDir()
	pythonThat(t, " ")
	var missing *Missing
	_, err := FindCUDA(core, cache)
	expect.True(t, errors.As(err, &missing) && strings.Contains(err.Error(), "rltrain setup --device cuda"), "got %v", err)
	for _, test := range []struct{ core, cache string }{
		{fake(t, t.TempDir(), Version, cudaLibrary), ""}, {core, fake(t, filepath.Join(cache, "libtorch-cuda-"+Version), Version, cudaLibrary)},
	} {
		want := test.cache
		if want == "" {
			want = test.core
		}
		dir, err := FindCUDA(test.core, cache)
		expect.True(t, dir == want && err == nil, "got %s, %v, want %s", dir, err, want)
	}
}

// TestPortable compiles a library with a search path, which Portable replaces.
func TestPortable(t *testing.T) {
	dir := t.TempDir()
	source, library := filepath.Join(dir, "x.c"), filepath.Join(dir, "libx.so")
	must.Do(t, os.WriteFile(source, []byte("int x;\n"), 0o644))
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", library, source, "-Wl,-rpath,/some/folder:/another").CombinedOutput(); err != nil {
		t.Skipf("no C compiler: %v %s", err, out)
	}
	must.Do(t, Portable(library))
	file := must.Open(elf.Open(library))(t)
	_, dirs, err := Dependencies(file, "/here")
	must.Do(t, err)
	want := []string{"/here"}
	expect.True(t, cmp.Equal(dirs, want), "the library searches %q, want %q", dirs, want)
	must.Do(t, Portable(library)) // a second time changes nothing
	expect.True(t, Portable(source) != nil, "a source has a search path")
}
