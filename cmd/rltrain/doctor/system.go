package doctor

// #include <gnu/libc-version.h>
import "C"

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/cpu"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/internal/libtorch"
	"github.com/rltrain/rltrain/internal/transfer"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/hub"
)

// errSystem is the error of a machine where rltrain cannot compute.
var errSystem = errors.New("rltrain cannot compute here; doctor says what to do")

const (
	oldestDriver = 580 // for CUDA 13.0
	littleDisk   = 2e9 // bytes; libtorch and a small model take 0.6 GB
)

// describeSystem checks what rltrain needs of the machine, without loading libtorch. After each fault comes its fix.
func describeSystem(s *shared.Sheet) error {
	s.Head("System")
	s.Row("rltrain", "%s on %s/%s, glibc %s", shared.Version, runtime.GOOS, runtime.GOARCH, C.GoString(C.gnu_get_libc_version()))
	s.Row("cpu", "%s, %d cores: %s", processor(), runtime.NumCPU(), features())
	cache, err := hub.CacheDir()
	if err != nil {
		fault(s, "cache", err.Error(), "set RLTRAIN_CACHE to a folder")
		return errSystem
	}
	broken := describeCore(s)
	broken = describeCache(s, cache) || broken
	describeDriver(s, cache)
	if broken {
		return errSystem
	}
	return nil
}

func fault(s *shared.Sheet, name, what, fix string) {
	s.Row(name, "FAULT: %s", what)
	s.Row("", "fix: %s", fix)
}

// describeCore finds the native core and libtorch.
func describeCore(s *shared.Sheet) (broken bool) {
	core, err := torch.Library()
	if err != nil {
		fault(s, "native core", err.Error(), "install rltrain again (pip install --force-reinstall rltrain), or run make in its sources")
		return true
	}
	s.Row("native core", "%s, interface %d", core, torch.ABIVersion)
	found, err := torch.FindLibtorch()
	var missing *libtorch.Missing
	switch {
	case errors.As(err, &missing):
		fault(s, "libtorch", err.Error(), "rltrain setup")
	case err != nil:
		fault(s, "libtorch", err.Error(), "unset LIBTORCH, then: rltrain setup")
	default:
		s.Row("libtorch", "%s in %s (from %s)", libtorch.Version, found.Dir, found.From)
	}
	return err != nil
}

// describeCache checks that the cache can be written and has room.
func describeCache(s *shared.Sheet, cache string) (broken bool) {
	if err := os.MkdirAll(cache, 0o777); err == nil {
		file, err := os.CreateTemp(cache, ".doctor-*")
		if err == nil {
			err = errors.Join(file.Close(), os.Remove(file.Name()))
		}
		if err != nil {
			s.Row("cache", "%s, read only: %v", cache, err)
			s.Row("", "to download models: set RLTRAIN_CACHE to a folder that you can write")
			return false // what is in it can be used
		}
	} else {
		fault(s, "cache", err.Error(), "set RLTRAIN_CACHE to a folder that you can write")
		return true
	}
	free, err := transfer.Free(cache)
	if err != nil {
		fault(s, "cache", fmt.Sprintf("%s: %v", cache, err), "set RLTRAIN_CACHE to a folder on another disk")
		return true
	}
	s.Row("cache", "%s, %.1f GB free", cache, float64(free)/1e9)
	if free < littleDisk {
		s.Row("", "fix: free some space, or set RLTRAIN_CACHE to a folder on another disk")
	}
	return false
}

// describeDriver finds the driver of an NVIDIA GPU. Most machines have none, which is no fault.
func describeDriver(s *shared.Sheet, cache string) {
	text, err := os.ReadFile("/proc/driver/nvidia/version")
	if err != nil {
		s.Row("gpu driver", "none: rltrain uses the CPU; for an NVIDIA GPU, install driver %d or newer", oldestDriver)
		return
	}
	name := driverVersion(string(text))
	major, _ := strconv.Atoi(strings.SplitN(name, ".", 2)[0])
	if major < oldestDriver {
		fault(s, "gpu driver", fmt.Sprintf("%q is older than %d", name, oldestDriver), fmt.Sprintf("install driver %d or newer; until then, --device cpu", oldestDriver))
		return
	}
	s.Row("gpu driver", "%s", name)
	found, err := torch.FindLibtorch()
	if err != nil {
		return
	}
	if dir, err := libtorch.FindCUDA(found.Dir, cache); err != nil {
		fault(s, "gpu libraries", err.Error(), "rltrain setup --device cuda")
	} else {
		s.Row("gpu libraries", "%s", filepath.Join(dir, "lib"))
	}
}

var driverPattern = regexp.MustCompile(`\s(\d+(?:\.\d+)+)\s`)

// driverVersion is the version in /proc/driver/nvidia/version; "" if it is not there.
func driverVersion(text string) string {
	if m := driverPattern.FindStringSubmatch(text); m != nil {
		return m[1]
	}
	return ""
}

var modelPattern = regexp.MustCompile(`(?m)^model name\s*:\s*(.+)$`)

// hasArmBF16 reports whether an arm64 processor has the instructions for products of bfloat16.
func hasArmBF16() bool {
	if runtime.GOARCH != "arm64" {
		return false
	}
	text, _ := os.ReadFile("/proc/cpuinfo")
	return armBF16.Match(text)
}

var armBF16 = regexp.MustCompile(`(?m)^Features\s*:.*\sbf16(\s|$)`)

// processor is the CPU's name.
func processor() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	if m := modelPattern.FindSubmatch(text); m != nil {
		return string(m[1])
	}
	return "unknown processor"
}

// features are the instructions that the kernels use, and what it means if they are missing.
func features() string {
	var have []string
	for _, f := range []struct {
		name string
		has  bool
	}{
		{"AVX2", cpu.X86.HasAVX2 && cpu.X86.HasFMA}, {"AVX-512", cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512DQ},
		{"AVX512-BF16", cpu.X86.HasAVX512BF16}, {"AMX-BF16", cpu.X86.HasAMXBF16}, {"NEON", cpu.ARM64.HasASIMD}, {"BF16", hasArmBF16()},
	} {
		if f.has {
			have = append(have, f.name)
		}
	}
	if have == nil {
		return "no AVX2, so that the slowest kernels are used"
	}
	return strings.Join(have, ", ")
}
