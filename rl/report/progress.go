package report

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

const (
	redrawEvery = 100 * time.Millisecond // of the bar on a terminal
	plainEvery  = 30 * time.Second       // between progress lines elsewhere
	clearLine   = "\r\x1b[K"
)

// Console is where a program prints lines while a progress bar may be shown:
// the bar is taken off before a line and drawn again after it. Its methods may
// be called from several goroutines.
type Console struct {
	mu    sync.Mutex
	out   io.Writer
	bars  io.Writer
	now   func() time.Time
	width func() int // columns of the terminal that bars is; 0: no terminal
	table bool       // out is a terminal too
	bar   *Bar
	drawn bool

	broken func() // told once where out cannot be written
	err    error  // of out
}

// NewConsole prints lines on out and progress on bars, commonly standard
// output and standard error; now is the clock. Only where bars is a terminal
// is there a bar; elsewhere long work prints a line every 30 seconds.
func NewConsole(out, bars io.Writer, now func() time.Time) *Console {
	width := func() int { return 0 }
	if f, ok := bars.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		width = func() int {
			w, _, err := term.GetSize(int(f.Fd()))
			if err != nil || w <= 0 {
				return 80
			}
			return w
		}
	}
	c := &Console{out: out, bars: bars, now: now, width: width}
	if f, ok := out.(*os.File); ok {
		c.table = term.IsTerminal(int(f.Fd()))
	}
	return c
}

// Terminal is how many columns the terminal has that lines are printed on; 0: they go to a file or a program.
func (c *Console) Terminal() int {
	if !c.table {
		return 0
	}
	return max(c.width(), 1)
}

// Print writes text, and ends its last line where text does not: what follows,
// a bar for one, starts on a new line.
func (c *Console) Print(text string) error {
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil
	}
	shown := c.clear()
	if _, err := io.WriteString(c.out, text); err != nil {
		err = fmt.Errorf("printing: %w", err)
		if c.broken == nil {
			return err
		}
		c.err = err
		c.broken()
		return nil
	}
	if shown {
		c.bar.draw()
	}
	return nil
}

// OnBroken has told called once where lines cannot be printed any more: nobody reads them, or the terminal is gone.
// From then on lines are dropped, and [Console.Err] says why: what is still to be saved must not fail by them.
func (c *Console) OnBroken(told func()) { c.broken = told }

// Err is why lines were dropped; nil where none was.
func (c *Console) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Warn prints text as one line or more beside the progress, where out may be data for a program. An error
// is of no use to anyone: it is dropped.
func (c *Console) Warn(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	shown := c.clear()
	_, _ = io.WriteString(c.bars, strings.TrimSuffix(text, "\n")+"\n")
	if shown {
		c.bar.draw()
	}
}

// clear takes the bar off the screen and tells whether there was one.
func (c *Console) clear() bool {
	if !c.drawn {
		return false
	}
	c.drawn = false
	_, _ = io.WriteString(c.bars, clearLine)
	return true
}

// Bar shows how far one piece of work is. A console has one at a time.
type Bar struct {
	c             *Console
	label, unit   string
	first         int
	done, total   int
	note          string
	started, last time.Time
}

// Bar begins to show work of total units ("steps"), first of which were done
// before, by a run that this one resumes. It replaces a bar that is still
// shown. Printing progress never fails: errors of the terminal are ignored.
func (c *Console) Bar(label, unit string, first, total int) *Bar {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clear()
	now := c.now()
	b := &Bar{c: c, label: label, unit: unit, first: first, done: first, total: total, started: now, last: now}
	c.bar = b
	if c.width() > 0 {
		b.draw()
	}
	return b
}

// Set says that done units of the total are done; note is shown behind, where
// there is room ("loss 0.31").
func (b *Bar) Set(done int, note string) {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	b.done, b.note = done, note
	if b.c.bar != b {
		return
	}
	now := b.c.now()
	if b.c.width() > 0 {
		if now.Sub(b.last) >= redrawEvery || done >= b.total {
			b.last = now
			b.draw()
		}
		return
	}
	if now.Sub(b.last) >= plainEvery {
		b.last = now
		fmt.Fprintf(b.c.bars, "%s\n", strings.Join(b.parts(now), "  "))
	}
}

// Done takes the bar away.
func (b *Bar) Done() {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	if b.c.bar != b {
		return
	}
	b.c.clear()
	b.c.bar = nil
}

func (b *Bar) draw() {
	b.c.drawn = true
	_, _ = io.WriteString(b.c.bars, clearLine+b.line(b.c.width(), b.c.now()))
}

// parts are the pieces of a progress line in order of importance.
func (b *Bar) parts(now time.Time) []string {
	percent := 100
	if b.total > 0 {
		percent = min(100, max(0, 100*b.done/b.total))
	}
	parts := []string{fmt.Sprintf("%s %3d%%", b.label, percent), Count(int64(b.done)) + "/" + Count(int64(b.total))}
	elapsed := now.Sub(b.started)
	if fresh := b.done - b.first; fresh > 0 && elapsed > 0 {
		rate := float64(fresh) / elapsed.Seconds()
		seconds := min(float64(max(0, b.total-b.done))/rate, 1e9) // a Duration holds no more than 9e9
		left := time.Duration(seconds * float64(time.Second))
		parts = append(parts, rateText(rate, b.unit), Clock(left)+" left")
	}
	if b.note != "" {
		parts = append(parts, b.note)
	}
	return parts
}

// line fits the bar into one line of a terminal that is width columns wide.
// The last column stays free: writing there makes some terminals wrap.
func (b *Bar) line(width int, now time.Time) string {
	const (
		gap     = "  "
		barLeft = 8  // the least bar worth drawing
		barMost = 30 // more says nothing more
	)
	room := max(1, width-1)
	parts := b.parts(now)
	for len(parts) > 1 && utf8.RuneCountInString(strings.Join(parts, gap)) > room {
		parts = parts[:len(parts)-1]
	}
	free := room - utf8.RuneCountInString(strings.Join(parts, gap)) - len(gap) - len("[]")
	if free >= barLeft {
		cells := min(free, barMost)
		filled := cells
		if b.total > 0 {
			filled = min(cells, max(0, cells*b.done/b.total))
		}
		bar := "[" + strings.Repeat("=", filled) + strings.Repeat(" ", cells-filled) + "]"
		parts = append([]string{parts[0], bar}, parts[1:]...)
	}
	text := []rune(strings.Join(parts, gap))
	return string(text[:min(len(text), room)])
}

// rateText shows slow work as time per unit.
func rateText(rate float64, unit string) string {
	switch {
	case rate >= 100:
		return fmt.Sprintf("%.0f %s/s", rate, unit)
	case rate >= 1:
		return fmt.Sprintf("%.1f %s/s", rate, unit)
	}
	return fmt.Sprintf("%.1f s/%s", 1/rate, strings.TrimSuffix(unit, "s"))
}
