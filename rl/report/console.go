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
	redrawEvery = 100 * time.Millisecond // between redraws of the bar on a terminal
	plainEvery  = 30 * time.Second       // between progress lines elsewhere
	clearLine   = "\r\x1b[K"
)

// Console prints lines and a progress bar: it clears the bar before a line and redraws it after. Its methods are safe for
// concurrent use.
type Console struct {
	mu    sync.Mutex
	out   io.Writer
	bars  io.Writer
	now   func() time.Time
	width func() int // columns of bars; 0 if it is not a terminal
	tty   bool       // out is a terminal
	bar   *Bar
	drawn bool

	broken func() // called once when writing to out fails
	err    error  // first error of out
}

// NewConsole prints lines to out and progress to bars, usually standard output and standard error. now is the clock.
// If bars is not a terminal, long work prints a line every 30 seconds instead of a bar.
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
		c.tty = term.IsTerminal(int(f.Fd()))
	}
	return c
}

// Terminal returns the columns of the terminal that shows the lines; 0 if they go to a file or a program.
func (c *Console) Terminal() int {
	if !c.tty {
		return 0
	}
	return max(c.width(), 1)
}

// Print writes text and, if missing, a final line feed.
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
	} else if c.bar != nil {
		c.bar.last = c.now() // a line shows progress too
	}
	return nil
}

// OnBroken registers a function that is called once when out can no longer be written, because its reader or terminal is
// gone. The console then drops lines, so that a run can still save its work. [Console.Err] returns the cause.
func (c *Console) OnBroken(broken func()) { c.broken = broken }

// Err returns why the console drops lines; nil if it does not.
func (c *Console) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Warn prints text next to the progress bar, because out may be data for a program. It ignores write errors.
func (c *Console) Warn(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	shown := c.clear()
	_, _ = io.WriteString(c.bars, strings.TrimSuffix(text, "\n")+"\n")
	if shown {
		c.bar.draw()
	}
}

// Stopping says that the run stops once the current work is finished. It can be called at any time.
func (c *Console) Stopping() {
	c.mu.Lock()
	text := "stopping"
	if b := c.bar; b != nil && b.work != "" {
		text = fmt.Sprintf("finishing step %d (%s)", b.done+1, strings.Fields(b.work)[0])
	}
	c.mu.Unlock()
	c.Warn(text + "; press Ctrl-C again to stop now")
}

// clear removes the bar from the screen and reports whether there was one.
func (c *Console) clear() bool {
	if !c.drawn {
		return false
	}
	c.drawn = false
	_, _ = io.WriteString(c.bars, clearLine)
	return true
}

// Bar shows the progress of one piece of work. A console shows one bar at a time.
type Bar struct {
	c             *Console
	label, unit   string
	first         int
	done, total   int
	note, work    string
	started, last time.Time
}

// Bar starts a bar of total units ("steps"), first of which an earlier run has done. It replaces any other bar.
// Printing progress never fails: write errors are ignored.
func (c *Console) Bar(label, unit string, first, total int) *Bar {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clear()
	now := c.now()
	b := &Bar{c: c, label: label, unit: unit, first: first, done: first, total: total, started: now, last: now}
	c.bar = b
	if c.width() > 0 && total > 0 {
		b.draw()
	}
	return b
}

// Set sets how many units are done. If there is room, the bar ends with note ("loss 0.31").
func (b *Bar) Set(done int, note string) {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	b.done, b.note, b.work = done, note, ""
	b.show(done >= b.total)
}

// Work sets what is being done for the next unit ("rollout 24/64 samples").
func (b *Bar) Work(text string) {
	b.c.mu.Lock()
	defer b.c.mu.Unlock()
	b.work = text
	b.show(false)
}

// show draws the bar, or prints its line, if it is due.
func (b *Bar) show(due bool) {
	if b.c.bar != b {
		return
	}
	now := b.c.now()
	if b.c.width() > 0 {
		if due || now.Sub(b.last) >= redrawEvery {
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

// Done removes the bar.
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

// parts returns the pieces of a progress line, the most important first.
func (b *Bar) parts(now time.Time) []string {
	percent := 100
	if b.total > 0 {
		percent = min(100, max(0, 100*b.done/b.total))
	}
	parts := []string{fmt.Sprintf("%s %3d%%", b.label, percent), Count(int64(b.done)) + "/" + Count(int64(b.total))}
	if b.total == 0 && b.work != "" { // no step is finished yet
		parts = []string{b.label}
	}
	if b.work != "" {
		parts = append(parts, b.work)
	}
	elapsed := now.Sub(b.started)
	if n := b.done - b.first; n > 0 && elapsed > 0 {
		rate := float64(n) / elapsed.Seconds()
		seconds := min(float64(max(0, b.total-b.done))/rate, 1e9) // a Duration overflows above 9e9 s
		left := time.Duration(seconds * float64(time.Second))
		parts = append(parts, rateText(rate, b.unit), "ETA "+Clock(left))
	}
	if b.note != "" {
		parts = append(parts, b.note)
	}
	return parts
}

// line fits the bar into width columns. The last column stays free: writing there makes some terminals wrap.
func (b *Bar) line(width int, now time.Time) string {
	const (
		gap     = "  "
		barLeft = 8 // the narrowest bar worth drawing
		barMost = 30
	)
	room := max(1, width-1)
	parts := b.parts(now)
	for len(parts) > 1 && utf8.RuneCountInString(strings.Join(parts, gap)) > room {
		parts = parts[:len(parts)-1]
	}
	free := room - utf8.RuneCountInString(strings.Join(parts, gap)) - len(gap) - len("[]")
	if free >= barLeft && (b.total > 0 || b.work == "") {
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

// rateText shows slow work as seconds per unit.
func rateText(rate float64, unit string) string {
	switch {
	case rate >= 100:
		return fmt.Sprintf("%.0f %s/s", rate, unit)
	case rate >= 1:
		return fmt.Sprintf("%.1f %s/s", rate, unit)
	}
	return fmt.Sprintf("%.1f s/%s", 1/rate, strings.TrimSuffix(unit, "s"))
}
