// Package form checks the form of the code that no linter knows: how long files and functions are, and which way the files
// of a package lean on each other.
package form

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	root          = "../.."
	fileLines     = 450
	functionLines = 80
)

// sources are the Go files of the repository that are no tests, by folder.
func sources(t *testing.T) map[string][]string {
	t.Helper()
	files := map[string][]string{}
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && path != root && (strings.HasPrefix(e.Name(), ".") || e.Name() == "build" || e.Name() == "testdata"):
			return fs.SkipDir
		case strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go"):
			files[filepath.Dir(path)] = append(files[filepath.Dir(path)], path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 20 {
		t.Fatalf("only %d packages were found", len(files))
	}
	return files
}

func TestLengths(t *testing.T) {
	for _, paths := range sources(t) {
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if n := bytes.Count(text, []byte("\n")); n > fileLines {
				t.Errorf("%s has %d lines, more than %d", path, n, fileLines)
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, text, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range file.Decls {
				f, ok := d.(*ast.FuncDecl)
				if !ok {
					continue
				}
				if n := set.Position(f.End()).Line - set.Position(f.Pos()).Line + 1; n > functionLines {
					t.Errorf("%s: %s has %d lines, more than %d", path, f.Name.Name, n, functionLines)
				}
			}
		}
	}
}

// TestFilesLeanOneWay: who reads a file of rl/algo, rl/train or rl/evaluate has to know the files that it names things of, and none of
// these leads back. Methods count for the file of their type's name.
func TestFilesLeanOneWay(t *testing.T) {
	for _, dir := range []string{"algo", "train", "evaluate"} {
		t.Run(dir, func(t *testing.T) { leansOneWay(t, filepath.Join(root, "rl", dir)) })
	}
}

func leansOneWay(t *testing.T, dir string) {
	named := map[string]string{} // what a file declares
	files := map[string]*ast.File{}
	for _, path := range sources(t)[dir] {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(path)
		files[name] = file
		for declared := range file.Scope.Objects {
			named[declared] = name
		}
	}
	uses := map[string]map[string]bool{}
	for name, file := range files {
		uses[name] = map[string]bool{}
		for _, id := range file.Unresolved {
			if of, ok := named[id.Name]; ok {
				uses[name][of] = true
			}
		}
	}
	// Files that use none of the rest are taken away until there are none.
	for len(uses) > 0 {
		before := len(uses)
		for _, name := range slices.Sorted(maps.Keys(uses)) {
			if !slices.ContainsFunc(slices.Collect(maps.Keys(uses[name])), func(of string) bool { _, left := uses[of]; return left }) {
				delete(uses, name)
			}
		}
		if len(uses) == before {
			t.Fatalf("these files use each other in a circle, or one that does: %v", uses)
		}
	}
}
