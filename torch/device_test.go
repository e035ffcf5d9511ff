package torch

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

func TestParseDevice(t *testing.T) {
	for text, want := range map[string]string{"cpu": "cpu", "auto": "auto", "cuda": "cuda:0", "cuda:0": "cuda:0", "cuda:12": "cuda:12"} {
		d, err := ParseDevice(text)
		expect.True(t, err == nil, "%q: %v", text, err)
		expect.Equal(t, want, d.String(), text)
	}
	for _, text := range []string{"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:+1", "cuda:01", "cuda:1:2", "cuda0", "CUDA", "cpu:0", "cuda:128", " cuda"} {
		if d, err := ParseDevice(text); err == nil {
			t.Errorf("%q: got %v, want an error", text, d)
		}
	}
}

// withDriver pretends that a driver is loaded, or not.
func withDriver(t *testing.T, there bool) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "driver")
	if there {
		err := os.WriteFile(file, nil, 0o600)
		expect.Require(t, err == nil, "%v", err)
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
		err := os.WriteFile(filepath.Join(folder, name), []byte(data), 0o600)
		expect.Require(t, err == nil, "%v", err)
	}
	t.Setenv("RLTRAIN_LIB", folder)
}

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
			for _, part := range test.want {
				expect.True(t, strings.Contains(err.Error(), part), "got %v, want %q in it", err, part)
			}
			expect.Same(t, test.name == "no driver", errors.Is(err, ErrNoDriver), "%v is ErrNoDriver", err)
		})
	}
}

// TestAutoFallsBackToCPU: auto selects the CPU without opening a library, which would fail here.
func TestAutoFallsBackToCPU(t *testing.T) {
	for _, test := range []struct {
		cuda   string
		driver bool
	}{{"", false}, {"", true}, {"anything", false}} {
		coreIn(t, test.cuda)
		withDriver(t, test.driver)
		got, err := Device{auto: true}.resolve()
		expect.True(t, err == nil && got == (Device{}),
			"library %q, driver %v: got %v, %v, want the CPU", test.cuda, test.driver, got, err)
	}
}

// TestCUDALibraryOpens opens the library built by make cuda, and a GPU if there is one.
func TestCUDALibraryOpens(t *testing.T) {
	path, err := findCUDA()
	if err != nil {
		t.Skip(err)
	}
	err = Open(0)
	expect.Require(t, err == nil, "%v", err)
	err = openCUDA(path)
	expect.Require(t, err == nil, "%v", err)
	real := hasDriver()
	withDriver(t, true)
	_, err = Device{cuda: true}.resolve()
	expect.True(t, !real || err == nil, "%v", err)
	if real && err == nil {
		m, err := Device{cuda: true}.memory()
		if err != nil || m.Allocated < 0 || m.Peak < m.Allocated || m.Reserved < m.Allocated || m.Free > m.Total || m.Total < 1<<28 {
			t.Errorf("memory: got %+v, %v", m, err)
		}
	}
	if !real && (err == nil || !strings.Contains(err.Error(), "needs a driver")) {
		t.Errorf("without a driver: got %v, want an error that says what it needs", err)
	}
}
