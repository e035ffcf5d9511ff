package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/rltrain/rltrain/internal/files"
)

// verdict is what became of a mutant.
type verdict struct {
	mutant
	Noticed    string `json:"noticed,omitempty"`    // the test that noticed it
	Equivalent string `json:"equivalent,omitempty"` // why no test can
	Suite      string `json:"-"`
}

func (v verdict) String() string {
	where := fmt.Sprintf("%s:%d (%s)", v.File, v.Line, v.Operator)
	switch {
	case v.Equivalent != "":
		return where + ": equivalent"
	case v.Noticed != "":
		return where + ": noticed by " + v.Noticed
	}
	return where + ": UNNOTICED\n  - " + v.Before + "\n  + " + v.After
}

// sampleResults are the results of a sample.
type sampleResults struct {
	Seed       uint64    `json:"seed,omitempty"`
	Mutants    int       `json:"mutants"`
	Equivalent int       `json:"equivalent"`
	Noticed    int       `json:"noticed"`
	Operators  []counted `json:"operators"`
	Folders    []counted `json:"folders"`
	Survivors  []verdict `json:"survivors"`

	kept map[string]verdict
}

// counted is how many mutants of a kind are noticed, without the equivalent ones.
type counted struct {
	Name    string `json:"name"`
	Mutants int    `json:"mutants"`
	Noticed int    `json:"noticed"`
}

// stored is a verdict in the file of an unfinished sample.
type stored struct {
	Name, Noticed, Equivalent, Suite string
}

func (r *sampleResults) load(path string) error {
	r.kept = map[string]verdict{}
	var all []stored
	err := files.LoadJSON(path, &all)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, s := range all {
		r.kept[s.Name] = verdict{Noticed: s.Noticed, Equivalent: s.Equivalent, Suite: s.Suite}
	}
	return err
}

func (r *sampleResults) save(path string) error {
	var all []stored
	for name, v := range r.kept {
		all = append(all, stored{name, v.Noticed, v.Equivalent, v.Suite})
	}
	return files.SaveJSON(path, all)
}

// finish prints the survivors, and writes the results as a part of the file out if that is not "".
func (r *sampleResults) finish(mutants []mutant, out, part string) error {
	count := func(list *[]counted, name string, noticed bool) {
		i := 0
		for i < len(*list) && (*list)[i].Name != name {
			i++
		}
		if i == len(*list) {
			*list = append(*list, counted{Name: name})
		}
		(*list)[i].Mutants++
		if noticed {
			(*list)[i].Noticed++
		}
	}
	r.Mutants = len(mutants)
	for _, m := range mutants {
		v := r.kept[m.id()]
		if v.Equivalent != "" {
			r.Equivalent++
			continue
		}
		noticed := v.Noticed != ""
		count(&r.Operators, m.Operator, noticed)
		count(&r.Folders, m.pkg, noticed)
		if noticed {
			r.Noticed++
		} else {
			r.Survivors = append(r.Survivors, v)
		}
	}
	fmt.Printf("%d of %d mutants are noticed; %d more are equivalent to the code\n", r.Noticed, r.Mutants-r.Equivalent, r.Equivalent)
	for _, v := range r.Survivors {
		fmt.Println(v)
	}
	if out == "" {
		return nil
	}
	all := map[string]any{}
	if err := files.LoadJSON(out, &all); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	all[part] = r
	return files.SaveJSON(out, all)
}

// equivalents reads the mutants that change nothing that a test can see, with their reasons.
func equivalents(path string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	reasons := map[string]string{}
	for _, r := range replacements(string(text)) {
		reasons[r.name()] = r.reason
	}
	return reasons, nil
}

// replacement is an entry of a list of faults without tests.
type replacement struct {
	mutant
	reason string
}

// replacements reads entries in the form of list.txt, with a reason or nothing instead of a test.
func replacements(text string) []replacement {
	var all []replacement
	var r replacement
	for line := range strings.Lines(text) {
		kind, rest, _ := strings.Cut(strings.TrimRight(line, "\n"), " ")
		switch kind {
		case "@":
			r = replacement{mutant: mutant{File: rest}}
		case "-":
			r.Before = rest
		case "+":
			r.After, r.reason = rest, ""
			all = append(all, r)
		case "=":
			all[len(all)-1].reason = rest
		}
	}
	return all
}
