package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// component is software by others that the packages contain.
type component struct {
	name, version string
	licence       string // SPDX expression
	purl          string // package URL
	texts         []string
}

// components are the Go modules and the Rust crates of the program, and Go itself.
func components() ([]component, error) {
	all, err := goModules()
	if err != nil {
		return nil, err
	}
	crates, err := rustCrates()
	if err != nil {
		return nil, err
	}
	root, err := output("go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	std, err := os.ReadFile(filepath.Join(root, "LICENSE"))
	if err != nil {
		return nil, err
	}
	version := strings.TrimPrefix(runtime.Version(), "go")
	all = append(all, component{"Go standard library", version, "BSD-3-Clause", "pkg:golang/std@" + version, []string{string(std)}})
	all = append(all, crates...)
	slices.SortFunc(all, func(a, b component) int { return strings.Compare(a.purl, b.purl) })
	return all, nil
}

func goModules() ([]component, error) {
	list, err := output("go", "list", "-deps", "-f", "{{with .Module}}{{if .Version}}{{.Path}}\t{{.Version}}\t{{.Dir}}{{end}}{{end}}", "./cmd/rltrain")
	if err != nil {
		return nil, err
	}
	lines := strings.Split(list, "\n")
	slices.Sort(lines)
	var all []component
	for _, line := range slices.Compact(lines) {
		f := strings.Split(line, "\t")
		if len(f) != 3 {
			continue
		}
		c := component{name: f[0], version: f[1], purl: "pkg:golang/" + f[0] + "@" + f[1]}
		if c.texts, err = licenceTexts(f[2]); err != nil {
			return nil, err
		}
		if c.licence = classify(c.texts); c.licence == "" {
			return nil, fmt.Errorf("module %s has a licence that this program does not know; read it in %s", f[0], f[2])
		}
		all = append(all, c)
	}
	return all, nil
}

var crateLine = regexp.MustCompile(`^(\S+) v(\S+)(?: \(proc-macro\))?\|(.+?)(?: \(\*\))?$`)

// rustCrates are those in libtokenizers.a. cargo has downloaded their sources to build it.
func rustCrates() ([]component, error) {
	const module = "github.com/daulet/tokenizers"
	dir, err := output("go", "list", "-m", "-f", "{{.Dir}}", module)
	if err != nil {
		return nil, err
	}
	tree, err := output("cargo", "tree", "-e", "normal", "--locked", "--offline", "--target", machine()+"-unknown-linux-gnu", "--prefix", "none",
		"-f", "{p}|{l}", "--manifest-path", filepath.Join(dir, "Cargo.toml"))
	if err != nil {
		return nil, err
	}
	home := os.Getenv("CARGO_HOME")
	if home == "" {
		user, err := os.UserHomeDir()
		if err != nil {
			return nil, err
		}
		home = filepath.Join(user, ".cargo")
	}
	lines := strings.Split(tree, "\n")
	slices.Sort(lines)
	var all []component
	for _, line := range lines {
		m := crateLine.FindStringSubmatch(line)
		if m == nil || len(all) > 0 && all[len(all)-1].name == m[1] && all[len(all)-1].version == m[2] {
			continue // the module itself, or a line that repeats
		}
		c := component{name: m[1], version: m[2], purl: "pkg:cargo/" + m[1] + "@" + m[2]}
		// An old way to write alternatives has a slash.
		c.licence = strings.ReplaceAll(strings.ReplaceAll(m[3], " / ", "/"), "/", " OR ")
		found, err := filepath.Glob(filepath.Join(home, "registry", "src", "*", m[1]+"-"+m[2]))
		if err != nil || len(found) == 0 {
			return nil, errors.Join(err, fmt.Errorf("the sources of crate %s %s are not in %s; run make", m[1], m[2], home))
		}
		if c.texts, err = licenceTexts(found[0]); err != nil && !errors.Is(err, errNoLicence) {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

var (
	errNoLicence = errors.New("it has no licence file")
	licenceName  = regexp.MustCompile(`(?i)^(licen[sc]e|copying|notice|patents|unlicense)`)
)

// licenceTexts are the texts of the licence files in a folder and the folders directly below it.
func licenceTexts(dir string) ([]string, error) {
	var texts []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		depth := strings.Count(strings.TrimPrefix(path, dir), string(filepath.Separator))
		if e.IsDir() && depth > 1 {
			return fs.SkipDir
		}
		if !e.Type().IsRegular() || !licenceName.MatchString(e.Name()) || strings.HasSuffix(path, ".go") || strings.HasSuffix(path, ".rs") {
			return nil
		}
		text, err := os.ReadFile(path)
		texts = append(texts, strings.TrimSpace(strings.ReplaceAll(string(text), "\r\n", "\n")))
		return err
	})
	if err == nil && texts == nil {
		err = fmt.Errorf("%s: %w", dir, errNoLicence)
	}
	return texts, err
}

// classify returns the SPDX expression of licence texts; "" if it knows none.
func classify(texts []string) string {
	var found []string
	for _, text := range texts {
		text = strings.Join(strings.Fields(text), " ")
		for _, l := range []struct{ id, sentence string }{
			{"Apache-2.0", "Apache License Version 2.0"}, {"MIT", "Permission is hereby granted, free of charge, to any person obtaining a copy"},
			{"OFL-1.1", "SIL OPEN FONT LICENSE Version 1.1"}, {"BSD-3-Clause", "may be used to endorse or promote products derived from this software"},
			{"BSD-2-Clause", "Redistributions in binary form must reproduce"}, {"MPL-2.0", "Mozilla Public License Version 2.0"},
			{"ISC", "Permission to use, copy, modify, and distribute this software for any purpose with or without fee is hereby granted"},
			{"FTL", "The FreeType Project LICENSE"}, {"CC-BY-4.0", "Creative Commons Attribution 4.0"},
		} {
			if strings.Contains(text, l.sentence) && !slices.Contains(found, l.id) && !(l.id == "BSD-2-Clause" && slices.Contains(found, "BSD-3-Clause")) {
				found = append(found, l.id)
			}
		}
	}
	slices.Sort(found)
	return strings.Join(found, " AND ")
}

// othersLicences is the file in packages with the licences of components.
const othersLicences = "LICENSE.third-party"

// licences is the file with all licences: a list of the components, then each text once.
func licences(all []component) []byte {
	var b strings.Builder
	b.WriteString("rltrain contains the software below. Its own licence is in the file LICENSE. libtorch and NVIDIA's libraries are\n" +
		"downloaded with their licences.\n\n")
	users, order := map[string][]string{}, []string{}
	for _, c := range all {
		fmt.Fprintf(&b, "%s %s: %s\n", c.name, c.version, c.licence)
		for _, text := range c.texts {
			if users[text] == nil {
				order = append(order, text)
			}
			users[text] = append(users[text], c.name)
		}
	}
	for _, text := range order {
		fmt.Fprintf(&b, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 78), strings.Join(slices.Compact(users[text]), ", "), text)
	}
	return []byte(b.String())
}
