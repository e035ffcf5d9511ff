// Package form checks what linters do not: the length of files and functions, and that the files of a package depend on
// each other in one direction only.
package form

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

const (
	root          = "../.."
	fileLines     = 450
	functionLines = 80
)

// sources are the repository's non-test Go files, by folder.
func sources(t *testing.T) map[string][]string {
	t.Helper()
	files := map[string][]string{}
	must.Do(t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && path != root && (strings.HasPrefix(e.Name(), ".") || e.Name() == "build" || e.Name() == "testdata"):
			return fs.SkipDir
		case strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go"):
			files[filepath.Dir(path)] = append(files[filepath.Dir(path)], path)
		}
		return nil
	}))
	expect.Require(t, len(files) >= 20, "only %d packages were found", len(files))
	return files
}

func TestLengths(t *testing.T) {
	for _, paths := range sources(t) {
		for _, path := range paths {
			text := must.Get(os.ReadFile(path))(t)
			n := bytes.Count(text, []byte("\n"))
			expect.True(t, n <= fileLines, "%s has %d lines, more than %d", path, n, fileLines)
			set := token.NewFileSet()
			file := must.Get(parser.ParseFile(set, path, text, 0))(t)
			for _, d := range file.Decls {
				f, ok := d.(*ast.FuncDecl)
				if !ok {
					continue
				}
				n := set.Position(f.End()).Line - set.Position(f.Pos()).Line + 1
				expect.True(t, n <= functionLines, "%s: %s has %d lines, more than %d", path, f.Name.Name, n, functionLines)
			}
		}
	}
}

// TestFilesLeanOneWay: a file of these packages depends on the files whose types, functions, methods and fields it
// uses. None of those may depend on it.
func TestFilesLeanOneWay(t *testing.T) {
	for _, dir := range []string{"algo", "evaluate", "policy", "train"} {
		t.Run(dir, func(t *testing.T) {
			uses := usesOf(t, sources(t)[filepath.Join(root, "rl", dir)])
			expect.Require(t, dir != "train" || uses["trainer.go"]["update.go"] && uses["update.go"]["passes.go"], "not all uses are found: %v", uses)
			// Remove files without dependencies until none are left.
			for len(uses) > 0 {
				before := len(uses)
				for _, name := range slices.Sorted(maps.Keys(uses)) {
					maps.DeleteFunc(uses[name], func(of string, _ bool) bool { return uses[of] == nil })
					if len(uses[name]) == 0 {
						delete(uses, name)
					}
				}
				expect.Require(t, len(uses) != before, "these files are in a circle, or lead into one: %v", uses)
			}
		})
	}
}

// empty replaces every imported package.
type empty struct{}

func (empty) Import(name string) (*types.Package, error) {
	p := types.NewPackage(name, path.Base(name))
	p.MarkComplete()
	return p, nil
}

// usesOf lists, for each file of a package, the other files that declare what it uses.
func usesOf(t *testing.T, paths []string) map[string]map[string]bool {
	t.Helper()
	set := token.NewFileSet()
	var files []*ast.File
	uses := map[string]map[string]bool{}
	for _, path := range paths {
		file := must.Get(parser.ParseFile(set, path, nil, 0))(t)
		files = append(files, file)
		uses[filepath.Base(path)] = map[string]bool{}
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: empty{}, Error: func(error) {}} // names of other packages are unknown
	pkg, _ := config.Check("p", set, files, info)
	for id, object := range info.Uses {
		if object.Pkg() != pkg || !object.Pos().IsValid() {
			continue
		}
		from, to := filepath.Base(set.Position(id.Pos()).Filename), filepath.Base(set.Position(object.Pos()).Filename)
		if from != to {
			uses[from][to] = true
		}
	}
	return uses
}
