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
	data, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	files := []file{{"bin/rltrain", data, 0o755}}
	libraries := []string{"librltrain.so"}
	if libtorch.ForGPUs {
		libraries = append(libraries, "librltrain_cuda.so")
	}
	for _, name := range libraries {
		data, err := portable(filepath.Join("build", "lib", name), inStage(name))
		if err != nil {
			return nil, err
		}
		files = append(files, file{"lib/rltrain/" + name, data, 0o755})
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

// portable copies a library without its debugging symbols and returns the copy, which searches its own folder.
func portable(from, to string) ([]byte, error) {
	data, err := os.ReadFile(from)
	if err != nil {
		return nil, fmt.Errorf("%w; run make core cuda first", err)
	}
	if err := os.WriteFile(to, data, 0o755); err != nil {
		return nil, err
	}
	if _, err := output("strip", to); err != nil {
		return nil, err
	}
	if err := libtorch.Portable(to); err != nil {
		return nil, err
	}
	return os.ReadFile(to)
}

// readFile is a file of the repository, at the top of a package.
func readFile(name string) (file, error) {
	data, err := os.ReadFile(name)
	return file{filepath.Base(name), data, 0o644}, err
}
