package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/rltrain/rltrain/internal/libtorch"
)

// file is one file of the packages.
type file struct {
	path string // below the prefix: bin/rltrain
	data []byte
	mode os.FileMode
}

// gather returns the files that every package has. stamp is internal/version's.
func gather(stamp string) ([]file, error) {
	if err := os.RemoveAll(stage); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(stage, 0o755); err != nil {
		return nil, err
	}
	program := inStage("rltrain")
	if _, err := output("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -X github.com/rltrain/rltrain/internal/version.stamp="+stamp, "-o", program, "./cmd/rltrain"); err != nil {
		return nil, err
	}
	files := []file{{path: "bin/rltrain", mode: 0o755}}
	sources := []string{program}
	for _, name := range []string{"librltrain.so", "librltrain_cuda.so"} {
		library := inStage(name)
		if err := portableCopy(filepath.Join("build", "lib", name), library); err != nil {
			return nil, err
		}
		files, sources = append(files, file{path: "lib/rltrain/" + name, mode: 0o755}), append(sources, library)
	}
	for i, path := range sources {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		files[i].data = data
	}
	for _, page := range []struct{ path, args string }{
		{"share/bash-completion/completions/rltrain", "completion bash"}, {"share/fish/vendor_completions.d/rltrain.fish", "completion fish"},
		{"share/man/man1/rltrain.1", "man"}, {"share/zsh/site-functions/_rltrain", "completion zsh"},
	} {
		text, err := exec.Command(program, strings.Fields(page.args)...).Output()
		if err != nil {
			return nil, fmt.Errorf("rltrain %s: %w", page.args, err)
		}
		files = append(files, file{page.path, text, 0o644})
	}
	return files, nil
}

// portableCopy copies a library without its debugging symbols; the copy searches its own folder.
func portableCopy(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("%w; run make cuda first", err)
	}
	if err := os.WriteFile(to, data, 0o755); err != nil {
		return err
	}
	if _, err := output("strip", to); err != nil {
		return err
	}
	return libtorch.Portable(to)
}

// readFile is a file of the repository, at the top of a package.
func readFile(name string) (file, error) {
	data, err := os.ReadFile(name)
	return file{filepath.Base(name), data, 0o644}, err
}
