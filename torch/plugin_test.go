package torch

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

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
	err = os.WriteFile(filepath.Join(folder, cudaNeeds[len(cudaNeeds)-1]), nil, 0o600)
	expect.Require(t, err == nil, "%v", err)
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
		d, err := ParseDevice(text)
		expect.Require(t, err == nil, "%v", err)
		got, err := d.resolve()
		expect.True(t, err == nil && got.String() == want, "%s: got %v, %v, want %s", text, got, err, want)
	}
	for text, want := range map[string]bool{"cuda": true, "cuda:1": true, "cpu": false} {
		d, err := ParseDevice(text)
		expect.Require(t, err == nil, "%v", err)
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
