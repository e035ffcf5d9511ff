package torch

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/libtorch"
	test "github.com/rltrain/rltrain/internal/must"
)

func TestParseDevice(t *testing.T) {
	for text, want := range map[string]string{"cpu": "cpu", "auto": "auto", "cuda": "cuda:0", "cuda:0": "cuda:0", "cuda:12": "cuda:12"} {
		d, err := ParseDevice(text)
		expect.True(t, err == nil, "%q: %v", text, err)
		expect.Equal(t, want, d.String(), text)
	}
	for _, text := range []string{"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:+1", "cuda:01", "cuda:1:2", "cuda0", "CUDA", "cpu:0", "cuda:128", " cuda"} {
		d, err := ParseDevice(text)
		expect.True(t, err != nil, "%q: got %v, want an error", text, d)
	}
}

// withDriver pretends that a driver is loaded, or not.
func withDriver(t *testing.T, there bool) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "driver")
	if there {
		test.Do(t, os.WriteFile(file, nil, 0o600))
	}
	before := driverFiles
	driverFiles = []string{file}
	t.Cleanup(func() { driverFiles = before })
}

// coreIn creates a folder with a fake native core, and a fake CUDA library with the given content if that is not empty.
func coreIn(t *testing.T, cuda string) {
	t.Helper()
	folder := t.TempDir()
	for name, data := range map[string]string{libraryName: "core", cudaLibraryName: cuda} {
		if data == "" {
			continue
		}
		test.Do(t, os.WriteFile(filepath.Join(folder, name), []byte(data), 0o600))
	}
	t.Setenv("RLTRAIN_LIB", folder)
}

// TestWhatAGPULacksIsSaid, and auto falls back to the CPU.
func TestWhatAGPULacksIsSaid(t *testing.T) {
	for _, test := range []struct {
		name, cuda string
		driver     bool
		want       []string
	}{
		{"neither library nor driver", "", false, []string{cudaLibraryName, "make cuda", "--device cpu"}},
		{"no library", "", true, []string{cudaLibraryName, "make cuda", "--device cpu"}},
		{"no driver", "anything", false, []string{"driver", "install one", "--device cpu"}},
		{"no whole library", "anything", true, []string{cudaLibraryName, "not a valid shared library", "make cuda"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			coreIn(t, test.cuda)
			withDriver(t, test.driver)
			err := tryCUDA()
			expect.Require(t, err != nil, "got no error")
			expect.Contains(t, err.Error(), test.want...)
			expect.Same(t, test.name == "no driver", errors.Is(err, ErrNoDriver), "%v is ErrNoDriver", err)
			if test.cuda == "" || !test.driver { // auto opens no library then, which would fail here
				expect.Result((Device{auto: true}).resolve())(t, Device{}, "auto")
			}
		})
	}
}

// TestCUDALibraryOpens opens the library built by make cuda, and a GPU if there is one.
func TestCUDALibraryOpens(t *testing.T) {
	path, err := findCUDA()
	if err != nil {
		t.Skip(err)
	}
	test.Do(t, Open(0))
	test.Do(t, openCUDA(path))
	real := hasDriver()
	withDriver(t, true)
	_, err = Device{cuda: true}.resolve()
	expect.True(t, !real || err == nil, "%v", err)
	if real && err == nil {
		m, err := Device{cuda: true}.memory()
		expect.True(t, err == nil && m.Allocated >= 0 && m.Peak >= m.Allocated && m.Reserved >= m.Allocated && m.Free <= m.Total && m.Total >= 1<<28, "memory: got %+v, %v", m, err)
	}
	expect.True(t, real || err != nil && strings.Contains(err.Error(), "needs a driver"), "without a driver: got %v, want an error that says what it needs", err)
}

func TestMissingLibraryIsNamed(t *testing.T) {
	t.Setenv("RLTRAIN_LIB", filepath.Join(t.TempDir(), "nothing.so"))
	expect.Failure(findLibrary())(t, "RLTRAIN_LIB is")
	t.Setenv("RLTRAIN_LIB", "")
	t.Setenv("RLTRAIN_CACHE", t.TempDir())
	expect.Failure(findLibrary())(t, "run `make`")
}

// TestTruncatedLibraryIsAnError: the system's loader would map the file, and the process would crash later.
func TestTruncatedLibraryIsAnError(t *testing.T) {
	path := test.Get(findLibrary())(t)
	test.Do(t, checkWhole(path, map[string]bool{}))
	data := test.Get(os.ReadFile(path))(t)
	for _, share := range []float64{0, 0.0001, 0.1, 0.5, 0.9, 0.999} {
		cut := filepath.Join(t.TempDir(), libraryName)
		test.Do(t, os.WriteFile(cut, data[:int(share*float64(len(data)))], 0o600))
		expect.Error(t, checkWhole(cut, map[string]bool{}), cut)
	}
}

// TestLibraryWithoutASearchPath opens the libraries needed by a core without a search path, as in a bundle.
func TestLibraryWithoutASearchPath(t *testing.T) {
	path := test.Get(findLibrary())(t)
	file := test.Get(elf.Open(path))(t)
	_, dirs, err := libtorch.Dependencies(file, filepath.Dir(path))
	test.Do(t, err)
	test.Do(t, file.Close())
	data := test.Get(os.ReadFile(path))(t)
	own := dirs[0]
	if _, err := os.Stat(filepath.Join(own, "libtorch_cpu.so")); err != nil {
		t.Skip("this core is a bundle's, which has lost it already")
	}
	data = bytes.ReplaceAll(data, []byte(own), append([]byte("/nowhere"), make([]byte, len(own)-len("/nowhere"))...))
	lost := filepath.Join(t.TempDir(), libraryName)
	test.Do(t, os.WriteFile(lost, data, 0o600))
	t.Setenv("LIBTORCH", filepath.Dir(own))
	folder, err := coreLibtorch(lost)
	expect.True(t, folder.Dir == filepath.Dir(own) && folder.From == "LIBTORCH" && err == nil, "got %v, %v", folder, err)
	test.Do(t, preload(filepath.Dir(own), coreNeeds))
	folder, err = coreLibtorch(path)
	expect.True(t, folder.From == ownPath && err == nil, "the core as it was built needs no LIBTORCH: %v, %v", folder, err)
	bare := t.TempDir()
	expect.Error(t, preload(bare, coreNeeds), filepath.Join(bare, "lib", coreNeeds[0])+" is missing")
	t.Setenv("LIBTORCH", bare)
	expect.Failure(coreLibtorch(lost))(t, "LIBTORCH ("+bare+")")
}

func TestFastest(t *testing.T) {
	for _, test := range []struct {
		name string
		sets []KernelSpeed
		want string
	}{
		{"none", nil, ""},
		{"one", []KernelSpeed{{"base", 9, 8}}, "base"},
		{"the widest of equals", []KernelSpeed{{"base", 20, 18}, {"avx2", 101, 98}, {"avx512", 99, 96}}, "avx512"},
		{"slow instructions for bfloat16", []KernelSpeed{{"avx2", 80, 75}, {"avx512", 150, 140}, {"avx512_bf16", 150, 80}}, "avx512"},
		{"fast ones", []KernelSpeed{{"avx2", 80, 75}, {"avx512", 150, 140}, {"avx512_bf16", 150, 280}}, "avx512_bf16"},
		{"tiles", []KernelSpeed{{"avx512", 150, 140}, {"avx512_bf16", 150, 80}, {"amx", 148, 1500}}, "amx"},
		{"slow vectors", []KernelSpeed{{"avx2", 100, 95}, {"avx512", 70, 130}}, "avx2"},
	} {
		expect.Same(t, test.want, fastest(test.sets), "%s", test.name)
	}
}

func TestSpeedsAreMeasuredOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "kernels.json")
	measured := 0
	want := []KernelSpeed{{"base", 9, 8}, {"avx2", 80, 75}}
	measure := func() []KernelSpeed {
		measured++
		return want
	}
	for _, step := range []struct {
		processor, content string
		measured           int
	}{
		{"a", "", 1}, {"a", "", 1}, {"b", "", 2}, {"a", "", 2},
		{"a", "{", 3}, {"b", "", 4}, {"b", "null", 5}, {"b", `{"b": []}`, 6}, {"b", "", 6},
	} {
		if step.content != "" {
			test.Do(t, os.WriteFile(path, []byte(step.content), 0o644))
		}
		expect.Equal(t, want, speedsFor(step.processor, path, measure), fmt.Sprintf("%v:", step))
		expect.Same(t, step.measured, measured, "%v: measured %d times, want %d", step, measured, step.measured)
	}
	// The speeds cannot be saved: there is no folder, or it is a file.
	for _, path := range []string{"", filepath.Join(path, "in-a-file", "kernels.json")} {
		expect.Equal(t, want, speedsFor("c", path, measure), fmt.Sprintf("%q:", path))
	}
}

// plugin compiles testdata/plugin.c next to a fake core and makes it the CUDA library.
func plugin(t *testing.T, defines ...string) {
	t.Helper()
	const headers = "../csrc/include"
	compiler, err := exec.LookPath("cc")
	if _, missing := os.Stat(headers); err != nil || missing != nil {
		t.Skip("there is no C compiler, or no header: this is a bundle")
	}
	coreIn(t, "anything")
	withDriver(t, true)
	folder := os.Getenv("RLTRAIN_LIB")
	// A folder that passes for libtorch by its name.
	test.Do(t, os.WriteFile(filepath.Join(folder, cudaNeeds[len(cudaNeeds)-1]), nil, 0o600))
	arguments := []string{"-shared", "-fPIC", "testdata/plugin.c", "-I" + headers, "-Wl,-rpath," + folder, "-o", filepath.Join(folder, cudaLibraryName)}
	if !slices.ContainsFunc(defines, func(d string) bool { return strings.HasPrefix(d, "LIBTORCH=") }) {
		defines = append(defines, `LIBTORCH="`+LibtorchVersion+`"`)
	}
	for _, define := range defines {
		arguments = append(arguments, "-D"+define)
	}
	out, err := exec.Command(compiler, arguments...).CombinedOutput()
	expect.Require(t, err == nil, "%v: %s", err, out)
	before := loadCUDA
	loadCUDA = sync.OnceValue(tryCUDA)
	t.Cleanup(func() { loadCUDA = before })
	t.Setenv("CUDA_VISIBLE_DEVICES", "4,7")
}

// TestUnsupportedGPUsAreRefused: each error names the problem and the fix; auto then uses the CPU.
func TestUnsupportedGPUsAreRefused(t *testing.T) {
	for _, test := range []struct {
		name    string
		gpu     int
		defines []string
		want    []string
	}{
		{"interface", 0, []string{"VERSION=99"}, []string{cudaLibraryName, "interface version 99", "make cuda"}},
		{"core", 0, []string{`STAMP="another"`}, []string{"was built for another core than", "make cuda"}},
		{"libtorch", 0, []string{`LIBTORCH="2.10.0"`}, []string{"built with libtorch 2.10.0, want " + LibtorchVersion, "make cuda"}},
		{"function", 0, []string{"NO_TRY"}, []string{"has no function rlt_cuda_try", "make cuda"}},
		{"driver", 0, []string{"OLD_DRIVER"}, []string{"CUDA driver version is insufficient", "580 or newer", `"4,7"`}},
		{"number", 2, nil, []string{"--device cuda:2", "there are 2 GPUs, numbered from 0", `CUDA_VISIBLE_DEVICES is "4,7"`}},
		{"architecture", 1, []string{"MAJOR=7"}, []string{"--device cuda:1", "One has compute capability 7.0", "at least 8.0", "--device cpu"}},
		{"sum", 0, []string{"BROKEN"}, []string{"--device cuda:0", "Zero", "fails a test computation: no kernel image", "--device cpu"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			plugin(t, test.defines...)
			_, err := Device{cuda: true, gpu: test.gpu}.resolve()
			expect.Require(t, err != nil, "got no error")
			expect.Contains(t, err.Error(), test.want...)
			expect.True(t, !strings.Contains(err.Error(), "\n"), "got more than a line: %v", err)
			want := Device{}
			if test.gpu > 0 && test.defines == nil { // the first GPU is not refused
				want = Device{cuda: true}
			}
			expect.Result((Device{auto: true}).resolve())(t, want, "auto")
		})
	}
}

// TestSupportedGPUIsUsed by number or by auto.
func TestSupportedGPUIsUsed(t *testing.T) {
	plugin(t)
	for text, want := range map[string]string{"cuda": "cuda:0", "cuda:1": "cuda:1", "auto": "cuda:0", "cpu": "cpu"} {
		d := test.Get(ParseDevice(text))(t)
		got, err := d.resolve()
		expect.True(t, err == nil && got.String() == want, "%s: got %v, %v, want %s", text, got, err, want)
	}
	for text, want := range map[string]bool{"cuda": true, "cuda:1": true, "cpu": false} {
		d := test.Get(ParseDevice(text))(t)
		expect.Result(d.prefersBF16())(t, want, "%s: prefers bf16", text)
	}
	found, err := gpus()
	expect.True(t, err == nil && len(found) == 2 && found[1] == (GPU{Name: "One", Memory: 1 << 30, Major: 9}), "got %v, %v", found, err)
}

// TestOldGPUsPreferNoBF16, because they have no bfloat16 arithmetic.
func TestOldGPUsPreferNoBF16(t *testing.T) {
	plugin(t, "MAJOR=7")
	got, err := (Device{cuda: true}).prefersBF16()
	expect.True(t, err == nil && !got, "got %t, %v, want false", got, err)
}

// TestGPUMemoryAndUse: each number is in its field; the CPU has none.
func TestGPUMemoryAndUse(t *testing.T) {
	plugin(t)
	if _, err := gpus(); err != nil { // opens the library
		t.Fatal(err)
	}
	got, err := Device{cuda: true, gpu: 1}.memory()
	want := (GPUMemory{Allocated: 20, Peak: 21, Reserved: 22, Free: 23, Total: 24})
	expect.True(t, err == nil && *got == want, "got %+v, %v, want %+v", got, err, want)
	got, err = (Device{}).memory()
	expect.True(t, got == nil && err == nil, "of the CPU: got %+v, %v", got, err)
	_, err = (Device{cuda: true, gpu: 2}).memory()
	expect.True(t, err != nil && strings.HasPrefix(err.Error(), "torch: memory of cuda:2: invalid device ordinal"), "of a GPU that is not there: %v", err)
	use, err := Device{cuda: true}.use()
	wantUse := GPUUse{Busy: 71, Memory: 29}
	expect.True(t, err == nil && *use == wantUse, "got %v, %v, want %v", use, err, wantUse)
	if use, err := (Device{}).use(); use != nil || err != nil {
		t.Errorf("the CPU: got %v, %v", use, err)
	}
	_, err = (Device{cuda: true, gpu: 1}).use()
	expect.True(t, err != nil && err.Error() == "torch: use of cuda:1: the driver does not tell how busy it is", "got %v", err)
}
