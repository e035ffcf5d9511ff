package torch

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

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
			err := os.WriteFile(path, []byte(step.content), 0o644)
			expect.Require(t, err == nil, "%v", err)
		}
		expect.Equal(t, want, speedsFor(step.processor, path, measure), fmt.Sprintf("%v:", step))
		expect.Same(t, step.measured, measured, "%v: measured %d times, want %d", step, measured, step.measured)
	}
	// The speeds cannot be saved: there is no folder, or it is a file.
	for _, path := range []string{"", filepath.Join(path, "in-a-file", "kernels.json")} {
		expect.Equal(t, want, speedsFor("c", path, measure), fmt.Sprintf("%q:", path))
	}
}
