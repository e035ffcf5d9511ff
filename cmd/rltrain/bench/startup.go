package bench

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/safetensors"
	"github.com/rltrain/rltrain/torch/transformers"
)

// startupBench is the case startup.
type startupBench struct{ shape, dtype string }

type startupResult struct {
	Case       string  `json:"case"`
	Shape      string  `json:"shape"`
	What       string  `json:"what"`
	FirstToken float64 `json:"first_token_s"` // since exec; best_s is until the exit
	Weights    float64 `json:"weights_mb"`    // stored size, MiB
	Anonymous  float64 `json:"anonymous_mb"`  // anonymous memory at the first token, MiB
	benchFigures
}

// startupPrompt has 16 tokens.
const startupPrompt = "0123456789abcdef\n"

func startupBenchCase() benchCase {
	var b startupBench
	return benchCase{
		name:  "startup",
		usage: "time from process start to the first token of a random language model",
		flags: []cli.Flag{
			&cli.StringFlag{Name: "shape", Value: "smol135", Usage: shapeNames, Destination: &b.shape},
			&cli.StringFlag{Name: "dtype", Value: "fp32", Usage: "dtype of the stored weights: fp32 or bf16", Destination: &b.dtype},
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
	best := started{first: math.Inf(1)}
	times, err := bestOf(ctx, func() error {
		once, err := startOnce(ctx, program, model, device)
		if once.first < best.first {
			best = once
		}
		return err
	}, reps)
	if err != nil {
		return result, err
	}
	figures, err := gather(times, b.dtype, best.peak, best.peak)
	if err != nil {
		return result, err
	}
	layers, head := products(shape)
	return startupResult{
		Case: "startup", Shape: b.shape, What: "generate", FirstToken: best.first,
		Weights: float64(dtype.Size()) * (layers + head) / (1 << 20), Anonymous: best.anonymous, benchFigures: figures,
	}, nil
}

// started is the time to the first token in seconds, and the peak and anonymous memory at that time in MiB.
type started struct{ first, peak, anonymous float64 }

// startOnce runs rltrain generate on one prompt.
func startOnce(ctx context.Context, program, model, device string) (s started, err error) {
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
		return s, err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return s, err
	}
	began := time.Now()
	if err := c.Start(); err != nil {
		return s, err
	}
	_, err = io.WriteString(in, startupPrompt)
	if err == nil {
		_, err = bufio.NewReader(out).ReadString('\n')
	}
	s.first = time.Since(began).Seconds()
	// The process waits for the next prompt. Its peak at exit would include this process before exec.
	for field, into := range map[string]*float64{"VmHWM": &s.peak, "RssAnon": &s.anonymous} {
		if err == nil {
			*into, err = memoryStatus(strconv.Itoa(c.Process.Pid), field)
		}
	}
	in.Close()
	if ended := c.Wait(); ended != nil {
		err = ended
	}
	return s, err
}

func (r startupResult) table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "case\t%s, %s, %s, %d threads, %s\n", r.Case, r.Shape, r.DType, r.Threads, r.CPU)
	fmt.Fprintf(t, "weights\t%.0f MiB stored\t%.0f MiB anonymous memory, %.2f×\n", r.Weights, r.Anonymous, r.Anonymous/r.Weights)
	r.times(t, fmt.Sprintf("first token after %.4f s", r.FirstToken))
	return t.Flush()
}
