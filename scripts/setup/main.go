// Command setup prints where the things are that building rltrain needs, and downloads those that are missing into the
// user's cache. It needs neither Python nor the native core.
//
//	go run ./scripts/setup libtorch [ARCH]  the folder of libtorch, with headers; ARCH: amd64 or arm64, to compile for another machine
//	go run ./scripts/setup cuda             cmake options for the CUDA libraries and a CUDA compiler
//	go run ./scripts/setup clang-format     the program
//	go run ./scripts/setup pepper           the interpreter of pepper, a q-like language
//	go run ./scripts/setup portable FILE... replace the search path of libraries and programs by $ORIGIN
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/rltrain/rltrain/internal/libtorch"
	"github.com/rltrain/rltrain/internal/wheel"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/torch/hub"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	text, err := run(ctx, os.Args[1:])
	switch {
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "stopped; run make again to resume")
		os.Exit(130)
	case err != nil:
		fmt.Fprintln(os.Stderr, "error:", strings.ReplaceAll(err.Error(), "\n", "; "))
		os.Exit(1)
	}
	fmt.Println(text)
}

func run(ctx context.Context, args []string) (string, error) {
	cache, err := hub.CacheDir()
	if err == nil {
		cache, err = filepath.Abs(cache)
	}
	if err != nil {
		return "", err
	}
	console := report.NewConsole(os.Stdout, os.Stderr, time.Now)
	progress, done := console.Downloads()
	defer done()
	client := &wheel.Client{Cache: cache, Progress: progress, Warn: console.Warn}
	switch {
	case len(args) == 1 && args[0] == "libtorch":
		return core(ctx, client)
	case len(args) == 2 && args[0] == "libtorch":
		set, ok := libtorch.CPUOf(args[1], true)
		if !ok {
			return "", fmt.Errorf("there is no libtorch for %s", args[1])
		}
		return client.Install(ctx, set)
	case len(args) == 1 && args[0] == "cuda":
		return cuda(ctx, client)
	case len(args) == 1 && args[0] == "clang-format":
		return program(ctx, client, clangFormat, "clang-format")
	case len(args) == 1 && args[0] == "pepper":
		return program(ctx, client, pepper, "chili")
	case len(args) > 1 && args[0] == "portable":
		for _, path := range args[1:] {
			if err := libtorch.Portable(path); err != nil {
				return "", err
			}
		}
		return fmt.Sprintf("%d files now search $ORIGIN", len(args)-1), nil
	}
	return "", errors.New("usage: setup libtorch [ARCH] | cuda | clang-format | pepper | portable FILE")
}

// core returns the folder of a libtorch with headers.
func core(ctx context.Context, client *wheel.Client) (string, error) {
	dir, err := present(client.Cache)
	if err != nil {
		return "", err
	}
	if libtorch.HasHeaders(dir) {
		return filepath.Abs(dir)
	}
	return client.Install(ctx, libtorch.CPU(true))
}

// present is the folder of the libtorch on this machine; "" if there is none.
func present(cache string) (string, error) {
	found, err := libtorch.Find(cache)
	var missing *libtorch.Missing
	if errors.As(err, &missing) {
		return "", nil
	}
	return found.Dir, err
}

// program returns the path of a program in a set.
func program(ctx context.Context, client *wheel.Client, s wheel.Set, name string) (string, error) {
	dir, err := client.Install(ctx, s)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	return path, os.Chmod(path, 0o755)
}
