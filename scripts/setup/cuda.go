package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"

	"github.com/rltrain/rltrain/internal/libtorch"
	"github.com/rltrain/rltrain/internal/wheel"
)

// cuda returns cmake's options: the folder of libtorch's CUDA libraries, 2.8 GB if they are downloaded, and that of the
// compiler.
func cuda(ctx context.Context, client *wheel.Client) (string, error) {
	if !libtorch.ForGPUs {
		return "", errors.New("rltrain uses GPUs only on x86-64")
	}
	core, err := present(client.Cache)
	if err != nil {
		return "", err
	}
	libraries, err := libtorch.FindCUDA(core, client.Cache)
	var missing *libtorch.Missing
	if errors.As(err, &missing) {
		sets := []wheel.Set{libtorch.CUDA()}
		if !libtorch.HasHeaders(core) {
			sets = append(sets, libtorch.CPU(true)) // from the same wheel
		}
		if err = client.InstallAll(ctx, sets...); err == nil {
			libraries, err = libtorch.FindCUDA(core, client.Cache)
		}
	}
	if err != nil {
		return "", err
	}
	compiler, err := toolkit(ctx, client)
	return "-DLIBTORCH_CUDA_DIR=" + libraries + "\n-DCUDA_TOOLKIT_DIR=" + compiler, err
}

var release13 = regexp.MustCompile(`release 13\.`)

// toolkit returns the folder with CUDA 13's bin/nvcc and include: $CUDA_HOME if it has them.
func toolkit(ctx context.Context, client *wheel.Client) (string, error) {
	if given := os.Getenv("CUDA_HOME"); given != "" {
		said, err := exec.CommandContext(ctx, filepath.Join(given, "bin", "nvcc"), "--version").Output()
		_, headers := os.Stat(filepath.Join(given, "include", "cuda_runtime.h"))
		if err == nil && headers == nil && release13.Match(said) {
			return filepath.Abs(given)
		}
		client.Warn("CUDA_HOME=" + given + " has no CUDA 13 nvcc or headers; using those from wheels")
	}
	return client.Install(ctx, cudaToolkit)
}
