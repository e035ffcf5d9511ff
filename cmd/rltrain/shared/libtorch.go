package shared

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/rltrain/rltrain/internal/libtorch"
	"github.com/rltrain/rltrain/internal/wheel"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/hub"
)

// Consent says whether a command may download libtorch: always, or if the user agrees on a terminal.
type Consent struct {
	Yes    bool
	Stdin  io.Reader
	Stderr io.Writer
}

type consentKey struct{}

// WithConsent gives ctx the consent for Ready.
func WithConsent(ctx context.Context, c Consent) context.Context {
	return context.WithValue(ctx, consentKey{}, c)
}

// Ready makes sure that libtorch is on this machine before a command opens the native core. It downloads a missing one if
// ctx has consent.
//
// The error of a missing one says how to get it; other faults are those of torch.Open.
func Ready(ctx context.Context) error {
	_, err := torch.FindLibtorch()
	var missing *libtorch.Missing
	if !errors.As(err, &missing) {
		return nil
	}
	consent, _ := ctx.Value(consentKey{}).(Consent)
	agreed, failed := consent.agrees()
	if failed != nil {
		return failed
	}
	if !agreed {
		return fmt.Errorf("%w; --yes downloads it now", err)
	}
	client, done, err := NewWheels(report.NewConsole(io.Discard, consent.Stderr, time.Now))
	if err != nil {
		return err
	}
	defer done()
	_, err = client.Install(ctx, libtorch.CPU(false))
	return err
}

// NewWheels is how a command downloads wheels: with a progress bar, and with messages where bars are. done takes away the
// bar that a download left unfinished.
func NewWheels(console *report.Console) (client *wheel.Client, done func(), err error) {
	cache, err := hub.CacheDir()
	if err != nil {
		return nil, nil, err
	}
	progress, done := console.Downloads()
	return &wheel.Client{Cache: cache, Progress: progress, Warn: Warner(console)}, done, nil
}

// agrees asks on the terminal. An empty answer means yes.
func (c Consent) agrees() (bool, error) {
	if c.Yes {
		return true, nil
	}
	if !IsTerminal(c.Stdin) || !IsTerminal(c.Stderr) {
		return false, nil
	}
	cache, err := hub.CacheDir()
	if err != nil {
		return false, err
	}
	var download, disk int64
	s := libtorch.CPU(false)
	for _, part := range s.Parts {
		download += part.Size
	}
	disk = s.Bytes
	fmt.Fprintf(c.Stderr, "rltrain needs libtorch %s, which is not on this machine. Download it now (%d MB; %d MB in %s)? [Y/n] ",
		libtorch.Version, download/1e6, disk/1e6, cache)
	answer, err := readLine(c.Stdin)
	if err != nil {
		return false, fmt.Errorf("reading the answer: %w", err)
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "", "y", "yes":
		return true, nil
	}
	return false, nil
}

// readLine reads one line and no byte more, because a command may read the others.
func readLine(r io.Reader) (string, error) {
	var line []byte
	for b := make([]byte, 1); ; {
		n, err := r.Read(b)
		if n == 1 && b[0] == '\n' {
			return string(line), nil
		}
		line = append(line, b[:n]...)
		if err != nil {
			return string(line), err
		}
	}
}

// IsTerminal says whether a stream is a terminal.
func IsTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
