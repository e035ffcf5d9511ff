package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// coreTests are the Go packages that try what the C++ tests do not notice.
var coreTests = []string{"torch", "torch/transformers", "rl/policy"}

// nativeTests is the folder of the C++ tests.
const nativeTests = "csrc/tests"

// coreHeader comes first in each file with a fault. The others stay unchanged, so they need not be compiled again. It chooses
// faults as switchText does.
const coreHeader = `#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

[[maybe_unused]] static const int rlt_chosen = std::getenv("RLTRAIN_MUTANT") ? std::atoi(std::getenv("RLTRAIN_MUTANT")) : 0;

[[maybe_unused]] __attribute__((cold, noinline)) static void rlt_reached(int id) {
  static std::atomic<int> times[100];
  static std::atomic<int64_t> last[100];
  const int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
  if (++times[id] > 2000 && now - last[id] < 50000) return;
  last[id] = now;
  char text[32];
  std::snprintf(text, sizeof text, "@mutant %d@\n", id);
  if (write(1, text, std::strlen(text)) < 0) std::abort();
}

[[maybe_unused]] static inline bool rlt_mutant(int id) {
  if (__builtin_expect(rlt_chosen < 0, 0)) rlt_reached(id);
  return rlt_chosen == id;
}
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
	c := coreRun{folder: filepath.Join(work, "build"), s: sampler{work: work}, tests: map[string][]function{}}
	library := filepath.Join(c.folder, "lib", "librltrain.so")
	if err := errors.Join(os.Setenv("RLTRAIN_LIB", library), os.Setenv("GOMP_SPINCOUNT", "10000")); err != nil {
		return err
	}
	var tested []listed
	for _, folder := range coreTests {
		tested = append(tested, listed{folder: folder})
	}
	if c.binaries, err = c.s.build(work, tested, nil); err != nil {
		return err
	}
	c.binaries[nativeTests] = filepath.Join(c.folder, "core_tests")
	results := sampleResults{kept: map[string]verdict{}}
	var mutants []mutant
	var lock sync.Mutex
	err = each(faults, func(i int, r replacement) error {
		v := verdict{mutant: r.mutant, Equivalent: r.reason}
		v.Operator, v.pkg = "core", filepath.Dir(r.File)
		if r.reason == "" {
			if v.Noticed, err = c.try(i + 1); err != nil {
				return err
			}
		}
		lock.Lock()
		defer lock.Unlock()
		fmt.Println(v)
		mutants, results.kept[r.id()] = append(mutants, v.mutant), v
		return nil
	})
	if err != nil {
		return err
	}
	return results.finish(mutants, out, "core")
}

// writeCore copies the core, with all faults in it, and notes their lines.
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
	originals, changed := maps.Clone(texts), map[string]bool{}
	for i, r := range faults {
		if n := strings.Count(texts[r.File], r.Before); n != 1 {
			return fmt.Errorf("core.txt: %s has %q %d times", r.File, r.Before, n)
		}
		before, _, _ := strings.Cut(originals[r.File], r.Before)
		faults[i].Line = 1 + strings.Count(before, "\n")
		chosen := fmt.Sprintf("rlt_mutant(%d)", i+1)
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
	libtorch, err := exec.Command("go", "run", "./scripts/setup", "libtorch").Output()
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
	s        sampler
	lock     sync.Mutex
	tests    map[string][]function // by folder
	failed   error                 // of tests without a fault
}

// try runs the tests that reach a fault, the C++ ones and the quickest first, and returns the one that notices it; "" if
// none does.
func (c *coreRun) try(id int) (string, error) {
	for _, folder := range append([]string{nativeTests}, coreTests...) {
		tests, err := c.reaching(folder, id)
		if err != nil {
			return "", err
		}
		for _, group := range inGroups(tests) {
			if by := notices(id, group, c.binaries[folder]); by != "" {
				return by, nil
			}
		}
	}
	return "", nil
}

// reaching returns the tests of a folder that reach a fault. The first call runs them all without a fault.
func (c *coreRun) reaching(folder string, id int) ([]function, error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.tests[folder] == nil && c.failed == nil {
		record := c.s.reach
		if folder == nativeTests {
			record = reachNative
		}
		c.tests[folder], c.failed = c.s.recorded(folder, record, c.binaries[folder], os.Getenv("RLTRAIN_LIB"))
	}
	if c.failed != nil {
		return nil, c.failed
	}
	return slices.DeleteFunc(slices.Clone(c.tests[folder]), func(f function) bool { return !slices.Contains(f.Reached, id) }), nil
}

var nativeLine = regexp.MustCompile(`^(?:ok  |FAIL) (\S+) \((\d+\.\d+) s\)`)

// reachNative runs the C++ tests. The mutants that each reaches stand before its line in the output.
func reachNative(folder, path string) ([]function, error) {
	fmt.Println("running the C++ tests without a fault")
	out, err := execute(20*time.Minute, ".", path, []string{"RLTRAIN_MUTANT=-1"})
	if err != nil {
		return nil, fmt.Errorf("the C++ tests fail without a fault: %w\n%s", err, reached.ReplaceAllString(out, ""))
	}
	var tests []function
	seen := map[int]bool{}
	for line := range strings.Lines(out) {
		for _, found := range reached.FindAllStringSubmatch(line, -1) {
			id, _ := strconv.Atoi(found[1])
			seen[id] = true
		}
		if ended := nativeLine.FindStringSubmatch(reached.ReplaceAllString(line, "")); ended != nil {
			seconds, _ := strconv.ParseFloat(ended[2], 64)
			tests = append(tests, function{folder, ended[1], seconds, slices.Sorted(maps.Keys(seen))})
			clear(seen)
		}
	}
	return tests, nil
}
