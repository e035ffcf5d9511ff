// Command mutants puts faults into the code, one line at a time, and runs the test that must catch each. Run it in the root
// of the repository; arguments select faults by a part of their file's or test's name. It exits with status 1 if a fault is
// not caught, no longer fits the code, or does not compile.
//
// With -sample N it instead takes N random faults of ten kinds from the learning code and runs all tests near them. With -in
// FOLDERS it takes them from there. With -core it tries a list of faults of the native core.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// parallel is the number of faults tried concurrently: while one links, another computes.
const parallel = 4

// timeout stops a test that takes too long, which proves nothing about the fault.
const timeout = 5 * time.Minute

func main() {
	n := flag.Int("sample", 0, "number of random faults to try instead of the list")
	seed := flag.Uint64("seed", 1, "random seed of the sample")
	native := flag.Bool("core", false, "try the list of faults of the native core")
	in := flag.String("in", "", "folders, separated by commas, to take the sample from instead of the learning code; their own tests run")
	out := flag.String("out", "", "file for the results")
	flag.Parse()
	part := "learning"
	if *in != "" {
		part, learning, nearby = *in, strings.Split(*in, ","), strings.Split(*in, ",")
	}
	var err error
	switch {
	case *native:
		err = core(*out)
	case *n > 0:
		err = sample(*n, *seed, *out, part)
	default:
		err = run(flag.Args())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(chosen []string) error {
	list := filepath.Join("scripts", "mutants", "list.txt")
	text, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	faults, err := parse(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", list, err)
	}
	faults = slices.DeleteFunc(faults, func(f fault) bool {
		return len(chosen) > 0 && !slices.ContainsFunc(chosen, func(part string) bool { return strings.Contains(f.file+" "+f.test, part) })
	})
	work, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := healthy(faults); err != nil {
		return err
	}

	verdicts := make([]error, len(faults))
	var wait sync.WaitGroup
	next := make(chan int)
	for range parallel {
		wait.Go(func() {
			for i := range next {
				verdicts[i] = faults[i].try(filepath.Join(work, fmt.Sprint(i)))
				verdict := "noticed"
				if verdicts[i] != nil {
					verdict = "FAILED: " + verdicts[i].Error()
				}
				fmt.Printf("%s:%d (%s, %s): %s\n", faults[i].file, faults[i].line, faults[i].pkg, faults[i].test, verdict)
			}
		})
	}
	for i := range faults {
		next <- i
	}
	close(next)
	wait.Wait()
	failed := 0
	for _, verdict := range verdicts {
		if verdict != nil {
			failed++
		}
	}
	fmt.Printf("%d of %d faults are noticed\n", len(faults)-failed, len(faults))
	if failed > 0 {
		return fmt.Errorf("%d faults go unnoticed or could not be tried", failed)
	}
	return nil
}

// healthy checks that the tests pass without a fault.
func healthy(faults []fault) error {
	tests := map[string][]string{} // names of test functions, by package
	for _, f := range faults {
		name, _, _ := strings.Cut(f.test, "/")
		if !slices.Contains(tests[f.pkg], name) {
			tests[f.pkg] = append(tests[f.pkg], name)
		}
	}
	for pkg, names := range tests {
		output, err := test(4*timeout, pkg, "^("+strings.Join(names, "|")+")$")
		if err != nil {
			return fmt.Errorf("the tests of %s fail without a fault: %w\n%s", pkg, err, output)
		}
	}
	return nil
}

// test runs tests of a package, within a time limit.
func test(limit time.Duration, pkg, pattern string, more ...string) (output string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	// Linking dominates, and is faster without debug information. limit stops the test instead of go test's timeout, whose
	// panic would look like a caught fault.
	args := append([]string{"test", "-vet=off", "-ldflags=-s -w", "-timeout=0", "-failfast", "-run", pattern}, more...)
	command := exec.CommandContext(ctx, "go", append(args, "./"+pkg)...)
	// Kills the process group, because a test that never ends would outlive go.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	out, err := command.CombinedOutput()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return string(out), err
}

// try applies a fault, and returns an error unless a test catches it.
func (f fault) try(work string) error {
	changed, err := f.apply()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(work, 0o755); err != nil {
		return err
	}
	file, err := filepath.Abs(f.file)
	if err != nil {
		return err
	}
	// The source tree stays unchanged: an overlay makes the compiler read another file in place of this one.
	copied, overlay := filepath.Join(work, filepath.Base(f.file)), filepath.Join(work, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {file: copied}})
	if err != nil {
		return err
	}
	if err := errors.Join(os.WriteFile(copied, []byte(changed), 0o644), os.WriteFile(overlay, replace, 0o644)); err != nil {
		return err
	}
	parts := strings.Split(f.test, "/")
	for i, part := range parts {
		parts[i] = "^" + part + "$"
	}
	output, err := test(timeout, f.pkg, strings.Join(parts, "/"), "-overlay", overlay)
	switch {
	case err == nil && strings.Contains(output, "no tests to run"):
		return errors.New("there is no such test")
	case err == nil:
		return errors.New("unnoticed")
	case strings.Contains(output, "[build failed]") || strings.Contains(output, "[setup failed]"):
		return errors.New("does not compile:\n" + output)
	case errors.Is(err, context.DeadlineExceeded):
		return errors.New("not finished in time")
	case !strings.Contains(output, "--- FAIL") && !strings.Contains(output, "panic:"):
		return errors.New("the test did not run:\n" + output)
	}
	return nil
}

// apply returns the file's text with the fault in it.
func (f fault) apply() (string, error) {
	text, err := os.ReadFile(f.file)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), f.before); n != 1 {
		return "", fmt.Errorf("does not fit: the file has %q %d times", f.before, n)
	}
	return strings.Replace(string(text), f.before, f.after, 1), nil
}
