package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
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
	"syscall"
	"time"

	"github.com/rltrain/rltrain/internal/files"
)

// function is a top-level test.
type function struct {
	Folder, Name string
	Seconds      float64
	Reached      []int // numbers of the mutants it reaches
}

// suite are all tests, and a sum over their binaries.
type suite struct {
	functions []function
	binaries  map[string]string
	sum       string
}

// record runs each test alone, and notes which mutants it reaches. It keeps what it finds as long as the binary of the
// package is the same.
func (s *sampler) record(binaries map[string]string) (*suite, error) {
	all := &suite{binaries: binaries}
	for _, folder := range slices.Sorted(maps.Keys(binaries)) {
		path := binaries[folder]
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		sum := fmt.Sprintf("%x", sha256.Sum256(data))[:16]
		all.sum += sum[:4]
		var tests []function
		known := filepath.Join(s.work, "reached-"+sum+".json")
		err = files.LoadJSON(known, &tests)
		if errors.Is(err, fs.ErrNotExist) {
			if tests, err = s.reach(folder, path); err == nil {
				err = files.SaveJSON(known, tests)
			}
		}
		if err != nil {
			return nil, err
		}
		all.functions = append(all.functions, tests...)
	}
	return all, nil
}

// reach runs the tests of a binary, one at a time.
func (s *sampler) reach(folder, path string) ([]function, error) {
	out, err := execute(time.Minute, folder, path, nil, "-test.list", "^(Test|Example|Fuzz)")
	if err != nil {
		return nil, fmt.Errorf("listing the tests of %s: %w\n%s", folder, err, out)
	}
	var tests []function
	for name := range strings.FieldsSeq(out) {
		tests = append(tests, function{Folder: folder, Name: name})
	}
	fmt.Printf("running %d tests of %s without a fault\n", len(tests), folder)
	var lock sync.Mutex
	err = each(tests, func(i int, f function) error {
		dir, err := os.MkdirTemp("", "reached")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		start := time.Now()
		if out, err := execute(10*time.Minute, folder, path, []string{"RLTRAIN_MUTANTS_REACHED=" + dir}, "-test.run", "^"+f.Name+"$"); err != nil {
			return fmt.Errorf("%s of %s fails without a fault: %w\n%s", f.Name, folder, err, out)
		}
		f.Seconds = time.Since(start).Seconds()
		reached, err := os.ReadDir(dir)
		for _, file := range reached {
			id, _ := strconv.Atoi(file.Name())
			f.Reached = append(f.Reached, id)
		}
		lock.Lock()
		defer lock.Unlock()
		tests[i] = f
		return err
	})
	return tests, err
}

// try runs the tests that reach a mutant, the nearest and quickest first, and returns the one that notices it; "" if
// none does.
func (s *sampler) try(id int, m mutant, all *suite) (string, error) {
	binaries, reaches := all.binaries, func(f function) bool { return slices.Contains(f.Reached, id) }
	if m.schema == "" { // tests of its package and of the trainer, in a build of its own
		near := slices.DeleteFunc(slices.Clone(s.tested), func(p listed) bool { return p.folder != m.pkg && p.folder != "rl/train" })
		text, err := os.ReadFile(m.File)
		if err != nil {
			return "", err
		}
		path, err := filepath.Abs(m.File)
		if err != nil {
			return "", err
		}
		text = slices.Concat(text[:m.start], []byte(m.plain), text[m.end:])
		dir := filepath.Join(s.work, fmt.Sprint("alone-", id))
		defer os.RemoveAll(dir)
		if binaries, err = s.build(dir, near, map[string][]byte{path: text}); err != nil {
			return "", err
		}
		reaches = func(f function) bool { return binaries[f.Folder] != "" }
	}
	var groups [][]function
	folders := map[string][]function{}
	for _, f := range all.functions {
		if reaches(f) {
			folders[f.Folder] = append(folders[f.Folder], f)
		}
	}
	distance := func(folder string) int {
		return s.distance(s.tested[slices.IndexFunc(s.tested, func(p listed) bool { return p.folder == folder })], m.pkg)
	}
	for _, folder := range slices.SortedFunc(maps.Keys(folders), func(a, b string) int { return cmp.Or(cmp.Compare(distance(a), distance(b)), cmp.Compare(a, b)) }) {
		groups = append(groups, inGroups(folders[folder])...)
	}
	for _, group := range groups {
		var names []string
		var seconds float64
		for _, f := range group {
			names, seconds = append(names, f.Name), seconds+f.Seconds
		}
		limit := time.Duration((20 + 3*seconds) * float64(time.Second))
		out, err := execute(limit, group[0].Folder, binaries[group[0].Folder], []string{"RLTRAIN_MUTANT=" + strconv.Itoa(id)}, "-test.failfast", "-test.run", "^("+strings.Join(names, "|")+")$")
		if err == nil {
			continue
		}
		by := "a crash"
		if failed := failure.FindStringSubmatch(out); failed != nil {
			by = failed[1]
		} else if errors.Is(err, context.DeadlineExceeded) {
			by = "the time limit"
		}
		return group[0].Folder + " " + by, nil
	}
	return "", nil
}

var failure = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)

// inGroups divides tests of a package into those that take two seconds, and ten times as long each.
func inGroups(tests []function) [][]function {
	slices.SortStableFunc(tests, func(a, b function) int { return cmp.Compare(a.Seconds, b.Seconds) })
	var groups [][]function
	limit, sum := 2.0, 0.0
	for i, f := range tests {
		if i == 0 || sum+f.Seconds > limit {
			if i > 0 {
				limit *= 10
			}
			groups, sum = append(groups, nil), 0
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], f)
		sum += f.Seconds
	}
	return groups
}

// execute runs a test binary in its package's folder.
func execute(limit time.Duration, folder, path string, env []string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	command := exec.CommandContext(ctx, "nice", append([]string{path, "-test.timeout=0"}, args...)...)
	command.Dir, command.Env = folder, append(os.Environ(), env...)
	// A test that never ends may have children.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	err := command.Run()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return out.String(), err
}
