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

// function is a test, or a part of a long one.
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

// has says whether a test, or a way to fail, is still there.
func (s suite) has(noticed string) bool {
	folder, name, _ := strings.Cut(noticed, " ")
	top, _, _ := strings.Cut(name, "/")
	return strings.Contains(name, " ") || folder == "scripts/form" || slices.ContainsFunc(s.functions, func(f function) bool {
		mine, _, _ := strings.Cut(f.Name, "/")
		return f.Folder == folder && mine == top
	})
}

// record runs the tests without a fault, and notes which mutants each reaches. It keeps what it finds as long as the
// binary of the package is the same.
func (s *sampler) record(binaries map[string]string) (*suite, error) {
	all := &suite{binaries: binaries}
	for _, folder := range slices.Sorted(maps.Keys(binaries)) {
		tests, err := s.recorded(folder, s.reach, binaries[folder])
		if err != nil {
			return nil, err
		}
		all.functions = append(all.functions, tests...)
		if all.sum, err = sum(all.sum, binaries[folder]); err != nil {
			return nil, err
		}
	}
	if !slices.ContainsFunc(all.functions, func(f function) bool { return len(f.Reached) > 0 }) {
		return nil, errors.New("no test reaches a fault")
	}
	return all, nil
}

// recorded returns what record found the last time that the files were the same.
func (s *sampler) recorded(folder string, record func(folder, path string) ([]function, error), read ...string) (tests []function, err error) {
	key := folder
	for _, path := range read {
		if key, err = sum(key, path); err != nil {
			return nil, err
		}
	}
	known := filepath.Join(s.work, "reached-"+key+".json")
	err = files.LoadJSON(known, &tests)
	if errors.Is(err, fs.ErrNotExist) {
		if tests, err = record(folder, read[0]); err == nil {
			err = files.SaveJSON(known, tests)
		}
	}
	return tests, err
}

// sum returns a sum over another one and a file.
func sum(before, path string) (string, error) {
	data, err := os.ReadFile(path)
	return fmt.Sprintf("%x", sha256.Sum256(append([]byte(before), data...)))[:16], err
}

// reach runs the tests of a binary. The mutants that they reach stand between their names in the output.
func (s *sampler) reach(folder, path string) ([]function, error) {
	fmt.Printf("running the tests of %s without a fault\n", folder)
	out, err := execute(20*time.Minute, folder, path, []string{"RLTRAIN_MUTANT=-1"}, "-test.timeout=0", "-test.v", "-test.run", "^(Test|Example|Fuzz)")
	if err != nil {
		return nil, fmt.Errorf("the tests of %s fail without a fault: %w\n%s", folder, err, out)
	}
	return parts(folder, out), nil
}

var (
	beginning = regexp.MustCompile(`^=== (?:RUN|NAME|CONT) +(\S+)`)
	ending    = regexp.MustCompile(`^ *--- PASS: (\S+) \((\d+\.\d+)s\)`)
	reached   = regexp.MustCompile(`@mutant (\d+)@`)
)

// long is the number of seconds above which the parts of a test are run alone.
const long = 3

// parts reads what tests reach from their output.
func parts(folder, out string) []function {
	current, seen, seconds := "", map[string]map[int]bool{}, map[string]float64{}
	for line := range strings.Lines(out) {
		for _, found := range reached.FindAllStringSubmatch(line, -1) {
			id, _ := strconv.Atoi(found[1])
			for name := current; ; name = name[:max(0, strings.LastIndex(name, "/"))] {
				if seen[name] == nil {
					seen[name] = map[int]bool{}
				}
				if seen[name][id] = true; !strings.Contains(name, "/") {
					break
				}
			}
		}
		line = reached.ReplaceAllString(line, "")
		if begun := beginning.FindStringSubmatch(line); begun != nil {
			current = begun[1]
		} else if ended := ending.FindStringSubmatch(line); ended != nil {
			seconds[ended[1]], _ = strconv.ParseFloat(ended[2], 64)
		}
	}
	var tests []function
	for _, name := range slices.Sorted(maps.Keys(seconds)) {
		top, _, sub := strings.Cut(name, "/")
		deep := strings.Count(name, "/") > 1
		split := seconds[top] > long && slices.ContainsFunc(slices.Collect(maps.Keys(seconds)), func(n string) bool { return strings.HasPrefix(n, top+"/") })
		if deep || sub != split {
			continue
		}
		f := function{Folder: folder, Name: name, Seconds: seconds[name]}
		for id := range seen[name] {
			f.Reached = append(f.Reached, id)
		}
		for id := range seen[""] { // before the first test
			f.Reached = append(f.Reached, id)
		}
		if sub { // and before the first part
			for id := range seen[top] {
				inPart := false
				for n := range seconds {
					inPart = inPart || strings.HasPrefix(n, top+"/") && seen[n][id]
				}
				if !inPart {
					f.Reached = append(f.Reached, id)
				}
			}
		}
		tests = append(tests, f)
	}
	return tests
}

// try runs the tests that reach a mutant, the nearest and quickest first, and returns the one that notices it; "" if
// none does.
func (s *sampler) try(id int, m mutant, all *suite) (string, error) {
	binaries, reaches := all.binaries, func(f function) bool { return slices.Contains(f.Reached, id) }
	if m.schema == "" {
		if by, err := s.form(m); by != "" || err != nil {
			return by, err
		}
		dir := filepath.Join(s.work, fmt.Sprint("alone-", id))
		defer os.RemoveAll(dir)
		text, path, err := m.applied()
		if err != nil {
			return "", err
		}
		near := slices.DeleteFunc(slices.Clone(s.tested), func(p listed) bool { return p.folder != m.pkg && p.folder != "rl/train" })
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
		if by := notices(id, group, binaries[group[0].Folder]); by != "" {
			return by, nil
		}
	}
	return "", nil
}

// notices runs tests with a mutant, and returns the one that fails; "" if none does.
func notices(id int, group []function, path string) string {
	var seconds float64
	for _, f := range group {
		seconds += f.Seconds
	}
	folder, args := group[0].Folder, []string{"-test.failfast", "-test.timeout=0", "-test.run", patternOf(group)}
	if folder == nativeTests {
		args = []string{""}
		for _, f := range group {
			args = append(args, f.Name)
		}
	}
	limit := time.Duration((20 + 3*seconds) * float64(time.Second))
	out, err := execute(limit, folder, path, []string{"RLTRAIN_MUTANT=" + strconv.Itoa(id)}, args...)
	if err == nil {
		return ""
	}
	by := "a crash"
	if failed := failure.FindStringSubmatch(out); failed != nil {
		by = failed[1]
	} else if errors.Is(err, context.DeadlineExceeded) {
		by = "the time limit"
	}
	return folder + " " + by
}

// applied returns the text of a mutant's file with the fault, and the file's absolute path.
func (m mutant) applied() (text []byte, path string, err error) {
	if text, err = os.ReadFile(m.File); err != nil {
		return nil, "", err
	}
	path, err = filepath.Abs(m.File)
	return slices.Concat(text[:m.start], []byte(m.plain), text[m.end:]), path, err
}

var copying sync.Mutex

// form runs the test that reads the source of what is saved, in a copy of the code.
func (s *sampler) form(m mutant) (string, error) {
	copying.Lock()
	defer copying.Unlock()
	copied := filepath.Join(s.work, "copy")
	if err := os.MkdirAll(copied, 0o755); err != nil {
		return "", err
	}
	if out, err := exec.Command("bash", "-c", `git ls-files -z '*.go' '*.c' '*.h' go.mod go.sum 'rl/*' 'envs/*' | tar c --null -T - | tar x -C "$0"`, copied).CombinedOutput(); err != nil {
		return "", fmt.Errorf("copying the code: %w\n%s", err, out)
	}
	text, _, err := m.applied()
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(copied, m.File), text, 0o644); err != nil {
		return "", err
	}
	const test = "TestEverythingStatefulIsSaved"
	command := exec.Command("nice", "-n", "3", "go", "test", "-count=1", "-run", test, "./scripts/form")
	command.Dir = copied
	out, err := command.CombinedOutput()
	if err != nil && !strings.Contains(string(out), "--- FAIL") {
		return "", fmt.Errorf("%s in the copy: %w\n%s", test, err, out)
	}
	if err != nil {
		return "scripts/form " + test, nil
	}
	return "", nil
}

var failure = regexp.MustCompile(`(?m)^(?:--- FAIL:|FAIL) (\S+)`)

// patternOf selects the tests of a group: parts of one test, or whole tests.
func patternOf(group []function) string {
	var tops, subs []string
	for _, f := range group {
		top, sub, _ := strings.Cut(f.Name, "/")
		tops, subs = append(tops, regexp.QuoteMeta(top)), append(subs, regexp.QuoteMeta(sub))
	}
	if subs[0] == "" {
		return "^(" + strings.Join(tops, "|") + ")$"
	}
	return "^" + tops[0] + "$/^(" + strings.Join(subs, "|") + ")$"
}

// inGroups divides tests of a package into those that take two seconds, ten times as long, and so on.
func inGroups(tests []function) [][]function {
	slices.SortStableFunc(tests, func(a, b function) int { return cmp.Compare(a.Seconds, b.Seconds) })
	var groups [][]function
	limit, sum := 2.0, 0.0
	top := func(f function) string {
		if top, _, sub := strings.Cut(f.Name, "/"); sub {
			return top
		}
		return ""
	}
	for i, f := range tests {
		if i == 0 || sum+f.Seconds > limit || top(f) != top(tests[i-1]) {
			if i > 0 && sum+f.Seconds > limit {
				limit *= 5
			}
			groups, sum = append(groups, nil), 0
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], f)
		sum += f.Seconds
	}
	return groups
}

// execute runs a test binary in its package's folder, up to a limit of processor time. A busy machine has longer.
func execute(limit time.Duration, folder, path string, env []string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 6*limit)
	defer cancel()
	script := fmt.Sprintf(`ulimit -t %d; exec nice -n 3 "$0" "$@"`, int(limit.Seconds()))
	command := exec.CommandContext(ctx, "bash", append([]string{"-c", script, path}, args...)...)
	command.Dir, command.Env = folder, append(os.Environ(), env...)
	// A test that never ends may have children.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	err := command.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && command.ProcessState.UserTime() > limit*9/10 {
		err = context.DeadlineExceeded
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return out.String(), err
}
