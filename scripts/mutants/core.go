package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// coreTests are the Go packages that try what the C++ tests do not notice.
var coreTests = []string{"torch", "torch/transformers", "rl/policy"}

// coreHeader comes first in each file with a fault. The others stay as they are, which a compiler cache knows.
const coreHeader = `#include <cstdlib>
[[maybe_unused]] static const int rlt_mutant = std::getenv("RLTRAIN_MUTANT") ? std::atoi(std::getenv("RLTRAIN_MUTANT")) : 0;
`

// core tries the faults of the native core: all are compiled into one library, which is built in build/_mutants.
func core(out string) error {
	work, err := filepath.Abs(filepath.Join("build", "_mutants", "core"))
	if err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join("scripts", "mutants", "core.txt"))
	if err != nil {
		return err
	}
	faults := replacements(string(text))
	if err := writeCore(work, faults); err != nil {
		return err
	}
	if err := buildCore(work); err != nil {
		return err
	}
	s := sampler{work: work}
	for _, folder := range coreTests {
		s.tested = append(s.tested, listed{folder: folder})
	}
	binaries, err := s.build(work, s.tested, nil)
	if err != nil {
		return err
	}
	tests := coreRun{filepath.Join(work, "build"), binaries}
	start := time.Now()
	if by := tests.try(0, 10*time.Minute); by != "" {
		return fmt.Errorf("the tests fail without a fault: %s", by)
	}
	limit := 20*time.Second + 3*time.Since(start)
	results := sampleResults{kept: map[string]verdict{}}
	var mutants []mutant
	var lock sync.Mutex
	err = each(faults, func(i int, r replacement) error {
		v := verdict{mutant: r.mutant, Equivalent: r.reason}
		v.Operator, v.pkg = "core", filepath.Dir(r.File)
		if r.reason == "" {
			v.Noticed = tests.try(i+1, limit)
		}
		lock.Lock()
		defer lock.Unlock()
		fmt.Println(v)
		mutants, results.kept[r.name()] = append(mutants, v.mutant), v
		return nil
	})
	if err != nil {
		return err
	}
	return results.finish(mutants, out, "core")
}

// writeCore copies the core, with all faults in it.
func writeCore(work string, faults []replacement) error {
	texts := map[string]string{}
	read := func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		texts[path] = string(text)
		return err
	}
	for _, folder := range []string{"csrc", "cmake", "CMakeLists.txt"} {
		if err := filepath.WalkDir(folder, read); err != nil {
			return err
		}
	}
	changed := map[string]bool{}
	for i, r := range faults {
		if n := strings.Count(texts[r.File], r.Before); n != 1 {
			return fmt.Errorf("core.txt: %s has %q %d times", r.File, r.Before, n)
		}
		chosen := fmt.Sprintf("rlt_mutant == %d", i+1)
		both := fmt.Sprintf("(%s ? (%s) : (%s))", chosen, r.After, r.Before)
		if strings.HasSuffix(r.Before, ";") {
			both = fmt.Sprintf("{ if (%s) { %s } else { %s } }", chosen, r.After, r.Before)
		}
		texts[r.File] = strings.Replace(texts[r.File], r.Before, both, 1)
		changed[r.File] = true
	}
	for path, text := range texts {
		// Kernels are headers inside a namespace, which each set of instructions includes.
		if changed[path] && strings.HasSuffix(path, ".cc") || strings.Contains(text, `#include "kernels/set_impl.h"`) {
			text = coreHeader + text
		}
		to := filepath.Join(work, path)
		if old, err := os.ReadFile(to); err == nil && string(old) == text {
			continue // it need not be compiled again
		}
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, []byte(text), 0o644)); err != nil {
			return err
		}
	}
	return nil
}

func buildCore(work string) error {
	libtorch, err := exec.Command("python3", "scripts/setup/libtorch.py").Output()
	if err != nil {
		return fmt.Errorf("finding libtorch: %w", err)
	}
	folder := filepath.Join(work, "build")
	configure := []string{"-S", work, "-B", folder, "-DLIBTORCH_DIR=" + strings.TrimSpace(string(libtorch))}
	if ccache, err := exec.LookPath("ccache"); err == nil {
		configure = append(configure, "-DCMAKE_CXX_COMPILER_LAUNCHER="+ccache)
	}
	for _, args := range [][]string{append([]string{"cmake"}, configure...), {"cmake", "--build", folder, "--target", "core_tests", "rltrain", "-j2"}} {
		command := exec.Command("nice", append([]string{"-n", "3"}, args...)...)
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("building the core: %w\n%s", err, out)
		}
	}
	return nil
}

// coreRun runs the tests of the core.
type coreRun struct {
	folder   string
	binaries map[string]string
}

// try runs the tests with a fault and returns the one that notices it; "" if none does.
func (c coreRun) try(id int, limit time.Duration) string {
	if by := c.native(id, limit); by != "" {
		return by
	}
	for _, folder := range coreTests {
		env := []string{"RLTRAIN_MUTANT=" + strconv.Itoa(id), "RLTRAIN_LIB=" + filepath.Join(c.folder, "lib", "librltrain.so")}
		out, err := execute(limit, folder, c.binaries[folder], env, "-test.failfast")
		if failed := failure.FindStringSubmatch(out); failed != nil {
			return folder + " " + failed[1]
		} else if err != nil {
			return folder + ": " + err.Error()
		}
	}
	return ""
}

// native runs the C++ tests up to the first failure.
func (c coreRun) native(id int, limit time.Duration) string {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	command := exec.CommandContext(ctx, "nice", "-n", "3", filepath.Join(c.folder, "core_tests"))
	command.Env = append(os.Environ(), "RLTRAIN_MUTANT="+strconv.Itoa(id), "GOMP_SPINCOUNT=10000")
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		return err.Error()
	}
	by := ""
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if name, failed := strings.CutPrefix(lines.Text(), "FAIL "); failed && by == "" {
			by, _, _ = strings.Cut(name, " ")
			cancel()
		}
	}
	if err := command.Wait(); err != nil && by == "" {
		by = err.Error()
	}
	return by
}
