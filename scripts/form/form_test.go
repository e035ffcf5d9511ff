// Package form checks what linters do not: the length of files and functions, and that the files of a package depend on
// each other in one direction only.
package form

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"reflect"
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

// unsaved are fields that checkpoints and other files leave out, with the reason. A field of a type with State and Restore is named
// package.Type.field, one of a saved struct likewise.
var unsaved = map[string]string{
	"algo.Reinforce.Baseline":         option,
	"algo.Reinforce.Decay":            option,
	"algo.Reinforce.Reduction":        option,
	"algo.Reinforce.AdvantageScale":   option,
	"code.Verdict.Fault":              "decides before a verdict is written",
	"envs.Message.Fields":             "written in place of the others",
	"epochs.Source.batchSize":         option,
	"epochs.Source.bins":              "made of the data",
	"epochs.Source.epoch":             "follows from the step",
	"epochs.Source.order":             "follows from the step",
	"epochs.Source.ranks":             "made of the data",
	"epochs.Source.seed":              option,
	"evaluate.PreferenceScores.Units": "rows of eval, which writes them to a file of their own",
	"evaluate.RewardScores.Units":     "rows of eval, which writes them to a file of their own",
	"evaluate.TextScores.Texts":       "rows of eval, which writes them to a file of their own",
	"decisions.Rollouts.cases":        "made of the data",
	"decisions.Rollouts.config":       option,
	"decisions.Rollouts.policy":       "has files of its own",
	"decisions.Rollouts.rewards":      "has no memory",
	"decisions.Rollouts.rows":         "made of the data",
	"decisions.Rollouts.samples":      "made of the data",
	"reward.Labels.labels":            option,
	"reward.Score.Values":             "the samples of the step have them",
	"reward.Text.counts":              "of the judge; each step takes them",
	"reward.Text.timeout":             option,
	"rl.KLController.horizon":         option,
	"rl.KLController.target":          option,
	"rl.Trajectory.Joined":            "records have them; no episode that is saved is recorded again",
	"rl.Trajectory.Thinking":          "records have them; no episode that is saved is recorded again",
	"rl.Trajectory.Teacher":           "the last thing that a finished episode gets; flights begin again, recorded sessions are asked for again",
	"rl.Trajectory.Parts":             "records have them; no episode that is saved is recorded again",
	"rl.Trajectory.Tools":             "records have them; no episode that is saved is recorded again",
	"envs.ToolUse.Offered":            "of Trajectory.Tools",
	"rollout.LabelReplay.config":      option,
	"rollout.Labels.config":           option,
	"rollout.Labels.epsilon":          "follows from the step",
	"rollout.Labels.policy":           "has files of its own",
	"rollout.Labels.texts":            "made of the data",
	"rollout.Labels.train":            "made of the data",
	"rollout.Replay.config":           option,
	"rollout.Tokens.recorded":         "of a file",
	"rollout.Tokens.sampler":          "has no memory",
	"rollout.Tokens.servers":          "has no memory",
	"rollout.Tokens.task":             "has no memory",
}

const (
	module = "github.com/rltrain/rltrain"
	option = "an option of the run"
)

// listed is a package as the go command lists it.
type listed struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
	DepOnly                 bool
}

// typed is a package with its syntax and types.
type typed struct {
	*types.Package
	files []*ast.File
	info  *types.Info
}

// check reads the packages that match patterns.
func check(t *testing.T, patterns ...string) (all []typed) {
	t.Helper()
	command := exec.Command("go", append([]string{"list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,DepOnly"}, patterns...)...)
	command.Dir, command.Stderr = root, os.Stderr
	out := must.Get(command.Output())(t)
	var packages []listed
	exports := map[string]string{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		packages, exports[p.ImportPath] = append(packages, p), p.Export
	}
	fset := token.NewFileSet()
	config := types.Config{Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })}
	for _, p := range packages {
		if p.DepOnly {
			continue
		}
		one := typed{info: &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Selections: map[*ast.SelectorExpr]*types.Selection{}, Defs: map[*ast.Ident]types.Object{}}}
		for _, name := range p.GoFiles {
			file := must.Get(parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution))(t)
			one.files = append(one.files, file)
		}
		one.Package = must.Get(config.Check(p.ImportPath, fset, one.files, one.info))(t)
		all = append(all, one)
	}
	return all
}

// methods are the methods of a package's types, by type and name.
func (p typed) methods() map[*types.Named]map[string]*ast.FuncDecl {
	all := map[*types.Named]map[string]*ast.FuncDecl{}
	for _, file := range p.files {
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv == nil {
				continue
			}
			receiver := p.info.Defs[f.Name].Type().(*types.Signature).Recv().Type()
			if pointer, ok := receiver.(*types.Pointer); ok {
				receiver = pointer.Elem()
			}
			named := receiver.(*types.Named)
			if all[named] == nil {
				all[named] = map[string]*ast.FuncDecl{}
			}
			all[named][f.Name.Name] = f
		}
	}
	return all
}

// TestEverythingStatefulIsSaved finds the types with State and Restore. State or Restore must use each of their fields,
// and each field of what State returns must be written to the checkpoint, down to the last struct. No other struct leaves
// a field out of its JSON either.
func TestEverythingStatefulIsSaved(t *testing.T) {
	excused, found := maps.Clone(unsaved), 0
	told := map[string]bool{}
	report := func(name, what string) {
		if told[name] {
			return
		}
		told[name] = true
		_, ok := unsaved[name]
		expect.True(t, ok, "%s %s; save it, or give the reason here", name, what)
		delete(excused, name)
	}
	seen := map[types.Type]bool{}
	var saved func(of types.Type)
	saved = func(of types.Type) {
		if seen[of] {
			return
		}
		seen[of] = true
		switch u := of.Underlying().(type) {
		case *types.Pointer:
			saved(u.Elem())
		case *types.Slice:
			saved(u.Elem())
		case *types.Array:
			saved(u.Elem())
		case *types.Map:
			saved(u.Elem())
		case *types.Struct:
			if named, ok := of.(*types.Named); ok && named.Obj().Pkg().Path() == module+"/torch" {
				return // tensors have files
			}
			if marshals, _, _ := types.LookupFieldOrMethod(of, true, nil, "MarshalJSON"); marshals != nil {
				return
			}
			for i := range u.NumFields() {
				f := u.Field(i)
				if tag, _, _ := strings.Cut(reflect.StructTag(u.Tag(i)).Get("json"), ","); tag == "-" || !f.Exported() && !f.Embedded() {
					report(nameOf(of, f), "is not written to checkpoints")
				}
				saved(f.Type())
			}
		}
	}
	for _, p := range check(t, "./rl/...", "./envs/...", "./lora") {
		for _, file := range p.files {
			ast.PreorderStack(file, nil, func(n ast.Node, stack []ast.Node) bool {
				field, ok := n.(*ast.Field)
				if !ok || field.Tag == nil || !strings.Contains(field.Tag.Value, `json:"-"`) {
					return true
				}
				name := "struct"
				for _, outer := range stack {
					if spec, ok := outer.(*ast.TypeSpec); ok {
						name = spec.Name.Name
					}
				}
				report(p.Name()+"."+name+"."+field.Names[0].Name, "is not written to JSON")
				return true
			})
		}
		for named, methods := range p.methods() {
			state, restore := methods["State"], methods["Restore"]
			if state == nil || restore == nil {
				continue
			}
			found++
			used := map[string]bool{}
			for _, f := range []*ast.FuncDecl{state, restore} {
				p.uses(named, f, methods, used)
			}
			if u, ok := named.Underlying().(*types.Struct); ok {
				for i := range u.NumFields() {
					if !used[u.Field(i).Name()] {
						report(nameOf(named, u.Field(i)), "is in no checkpoint")
					}
				}
			}
			ast.Inspect(state, func(n ast.Node) bool {
				if r, ok := n.(*ast.ReturnStmt); ok {
					saved(p.info.Types[r.Results[0]].Type)
				}
				return true
			})
		}
		for _, name := range p.Scope().Names() { // the trainer's, and what others keep
			if kind, ok := p.Scope().Lookup(name).(*types.TypeName); ok && (name == "state" || strings.HasSuffix(name, "State")) {
				saved(kind.Type())
			}
		}
	}
	expect.True(t, found >= 10, "only %d types with State and Restore were found", found)
	for _, name := range slices.Sorted(maps.Keys(excused)) {
		t.Errorf("%s is saved now, or gone; remove it from the list", name)
	}
}

func nameOf(of types.Type, f *types.Var) string {
	return types.TypeString(of, func(p *types.Package) string { return p.Name() }) + "." + f.Name()
}

// uses notes the fields of a type that one of its methods uses, directly or by other methods.
func (p typed) uses(named *types.Named, f *ast.FuncDecl, methods map[string]*ast.FuncDecl, used map[string]bool) {
	if used["func "+f.Name.Name] {
		return
	}
	used["func "+f.Name.Name] = true
	ast.Inspect(f, func(n ast.Node) bool {
		selector, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		chosen := p.info.Selections[selector]
		if chosen == nil {
			return true
		}
		of := chosen.Recv()
		if pointer, ok := of.(*types.Pointer); ok {
			of = pointer.Elem()
		}
		if of != named {
			return true
		}
		if fields, ok := named.Underlying().(*types.Struct); ok && (len(chosen.Index()) > 1 || chosen.Kind() == types.FieldVal) {
			used[fields.Field(chosen.Index()[0]).Name()] = true
		} else if method := methods[selector.Sel.Name]; method != nil {
			p.uses(named, method, methods, used)
		}
		return true
	})
}
