package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// mutant is one fault that the sampler can put into the code.
type mutant struct {
	File     string `json:"file"`
	Line     int    `json:"line"`
	Operator string `json:"operator"`
	Before   string `json:"before"` // the lines it changes, without indentation
	After    string `json:"after"`

	pkg        string // folder of the package
	start, end int    // bytes of the file that it replaces
	plain      string // replacement that has the fault
	// schema is a replacement that has the fault if @ON@ is true. It is empty if the fault needs a build of its own.
	schema string
	rank   uint64 // position in the sample: a hash of seed, file, operator and line, so other lines do not change it
	nth    int    // among those of the same name
}

// name identifies a mutant over changes of other lines.
func (m mutant) name() string { return m.File + " | " + m.Before + " | " + m.After }

// id is name, and which of the equal lines it is.
func (m mutant) id() string { return fmt.Sprintf("%s #%d", m.name(), m.nth) }

// source is a parsed file.
type source struct {
	path string
	text []byte
	tree *ast.File
}

// module reads packages and checks their types against the export data of what they import.
type module struct {
	root     string
	fset     *token.FileSet
	importer types.Importer
}

// checked is a package with the types of its expressions.
type checked struct {
	path  string
	files []source
	info  *types.Info
	types *types.Package
}

// check parses and checks a package; texts replaces the content of files by path.
func (m *module) check(pkg listed, texts map[string][]byte) (*checked, []types.Error, error) {
	c := &checked{path: pkg.ImportPath, info: &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}}
	var trees []*ast.File
	for _, name := range pkg.GoFiles {
		path := filepath.Join(pkg.Dir, name)
		text, ok := texts[path]
		if !ok {
			var err error
			if text, err = os.ReadFile(path); err != nil {
				return nil, nil, err
			}
		}
		tree, err := parser.ParseFile(m.fset, path, text, parser.SkipObjectResolution)
		if err != nil {
			return nil, nil, err
		}
		c.files, trees = append(c.files, source{path, text, tree}), append(trees, tree)
	}
	if _, ok := texts[filepath.Join(pkg.Dir, switchFile)]; ok {
		tree, err := parser.ParseFile(m.fset, switchFile, switchText(pkg.Name), parser.SkipObjectResolution)
		if err != nil {
			return nil, nil, err
		}
		trees = append(trees, tree)
	}
	var faults []types.Error
	config := types.Config{Importer: m.importer, Error: func(err error) { faults = append(faults, err.(types.Error)) }}
	c.types, _ = config.Check(pkg.ImportPath, m.fset, trees, c.info)
	return c, faults, nil
}

// find returns the mutants of a package in a random order that depends on seed.
func (m *module) find(pkg listed, seed uint64) ([]mutant, error) {
	c, faults, err := m.check(pkg, nil)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", pkg.ImportPath, err)
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("%s has no types without cgo or does not compile, so it cannot be sampled: %w", pkg.ImportPath, faults[0])
	}
	var all []mutant
	for _, file := range c.files {
		f := finder{source: file, fset: m.fset, pkg: c}
		ast.PreorderStack(file.tree, nil, f.visit)
		seen := map[string]int{}
		relative, err := filepath.Rel(m.root, file.path)
		if err != nil {
			return nil, err
		}
		for _, found := range f.found {
			found.File, found.pkg = relative, filepath.Dir(relative)
			found.describe(file.text)
			seen[found.name()]++
			found.nth = seen[found.name()]
			sum := sha256.Sum256(fmt.Append(nil, seed, found.name(), found.Operator, found.nth))
			found.rank = binary.LittleEndian.Uint64(sum[:])
			all = append(all, found)
		}
	}
	return all, nil
}

// describe sets the lines before and after.
func (m *mutant) describe(text []byte) {
	from := strings.LastIndexByte(string(text[:m.start]), '\n') + 1
	to := m.end + strings.IndexByte(string(text[m.end:])+"\n", '\n')
	join := func(s string) string { return strings.Join(strings.Fields(s), " ") }
	m.Before = join(string(text[from:to]))
	m.After = join(string(text[from:m.start]) + m.plain + string(text[m.end:to]))
	m.Line = 1 + strings.Count(string(text[:m.start]), "\n")
}

// pick takes n mutants, the same number of each operator as far as there are enough, that do not overlap.
func pick(all []mutant, n int) []mutant {
	byOperator := map[string][]mutant{}
	for _, m := range all {
		byOperator[m.Operator] = append(byOperator[m.Operator], m)
	}
	var operators []string
	for name, some := range byOperator {
		slices.SortFunc(some, func(a, b mutant) int { return cmp.Compare(a.rank, b.rank) })
		operators = append(operators, name)
	}
	slices.Sort(operators)
	var picked []mutant
	for len(picked) < n && len(byOperator) > 0 {
		for _, name := range operators {
			for taken := false; !taken && len(byOperator[name]) > 0 && len(picked) < n; {
				next := byOperator[name][0]
				byOperator[name] = byOperator[name][1:]
				taken = !slices.ContainsFunc(picked, func(p mutant) bool { return p.File == next.File && p.start < next.end && next.start < p.end })
				if taken {
					picked = append(picked, next)
				}
			}
			if len(byOperator[name]) == 0 {
				delete(byOperator, name)
			}
		}
	}
	return picked
}
