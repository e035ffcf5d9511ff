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
	"strconv"
	"strings"
	"time"

	"github.com/rltrain/rltrain/torch"
)

// startupBench is the case startup.
type startupBench struct {
	randomLlama `defaults:"shape=smol135"`
}

// startupPrompt has 16 tokens.
const startupPrompt = "0123456789abcdef\n"

func (b *startupBench) run(ctx context.Context, reps int) (*result, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "rltrain-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	model, err := b.write(dir)
	if err != nil {
		return nil, err
	}
	device, err := torch.DeviceInUse()
	if err != nil {
		return nil, err
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
		return nil, err
	}
	f, err := gather(times, b.DType, best.peak, best.peak)
	return &result{
		figures: f,
		more: map[string]any{
			"what":          "generate",
			"first_token_s": best.first,     // since exec; best_s is until the exit
			"weights_mb":    b.weights(),    // stored size, MiB
			"anonymous_mb":  best.anonymous, // anonymous memory at the first token, MiB
		},
		about:  b.Shape,
		before: []string{fmt.Sprintf("weights\t%.0f MiB stored\t%.0f MiB anonymous memory, %.2f×", b.weights(), best.anonymous, best.anonymous/b.weights())},
		speed:  fmt.Sprintf("first token after %.4f s", best.first),
	}, err
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
