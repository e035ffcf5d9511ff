package main

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

func TestChangesOf(t *testing.T) {
	changes := string(must.Get(os.ReadFile("../../CHANGELOG.md"))(t))
	section := must.Get(changesOf(changes, "0.1.0"))(t)
	expect.True(t, strings.HasPrefix(section, "### ") && !strings.Contains(section, "\n## "), "got %q", section[:80])
	expect.Same(t, "new\n", must.Get(changesOf("# Changes\n\n## 2.0, now\n\nnew\n\n## 1.0\n\nold\n", "2.0"))(t), "Get")
	expect.Fails(changesOf(changes, "9.9"))(t, "no error for a version without changes")
}

func TestClassify(t *testing.T) {
	for text, want := range map[string]string{
		"Apache License\n   Version 2.0, January 2004": "Apache-2.0", "Permission is hereby granted, free of charge,\nto any person obtaining a copy": "MIT",
		"Redistributions in binary form must reproduce\nmay be used to endorse or promote products derived from this\nsoftware": "BSD-3-Clause",
		"Redistributions in binary form must reproduce": "BSD-2-Clause", "all rights reserved": "",
	} {
		expect.Same(t, want, classify([]string{text}), "%q", text)
	}
}

func TestEveryModuleHasAKnownLicence(t *testing.T) {
	t.Chdir("../..")
	all := must.Get(goModules())(t)
	expect.True(t, len(all) > 10, "%d modules", len(all))
}

// TestGlibc: the newest version that this test's program needs is one that packages may need, or is refused.
func TestGlibc(t *testing.T) {
	data := must.Get(os.ReadFile("/bin/sh"))(t)
	n, err := (&release{files: []file{{"bin/sh", data, 0o755}, {"share/x", []byte("text"), 0o644}}}).glibc()
	expect.True(t, (err == nil) == (n >= 4 && n <= newestGlibc) && (err == nil || strings.Contains(err.Error(), "sh needs glibc 2.")), "got 2.%d, %v", n, err)
	expect.Fails(newestOf([]byte("no program"), "GLIBC_2."))(t, "no error for a file that is no program")
}

// TestZip: packing twice gives the same bytes, with modes and one time.
func TestZip(t *testing.T) {
	r := &release{commit: time.Unix(1_700_000_000, 0).UTC()}
	files := []file{{"a/run", []byte("x"), 0o755}, {"b", bytes.Repeat([]byte("y"), 1000), 0o644}}
	first, second := must.Get(r.zip(files))(t), must.Get(r.zip(files))(t)
	expect.True(t, bytes.Equal(first, second), "the bytes differ")
	archive := must.Get(zip.NewReader(bytes.NewReader(first), int64(len(first))))(t)
	for i, f := range archive.File {
		expect.True(t, f.Mode() == files[i].mode && f.Modified.Equal(r.commit), "%s has mode %v and time %v", f.Name, f.Mode(), f.Modified)
	}
}

func TestSBOM(t *testing.T) {
	r := &release{version: "1.2.3", commit: time.Unix(1_700_000_000, 0).UTC()}
	all := []component{{"m", "v1", "MIT", "pkg:golang/m@v1", []string{"text"}}, {"n", "v2", "MIT", "pkg:golang/n@v2", []string{"text"}}}
	list := must.Into[struct {
		SerialNumber string
		Components   []struct{ Name, Version, Scope string }
	}](t, json.Unmarshal, must.Get(r.sbom(all))(t))
	expect.True(t, len(list.SerialNumber) == len("urn:uuid:")+36 && list.Components[0].Name == "m" && list.Components[2].Name == "torch" && list.Components[2].Scope == "required", "got %+v", list)
	text := string(licences(all))
	expect.True(t, strings.Count(text, "\ntext\n") == 1 && strings.Contains(text, "\nm, n\n"), "got %q", text)
}
