package torch

// #include <stdlib.h>
// #include "loader.h"
import "C"

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/torch/hub"
)

// Kernels names the instruction set that the CPU kernels use, and the speed of those that run here.
type Kernels struct {
	Set    string        `json:"set"`
	Speeds []KernelSpeed `json:"speeds"`
}

// KernelSpeed is the multiplication speed of an instruction set: 1e9 operations per second of one thread.
type KernelSpeed struct {
	Set  string  `json:"set"`
	F32  float64 `json:"f32"`
	BF16 float64 `json:"bf16"` // with weights of bfloat16
}

// kernelsVariable names the instruction set to use instead of the fastest.
const kernelsVariable = "RLTRAIN_KERNELS"

// chosenKernels is set once, by open, and by UseKernels.
var chosenKernels Kernels

// CPUKernels opens the core and returns what its kernels use.
func CPUKernels() (Kernels, error) {
	err := Open(0)
	return chosenKernels, err
}

// UseKernels makes the core use the instruction set of an earlier process, so that results are bit-identical.
// RLTRAIN_KERNELS overrides it. Call it before creating models. If this processor lacks the set, that of CPUKernels
// stays.
func UseKernels(set string) error {
	if err := Open(0); err != nil {
		return err
	}
	runs := slices.ContainsFunc(chosenKernels.Speeds, func(s KernelSpeed) bool { return s.Set == set })
	if os.Getenv(kernelsVariable) != "" || set == chosenKernels.Set || !runs {
		return nil
	}
	return useKernels(set)
}

func useKernels(set string) error {
	name := C.CString(set)
	defer C.free(unsafe.Pointer(name))
	if err := nativeError("use_kernels", C.rlt_use_kernels(name)); err != nil {
		return err
	}
	chosenKernels.Set = set
	return nil
}

// chooseKernels uses the set named by RLTRAIN_KERNELS, or the fastest. Speeds are measured once per processor type and
// saved in the user's cache, so that every process on a machine chooses the same set. Nothing else depends on that
// file, which may be missing.
func chooseKernels() error {
	running := kernelSets(false)
	path := ""
	if cache, err := hub.CacheDir(); err == nil {
		path = filepath.Join(cache, "kernels.json")
	}
	chosenKernels.Speeds = speedsFor(processor()+": "+strings.Join(running.names(), " "), path, func() []KernelSpeed { return kernelSets(true) })
	if set := os.Getenv(kernelsVariable); set != "" {
		if err := useKernels(set); err != nil {
			return fmt.Errorf("%s: %w", kernelsVariable, err)
		}
		return nil
	}
	return useKernels(fastest(chosenKernels.Speeds))
}

// speeds measures the sets that run here, in the core's order.
type speeds []KernelSpeed

func (s speeds) names() (names []string) {
	for _, set := range s {
		names = append(names, set.Set)
	}
	return names
}

// kernelSets lists the sets that run here; for measuring, without those used only in tests.
func kernelSets(measure bool) (found speeds) {
	var sets [16]C.rlt_kernel_set
	measured := C.int32_t(0)
	if measure {
		measured = 1
	}
	n := C.rlt_kernel_sets(&sets[0], C.int32_t(len(sets)), measured)
	for _, s := range sets[:n] {
		if s.runs == 0 || measure && s.f32 == 0 {
			continue
		}
		found = append(found, KernelSpeed{Set: C.GoString(s.name), F32: float64(s.f32), BF16: float64(s.bf16)})
	}
	return found
}

// speedsFor returns the speeds in the file at path for a processor, else measures and saves them. If the file cannot be
// read or written, they are measured each time.
func speedsFor(processor, path string, measure func() []KernelSpeed) []KernelSpeed {
	kept := map[string][]KernelSpeed{}
	if path != "" {
		if err := files.LoadJSON(path, &kept); err != nil || kept == nil {
			kept = map[string][]KernelSpeed{}
		}
	}
	if found := kept[processor]; fastest(found) != "" {
		return found
	}
	found := measure()
	kept[processor] = found
	if path != "" && os.MkdirAll(filepath.Dir(path), 0o755) == nil {
		_ = files.SaveJSON(path, kept) // if the cache is not writable, measure again next time
	}
	return found
}

// fastest returns the set that is fastest with bfloat16 weights, among those that are fast with float32; of nearly
// equal sets the widest, so that noise decides nothing. "" if there is none.
func fastest(sets []KernelSpeed) string {
	const nearly = 0.85
	f32 := func(s KernelSpeed) float64 { return s.F32 }
	bf16 := func(s KernelSpeed) float64 { return s.BF16 }
	for _, speed := range []func(KernelSpeed) float64{f32, bf16} {
		if len(sets) == 0 {
			return ""
		}
		best := speed(slices.MaxFunc(sets, func(a, b KernelSpeed) int { return cmp.Compare(speed(a), speed(b)) }))
		sets = slices.DeleteFunc(slices.Clone(sets), func(s KernelSpeed) bool { return speed(s) < nearly*best })
	}
	return sets[len(sets)-1].Set
}

// processor is the type of this machine's processor: vendor, name and numbers.
func processor() string {
	file, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return "unknown processor"
	}
	defer file.Close()
	var parts []string
	for lines := bufio.NewScanner(file); lines.Scan() && lines.Text() != ""; {
		name, value, _ := strings.Cut(lines.Text(), ":")
		switch strings.TrimSpace(name) {
		case "vendor_id", "cpu family", "model", "model name", "stepping":
			parts = append(parts, strings.TrimSpace(value))
		}
	}
	return strings.Join(parts, " ")
}
