package report

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// clock is a manual clock.
type clock struct{ t time.Time }

func (c *clock) now() time.Time          { return c.t }
func (c *clock) advance(d time.Duration) { c.t = c.t.Add(d) }

func newClock() *clock { return &clock{time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)} }

// screen is a console on one terminal, width columns wide.
func screen(width int) (*Console, *bytes.Buffer, *clock) {
	var buf bytes.Buffer
	time := newClock()
	c := NewConsole(&buf, &buf, time.now)
	c.width = func() int { return width }
	return c, &buf, time
}

// visible replays the output as a terminal would show it: the finished lines, and the text of the progress line.
func visible(t *testing.T, out string) []string {
	t.Helper()
	var lines []string
	line := ""
	for len(out) > 0 {
		switch {
		case strings.HasPrefix(out, clearLine):
			line, out = "", out[len(clearLine):]
		case out[0] == '\n':
			lines, line, out = append(lines, line), "", out[1:]
		case out[0] == '\r' || out[0] == '\x1b':
			t.Fatalf("unknown control sequence at %q", out)
		default:
			line, out = line+out[:1], out[1:]
		}
	}
	return append(lines, line)
}

func TestBarAndLogLines(t *testing.T) {
	c, buf, time := screen(90)
	bar := c.Bar("supervised", "steps", 0, 1000)
	step := func(done int) {
		time.advance(2e9)
		bar.Set(done, "loss 0.31")
	}
	step(100)
	must.Do(t, c.Print("epoch 1 begins\n"))
	want := []string{"epoch 1 begins", "supervised  10%  [==" + strings.Repeat(" ", 22) + "]  100/1,000  50.0 steps/s  ETA 0:18  loss 0.31"}
	expect.Equal(t, want, visible(t, buf.String()))
	step(1000)
	bar.Done()
	bar.Done()
	bar.Set(1000, "") // a late report must not redraw it
	must.Do(t, c.Print("end\n"))
	expect.Equal(t, []string{"epoch 1 begins", "end", ""}, visible(t, buf.String()))
}

func TestBarFitsItsTerminal(t *testing.T) {
	time := newClock()
	for width := 1; width <= 140; width++ {
		c, _, _ := screen(width)
		b := &Bar{c: c, label: "rl", unit: "updates", done: 30, total: 120, note: "reward 0.71", started: time.t}
		line := b.line(width, time.t.Add(60e9))
		expect.True(t, len(line) <= max(1, width-1), "%d columns: %q", width, line)
	}
	for _, test := range []struct {
		width int
		want  string
	}{
		{100, "rl  25%  [=======                       ]  30/120  2.0 s/update  ETA 3:00  reward 0.71"},
		{55, "rl  25%  30/120  2.0 s/update  ETA 3:00  reward 0.71"},
		{52, "rl  25%  [==      ]  30/120  2.0 s/update  ETA 3:00"},
		{18, "rl  25%  30/120"},
		{8, "rl  25%"},
		{5, "rl  "},
	} {
		b := &Bar{label: "rl", unit: "updates", done: 30, total: 120, note: "reward 0.71", started: time.t}
		expect.Same(t, test.want, b.line(test.width, time.t.Add(60e9)), "width %d", test.width)
	}
}

func TestBarRedrawRateIsBounded(t *testing.T) {
	c, buf, time := screen(80)
	bar := c.Bar("sft", "steps", 0, 100000)
	for i := range 10000 {
		time.advance(1e6)
		bar.Set(i, "")
	}
	n := strings.Count(buf.String(), clearLine)
	expect.True(t, n >= 90 && n <= 110, "redrawn %d times in 10 seconds", n)
}

func TestBarOfResumedWork(t *testing.T) {
	time := newClock()
	b := &Bar{label: "sft", unit: "steps", first: 900, done: 950, total: 1000, started: time.t}
	got := strings.Join(b.parts(time.t.Add(10e9)), " | ")
	expect.Same(t, "sft  95% | 950/1,000 | 5.0 steps/s | ETA 0:10", got, "got")
	b = &Bar{label: "sft", unit: "steps", started: time.t} // nothing to do
	if got := b.line(80, time.t); !strings.HasPrefix(got, "sft 100%") {
		t.Errorf("%q", got)
	}
}

func TestProgressWithoutATerminal(t *testing.T) {
	var buf bytes.Buffer
	time := newClock()
	c := NewConsole(&buf, &buf, time.now)
	bar := c.Bar("supervised", "steps", 0, 400)
	for i := range 100 {
		time.advance(1e9)
		bar.Set(i+1, "loss 0.5")
	}
	bar.Done()
	want := `supervised   7%  30/400  1.0 steps/s  ETA 6:10  loss 0.5
supervised  15%  60/400  1.0 steps/s  ETA 5:40  loss 0.5
supervised  22%  90/400  1.0 steps/s  ETA 5:10  loss 0.5
`
	expect.Equal(t, want, buf.String())
}

func TestHeader(t *testing.T) {
	golden(t, "header.txt", Header{
		Task: "intent", Stage: "supervised", Model: "sentence-transformers/all-MiniLM-L6-v2",
		Total: 23_000_000, Trainable: 1_327_104, Device: "cpu", Threads: 1,
		Data: "built in", Splits: []Split{{"train", 2100}, {"validation", 450}, {"test", 450}},
		Output: "models/intent_classifier_supervised",
	}.String())
}

func TestTables(t *testing.T) {
	headers := []string{"stage", "accuracy", "Δ", "note"}
	rows := [][]string{
		{"supervised", "0.8123", "-", "a|b"},
		{"supervised, then rl", "0.9", "+0.0877", ""},
		{"naïve", "-"},
	}
	golden(t, "table.txt", RenderTable(headers, rows))
	golden(t, "table.md", MarkdownTable(headers, rows))
}

func TestFormats(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 1327104: "1,327,104", -12345: "-12,345", 123456: "123,456"} {
		expect.Same(t, want, Count(n), "Count(%d)", n)
	}
	for _, test := range []struct {
		d     time.Duration
		long  string
		clock string
	}{
		{0, "0 ms", "0:00"},
		{12345 * time.Microsecond, "12 ms", "0:00"},
		{999600 * time.Microsecond, "1.0 s", "0:01"},
		{4230 * time.Millisecond, "4.2 s", "0:04"},
		{59960 * time.Millisecond, "1 min 00 s", "1:00"},
		{185 * time.Second, "3 min 05 s", "3:05"},
		{59*time.Minute + 59700*time.Millisecond, "1 h 00 min", "1:00:00"},
		{62 * time.Minute, "1 h 02 min", "1:02:00"},
		{49 * time.Hour, "49 h 00 min", "49:00:00"},
		{-2 * time.Second, "-2.0 s", "0:00"},
		{5000 * time.Hour, "5000 h 00 min", "?"},
	} {
		expect.Same(t, test.long, Duration(test.d), "Duration(%v)", test.d)
		expect.Same(t, test.clock, Clock(test.d), "Clock(%v)", test.d)
	}
}

// TestBrokenConsole drops lines that cannot be written, warns once, and keeps the reason.
func TestBrokenConsole(t *testing.T) {
	c := NewConsole(brokenWriter{}, io.Discard, time.Now)
	expect.Line(t, c.Print("x"), "closed pipe")
	told := 0
	c.OnBroken(func() { told++ })
	for range 2 {
		expect.NoError(t, c.Print("x"), "printing")
	}
	expect.True(t, told == 1 && errors.Is(c.Err(), io.ErrClosedPipe), "warned %d times, error %v", told, c.Err())
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// TestWorkWithinAStep shows what a step is doing, at a bounded pace, on a terminal and elsewhere, and says it when the run is
// stopped.
func TestWorkWithinAStep(t *testing.T) {
	c, buf, time := screen(80)
	bar := c.Bar("grpo", "steps", 0, 0)
	c.Stopping()
	time.advance(1e9)
	bar.Work("rollout 1/64 samples")
	bar.Work("rollout 2/64 samples") // too soon
	time.advance(1e9)
	bar.Work("rollout 24/64 samples, 310 tokens/s")
	c.Stopping()
	want := []string{"stopping; press Ctrl-C again to stop now", "finishing step 1 (rollout); press Ctrl-C again to stop now", "grpo  rollout 24/64 samples, 310 tokens/s"}
	expect.Equal(t, want, visible(t, buf.String()))
	bar = c.Bar("grpo", "steps", 1, 30)
	time.advance(1e9)
	bar.Work("update 3/8 micro-batches")
	got := bar.line(80, time.t)
	expect.True(t, strings.Contains(got, "  1/30  update 3/8 micro-batches"), "%q", got)

	var plain bytes.Buffer
	c = NewConsole(io.Discard, &plain, time.now)
	bar = c.Bar("grpo", "steps", 0, 0)
	for range 60 {
		time.advance(1e9)
		bar.Work("evaluation 40/200")
	}
	if got := plain.String(); got != strings.Repeat("grpo  evaluation 40/200\n", 2) {
		t.Errorf("%q in a minute", got)
	}
}

// TestTableAlignment: numbers with their units stand on the right, texts that begin with a number on the left.
func TestTableAlignment(t *testing.T) {
	got := MarkdownTable([]string{"run", "time", "best completion"}, [][]string{
		{"a", "9 s", "1 correct: What is 94 + 49? 143"},
		{"b", "1 min 10 s", "0 wrong: I do not know what that is"},
	})
	expect.Same(t, "| --- | ---------: | ----------------------------------- |", strings.Split(got, "\n")[1], "rule in\n%s", got)
}
