// Command size prints the size of the code by folder at HEAD, next to an earlier commit:
//
//	go run ./scripts/size abd8ca1 > docs/results/size.md
package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log"
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
)

// size is what the files of a folder have.
type size struct{ files, lines, functions, longest, tests int }

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: size COMMIT")
	}
	before, err := measure(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	after, err := measure("HEAD")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("# Size of the code\n\nMade by `go run ./scripts/size %s`: that commit → HEAD. Lines, files and functions (Go only) without tests; the longest\nfunction in lines; lines of tests.\n", os.Args[1])
	print("Go", before, after, func(folder string) bool { return !strings.HasPrefix(folder, "csrc") })
	print("C++ and CUDA", before, after, func(folder string) bool { return strings.HasPrefix(folder, "csrc") })
}

// print writes the table of the folders for which holds is true.
func print(title string, before, after map[string]size, holds func(folder string) bool) {
	fmt.Printf("\n## %s\n\n| folder | files | lines | functions | longest | lines of tests |\n| --- | --- | --- | --- | --- | --- |\n", title)
	folders := maps.Clone(before)
	maps.Copy(folders, after)
	var sumBefore, sumAfter size
	for _, folder := range slices.Sorted(maps.Keys(folders)) {
		if holds(folder) {
			fmt.Println(row(folder, before[folder], after[folder]))
			sumBefore, sumAfter = sumBefore.plus(before[folder]), sumAfter.plus(after[folder])
		}
	}
	fmt.Println(row("**all**", sumBefore, sumAfter))
}

func (s size) plus(t size) size {
	return size{s.files + t.files, s.lines + t.lines, s.functions + t.functions, max(s.longest, t.longest), s.tests + t.tests}
}

func row(name string, before, after size) string {
	cell := func(b, a int) string {
		if b == a && a == 0 {
			return "–"
		}
		if b == a {
			return fmt.Sprint(a)
		}
		return fmt.Sprintf("%d → %d", b, a)
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s |", name, cell(before.files, after.files), cell(before.lines, after.lines),
		cell(before.functions, after.functions), cell(before.longest, after.longest), cell(before.tests, after.tests))
}

// measure returns the sizes of a commit's folders.
func measure(commit string) (map[string]size, error) {
	list, err := exec.Command("git", "ls-tree", "-r", "--name-only", commit, "--", "rl", "cmd", "envs", "torch", "lora", "internal", "csrc", "scripts").Output()
	if err != nil {
		return nil, fmt.Errorf("listing the files of %s: %w", commit, err)
	}
	sizes := map[string]size{}
	for file := range strings.FieldsSeq(string(list)) {
		extension := path.Ext(file)
		if strings.Contains(file, "/testdata/") || !slices.Contains([]string{".go", ".cc", ".h", ".cu", ".cuh"}, extension) {
			continue
		}
		text, err := exec.Command("git", "show", commit+":"+file).Output()
		if err != nil {
			return nil, fmt.Errorf("reading %s of %s: %w", file, commit, err)
		}
		s := sizes[path.Dir(file)]
		lines := bytes.Count(text, []byte("\n"))
		if strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "csrc/tests/") {
			s.tests += lines
		} else {
			s.files++
			s.lines += lines
			s.count(file, text)
		}
		sizes[path.Dir(file)] = s
	}
	return sizes, nil
}

// count adds the functions of a Go file.
func (s *size) count(file string, text []byte) {
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, text, parser.SkipObjectResolution)
	if err != nil {
		return
	}
	for _, d := range parsed.Decls {
		if f, is := d.(*ast.FuncDecl); is {
			s.functions++
			s.longest = max(s.longest, set.Position(f.End()).Line-set.Position(f.Pos()).Line+1)
		}
	}
}
