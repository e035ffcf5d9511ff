package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

func TestParse(t *testing.T) {
	got := must.Get(parse("Losses\n@ a.go\n- x + y\n+ x - y\n= a TestSum/of two\n- 1\n+ 2\n= b TestOne\n"))(t)
	expect.Equal(t, []fault{{"a.go", "x + y", "x - y", "a", "TestSum/of two", 3}, {"a.go", "1", "2", "b", "TestOne", 6}}, got, cmp.AllowUnexported(fault{}))
	for _, text := range []string{"", "@ a.go\n- x\n+ x\n= a Test", "- x\n+ y\n= a Test", "@ a.go\n- x\n+ y\n= a"} {
		expect.Fails(parse(text))(t, "%q is read", text)
	}
}

// TestListFitsTheCode detects mutants whose line has changed.
func TestListFitsTheCode(t *testing.T) {
	text := must.Get(os.ReadFile("list.txt"))(t)
	faults := must.Get(parse(string(text)))(t)
	expect.True(t, len(faults) >= 60, "%d faults", len(faults))
	for _, f := range faults {
		f.file = filepath.Join("..", "..", f.file)
		_, err := f.apply()
		expect.True(t, err == nil, "list.txt:%d: %s: %v", f.line, f.file, err)
		function, _, _ := strings.Cut(f.test, "/")
		found := false
		for _, path := range must.Get(filepath.Glob(filepath.Join("..", "..", f.pkg, "*_test.go")))(t) {
			source := must.Get(os.ReadFile(path))(t)
			found = found || strings.Contains(string(source), "func "+function+"(")
		}
		expect.True(t, found, "list.txt:%d: %s has no %s", f.line, f.pkg, function)
	}
}

// TestCoreListFitsTheCode detects faults of the core whose line has changed.
func TestCoreListFitsTheCode(t *testing.T) {
	text := must.Get(os.ReadFile("core.txt"))(t)
	faults := replacements(string(text))
	expect.True(t, len(faults) == 115, "%d faults", len(faults))
	for _, f := range faults {
		source, err := os.ReadFile(filepath.Join("..", "..", f.File))
		n := strings.Count(string(source), f.Before)
		expect.True(t, err == nil && n == 1, "%s has %q %d times, %v", f.File, f.Before, n, err)
	}
}
