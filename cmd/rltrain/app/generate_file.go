package app

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"reflect"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/run"
)

// Prompts in memory: promptsAtOnce per slot, and leastAtOnce at least.
const (
	promptsAtOnce = 16
	leastAtOnce   = 256
)

// generation completes the prompts of a file.
type generation struct {
	sampler *policy.Sampler
	options policy.GenerateOptions
	rows    iter.Seq2[promptRow, error]
	n       int // rows
	at      int // rows in memory at once
	done    int // rows whose completions were written
	tokens  int
	date    string // of the chat template
}

// run writes the rows after the first skip ones, and calls kept after each.
func (g *generation) run(ctx context.Context, c *cli.Context, out io.Writer, skip int, kept func() error) error {
	bar := report.NewConsole(c.App.Writer, c.App.ErrWriter, time.Now).Bar("generate", "prompts", skip, g.n)
	defer bar.Done()
	g.done = skip
	var batch []promptRow
	number := 0
	complete := func() error {
		err := g.complete(ctx, batch, number-len(batch), out, func() error {
			g.done++
			bar.Set(g.done, fmt.Sprintf("%d tokens", g.tokens))
			return kept()
		})
		batch = batch[:0]
		return err
	}
	for row, err := range g.rows {
		if err != nil {
			return err
		}
		if number++; number <= skip {
			continue
		}
		if batch = append(batch, row); len(batch) == g.at {
			if err := complete(); err != nil {
				return err
			}
		}
	}
	return complete()
}

// complete writes the completions of a batch; first is the index of its first row.
func (g *generation) complete(ctx context.Context, batch []promptRow, first int, out io.Writer, written func() error) error {
	o := g.options
	prompts := make([][]int32, len(batch))
	o.Streams = make([]uint64, len(batch))
	for i, r := range batch {
		prompts[i], o.Streams[i] = r.ids, uint64(first+i)
	}
	return g.sampler.Generate(ctx, prompts, o, func(i int, completions []policy.Completion) error {
		for _, done := range completions {
			if err := writeRow(out, batch[i].record.Fields, generated{done.Text, done.IDs, done.LogProbs, done.Reason}); err != nil {
				return err
			}
			g.tokens += len(done.IDs)
		}
		return written()
	})
}

// notRegular reports whether path is a device, pipe or terminal.
func notRegular(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.Mode().IsRegular() && !info.IsDir()
}

// identity is FILE.partial.json: everything that completions depend on. --resume needs the same identity.
type identity struct {
	Input   string            `json:"input_sha256"`
	Options map[string]string `json:"options"`
	// Date is what the chat template printed; a resumed command prints it again.
	Date string `json:"template_date"`
}

// identityOf returns the identity of a command.
func identityOf(c *cli.Context) (identity, error) {
	file, err := os.Open(c.String("input"))
	if err != nil {
		return identity{}, err
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return identity{}, err
	}
	id := identity{Input: hex.EncodeToString(sum.Sum(nil)), Options: map[string]string{}}
	for _, name := range []string{"model", "adapter", "dtype", "bf16", "quantize", "load-in-4bit", "load-in-8bit", "max-new-tokens", "temperature", "top-p", "top-k", "min-p", "repetition-penalty", "stop", "n", "seed", "truncate-prompts", "raw", "template-date", "chat-template", "chat-template-kwargs", "eos-token"} {
		id.Options[name] = fmt.Sprint(c.Value(name))
	}
	return id, nil
}

// resumedDate is the date that the chat template printed before the command that --resume continues was stopped.
func resumedDate(c *cli.Context) (date time.Time, ok bool) {
	var before identity
	if !c.Bool("resume") || files.LoadJSON(c.String("output")+".partial.json", &before) != nil {
		return date, false
	}
	date, err := time.Parse(config.DateLayout, before.Date)
	return date, err == nil
}

// toFile writes path atomically. Until then, and after a stop, path.partial holds the finished rows.
func (g *generation) toFile(ctx context.Context, c *cli.Context, path string) error {
	part, about := path+".partial", path+".partial.json"
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return shared.UsageErrorf("--output: %s is a folder; name a file", path)
	}
	id, err := identityOf(c)
	if err != nil {
		return err
	}
	id.Date = g.date
	if err := makeDirs(filepath.Dir(path)); err != nil {
		return err
	}
	file, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	defer file.Close()
	if syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return fmt.Errorf("--output: another process is writing %s; wait for it or choose another file", part)
	}
	done, end, err := g.finished(file)
	if err != nil {
		return err
	}
	var before identity
	switch found := files.LoadJSON(about, &before); {
	case done == 0:
	case !c.Bool("resume"):
		return shared.UsageErrorf("--output: %s has %d prompts from a stopped command; pass --resume to continue, or remove it", part, done)
	case found != nil && !errors.Is(found, fs.ErrNotExist):
		return found
	case !reflect.DeepEqual(before, id):
		return shared.UsageErrorf("--resume: %s has a different input or options; use the same ones, or remove it", part)
	}
	if err := files.SaveJSON(about, id); err != nil {
		return err
	}
	if err := file.Truncate(end); err != nil {
		return err
	}
	if _, err := file.Seek(end, io.SeekStart); err != nil {
		return err
	}
	out := bufio.NewWriter(file)
	if err := g.run(ctx, c, out, done, out.Flush); err != nil {
		return g.stopped(err, part, about)
	}
	if err := settleOutput(file, path); err != nil {
		return fmt.Errorf("--output: %w; %s has all rows", err, part)
	}
	return errors.Join(os.Remove(part), os.Remove(about))
}

// finished counts the prompts with all their rows in file, and returns the offset after them.
func (g *generation) finished(file *os.File) (prompts int, end int64, err error) {
	in := bufio.NewReaderSize(file, 1<<20)
	lines, at := 0, int64(0)
	for {
		part, err := in.ReadSlice('\n')
		at += int64(len(part))
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case err == io.EOF:
			return prompts, end, nil
		case err != nil:
			return 0, 0, err
		default:
			if lines++; lines%g.options.Samples == 0 {
				prompts, end = lines/g.options.Samples, at
			}
		}
	}
}

// partlyGenerated is the stop of a generation that has saved a part, which --resume continues.
type partlyGenerated struct{ kept string }

func (p partlyGenerated) Error() string { return run.ErrStopped.Error() + ": " + p.kept }

// Unwrap makes it a run.ErrStopped.
func (p partlyGenerated) Unwrap() error { return run.ErrStopped }

// stopped adds to err what an interrupted command has saved.
func (g *generation) stopped(err error, part, about string) error {
	if g.done == 0 {
		return errors.Join(err, os.Remove(part), os.Remove(about))
	}
	kept := fmt.Sprintf("%s has %d of %d prompts", part, g.done, g.n)
	if errors.Is(err, context.Canceled) {
		return partlyGenerated{kept}
	}
	return fmt.Errorf("%w; %s; run the same command with --resume to continue", err, kept)
}

// settleOutput copies the rows to path.
func settleOutput(file *os.File, path string) error {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	out, err := outfile.Create(path, 0o644)
	if err != nil {
		return err
	}
	defer out.Close()
	if _, err := io.Copy(out, file); err != nil {
		return err
	}
	return out.Commit()
}
