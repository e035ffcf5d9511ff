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

// Kernels says which instruction set the CPU's kernels use, and how fast those that run here are.
type Kernels struct {
	Set    string        `json:"set"`
	Speeds []KernelSpeed `json:"speeds"`
}

// KernelSpeed is how fast an instruction set multiplies: 1e9 operations a second of one thread.
type KernelSpeed struct {
	Set  string  `json:"set"`
	F32  float64 `json:"f32"`
	BF16 float64 `json:"bf16"` // with weights of bfloat16
}

// kernelsVariable names the set to use, instead of the fastest.
const kernelsVariable = "RLTRAIN_KERNELS"

// chosenKernels is set once, by open, and by UseKernels.
var chosenKernels Kernels

// CPUKernels opens the core and says what its kernels use.
func CPUKernels() (Kernels, error) {
	err := Open(0)
	return chosenKernels, err
}

// UseKernels makes the core compute with an instruction set that an earlier process computed with, so that results
// are the same to the bit. RLTRAIN_KERNELS stands before it. It has to come before there are models. Where the set
// does not run on this processor, that of CPUKernels stays.
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

// chooseKernels takes the set that RLTRAIN_KERNELS names, or the fastest. Speeds are measured once for a type of
// processor and kept in the user's cache, so that each process on a machine chooses the same; nothing else depends
// on the file, which may be missing.
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

// speeds are of the sets that run here, in the core's order.
type speeds []KernelSpeed

func (s speeds) names() (names []string) {
	for _, set := range s {
		names = append(names, set.Set)
	}
	return names
}

// kernelSets lists the sets that run here, without those that are for tests alone where they are measured.
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

// speedsFor are the speeds that the file at path has for a processor, else those that measure finds, which it then
// keeps there. Where the file cannot be read or written, they are measured each time.
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
		_ = files.SaveJSON(path, kept) // a cache that cannot be written is measured again
	}
	return found
}

// fastest is the set that multiplies with weights of bfloat16 fastest, of those that are fast with float32; of sets
// that are nearly equal the widest, so that chance decides nothing. "" where there is none.
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

// processor is the type of this machine's: its maker, name and numbers.
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
