package bench

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"rltrain/torch"
	"rltrain/torch/safetensors"
	"rltrain/torch/transformers"
)

// startupBench is what `rltrain bench startup` repeats.
type startupBench struct{ shape, dtype string }

type startupResult struct {
	Case       string  `json:"case"`
	Shape      string  `json:"shape"`
	What       string  `json:"what"`
	FirstToken float64 `json:"first_token_s"` // from exec; best_s is until the process has ended
	benchFigures
}

// startupPrompt has 16 tokens.
const startupPrompt = "0123456789abcdef\n"

func startupBenchCase() benchCase {
	var b startupBench
	return benchCase{
		name:  "startup",
		usage: "from the start of a process of this program to the first token of a language model of random weights",
		flags: []cli.Flag{
			&cli.StringFlag{Name: "shape", Value: "smol135", Usage: shapeNames, Destination: &b.shape},
			&cli.StringFlag{Name: "dtype", Value: "fp32", Usage: "of the stored weights: fp32 or bf16", Destination: &b.dtype},
		},
		run: func(ctx context.Context, common benchFlags) (benchTable, error) { return b.run(ctx, common.reps) },
	}
}

func (b startupBench) run(ctx context.Context, reps int) (result startupResult, err error) {
	shape, err := llamaShape(b.shape)
	if err != nil {
		return result, err
	}
	dtype, err := weightDType(b.dtype)
	if err != nil {
		return result, err
	}
	program, err := os.Executable()
	if err != nil {
		return result, err
	}
	dir, err := os.MkdirTemp("", "rltrain-bench-")
	if err != nil {
		return result, err
	}
	defer os.RemoveAll(dir)
	model := filepath.Join(dir, "model")
	stored := safetensors.F32
	if dtype == torch.BF16 {
		stored = safetensors.BF16
	}
	if err := transformers.WriteLlama(model, shape, stored, 1); err != nil {
		return result, err
	}
	device, err := torch.DeviceInUse()
	if err != nil {
		return result, err
	}
	var first, peak float64
	times, err := bestOf(ctx, func() error {
		token, memory, err := startOnce(ctx, program, model, device)
		if first == 0 || token < first {
			first, peak = token, memory
		}
		return err
	}, reps)
	if err != nil {
		return result, err
	}
	figures, err := gather(times, b.dtype, peak, peak)
	if err != nil {
		return result, err
	}
	return startupResult{Case: "startup", Shape: b.shape, What: "generate", FirstToken: first, benchFigures: figures}, nil
}

// startOnce runs the program on a prompt: how long the first token took, in seconds, and the peak of the
// process's memory by then, in MiB.
func startOnce(ctx context.Context, program, model, device string) (first, peak float64, err error) {
	c := exec.CommandContext(ctx, program, "generate", "--model", model, "--max-new-tokens", "1", "--temperature", "0",
		"--batch-size", "1", "--device", device, "--threads", strconv.Itoa(torch.Threads()))
	var errors bytes.Buffer
	c.Stderr = &errors
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(errors.String()))
		}
	}()
	in, err := c.StdinPipe()
	if err != nil {
		return 0, 0, err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if err := c.Start(); err != nil {
		return 0, 0, err
	}
	_, err = io.WriteString(in, startupPrompt)
	if err == nil {
		_, err = bufio.NewReader(out).ReadString('\n')
	}
	first = time.Since(began).Seconds()
	if err == nil {
		// It waits for the next prompt; the peak that its end reports may be that of this process, before exec.
		peak, err = memoryStatus(strconv.Itoa(c.Process.Pid), "VmHWM")
	}
	in.Close()
	if ended := c.Wait(); ended != nil {
		err = ended
	}
	return first, peak, err
}

func (r startupResult) table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "case\t%s, %s, %s, %d threads, %s\n", r.Case, r.Shape, r.DType, r.Threads, r.CPU)
	r.times(t, fmt.Sprintf("first token after %.4f s", r.FirstToken))
	return t.Flush()
}
