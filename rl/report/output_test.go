package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
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
	expect.Same(t, "sft 100%", b.line(80, time.t)[:8], "line of nothing to do")
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
	expect.Same(t, strings.Repeat("grpo  evaluation 40/200\n", 2), plain.String(), "lines in a minute")
}

// TestTableAlignment: numbers with their units stand on the right, texts that begin with a number on the left.
func TestTableAlignment(t *testing.T) {
	got := MarkdownTable([]string{"run", "time", "best completion"}, [][]string{
		{"a", "9 s", "1 correct: What is 94 + 49? 143"},
		{"b", "1 min 10 s", "0 wrong: I do not know what that is"},
	})
	expect.Same(t, "| --- | ---------: | ----------------------------------- |", strings.Split(got, "\n")[1], "rule in\n%s", got)
}

func TestMetricsLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "metrics.jsonl")
	m := must.Get(OpenLines(path, 0))(t)
	tenth, fifth := 0.1, 0.2 // added at run time, because the constant sum is exactly 0.3
	for _, row := range []Row{
		{"step": 1, "loss": tenth + fifth, "lr": 3e-5, "kl": float32(0.1), "tiny": 5e-324},
		{"step": int64(1) << 53, "nan": math.NaN(), "inf": math.Inf(-1), "nan32": float32(math.NaN())},
		{"z": "<a & \"b\">\n", "a": true, "m": nil},
		{},
	} {
		must.Do(t, m.Write(row))
	}
	offset := must.Get(m.Sync())(t)
	expect.Line(t, m.Write(Row{"fine": 1, "list": []int{1}}), path, `"list"`, "[]int")
	must.Do(t, m.Close())
	want := `{"kl":0.1,"loss":0.30000000000000004,"lr":0.00003,"step":1,"tiny":5e-324}
{"inf":null,"nan":null,"nan32":null,"step":9007199254740992}
{"a":true,"m":null,"z":"<a & \"b\">\n"}
{}
`
	expect.Equal(t, want, must.Read(t, path))
	expect.Same(t, int64(len(want)), offset, "offset %d of %d bytes", offset, len(want))
	read := must.Get(ReadMetrics(path))(t)
	wantRows := []Row{
		{"step": 1.0, "loss": tenth + fifth, "lr": 3e-5, "kl": 0.1, "tiny": 5e-324},
		{"step": float64(1 << 53), "nan": nil, "inf": nil, "nan32": nil},
		{"z": "<a & \"b\">\n", "a": true, "m": nil},
		{},
	}
	expect.Equal(t, wantRows, read)
}

func TestMetricsResume(t *testing.T) {
	path := filepath.Join(t.TempDir(), "metrics.jsonl")
	write := func(m Lines, steps ...int) int64 {
		t.Helper()
		for _, step := range steps {
			must.Do(t, m.Write(Row{"step": step}))
		}
		return must.Get(m.Sync())(t)
	}
	m := must.Get(OpenLines(path, 0))(t)
	offset := write(m, 1, 2)
	write(m, 3)
	m.Close()
	file := must.Get(os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0))(t)
	if _, err := file.WriteString(`{"step`); err != nil { // a kill in the middle of a line
		t.Fatal(err)
	}
	file.Close()

	m = must.Get(OpenLines(path, offset))(t)
	end := write(m, 3, 4)
	m.Close()
	want := "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n{\"step\":4}\n"
	got := must.Read(t, path)
	expect.True(t, got == want && end == int64(len(want)), "%q, offset %d; want %q", got, end, want)

	_, err := OpenLines(path, end+1)
	expect.Line(t, err, path, "44 bytes", "byte 45")
	_, err = OpenLines(path, end-1)
	expect.Line(t, err, path, "not the end of a line")
	_, err = OpenLines(path+"x", 1)
	expect.Line(t, err, path+"x")
	expect.Same(t, want, must.Read(t, path), "an error changed the file")
}

func TestReadMetricsErrors(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"{}\n{\"a\":}\n", "line 2: "},
		{"{}\n\n", "line 2: incomplete JSON object"},
		{"{\"a\":1\n{}\n", "line 1: incomplete JSON object"},
		{"null\n", "line 1: want a JSON object, got null"},
		{"[1]\n", "line 1: "},
		{"{} {}\n", "line 1: text after the JSON object"},
		{"{\"a\":[1]}\n", `line 1: metric "a"`},
		{"{\"a\":1e999}\n", "line 1: "},
	} {
		path := filepath.Join(t.TempDir(), "metrics.jsonl")
		must.Write(t, path, test.text)
		_, err := ReadMetrics(path)
		expect.Line(t, err, path+": "+test.want)
	}
	expect.Equal(t, []Row{{"a": 1.0}}, must.Get(parseMetrics([]byte("{\"a\":1}\n{\"a\":2")))(t), "a line being written")
}

func FuzzParseMetrics(f *testing.F) {
	f.Add([]byte("{\"step\":1,\"loss\":0.5,\"note\":\"x\",\"ok\":true,\"nan\":null}\n{}\n"))
	f.Add([]byte("{\"a\":1}\n{\"a\":"))
	f.Add([]byte("null\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		rows, err := parseMetrics(data)
		if err != nil {
			return
		}
		expect.Require(t, len(rows) == bytes.Count(data, []byte("\n")), "%d rows from %q", len(rows), data)
		var again []byte
		for _, row := range rows {
			line := must.Get(files.EncodeLine(row))(t)
			expect.Require(t, json.Valid(line), "wrote %q", line)
			again = append(append(again, line...), '\n')
		}
		back := must.Get(parseMetrics(again))(t)
		diff := cmp.Diff(rows, back)
		expect.Require(t, diff == "", "%v", diff)
	})
}

func TestNumbers(t *testing.T) {
	rows := []Row{{"x": 1, "y": 2.0}, {"x": 2.0}, {"x": int64(3), "y": math.NaN()}, {"x": "4", "y": 1.0}, {"x": 5.0, "y": float32(0.5)}}
	x, y := Numbers(rows, "x", "y")
	expect.Equal(t, [][]float64{{1, 5}, {2, 0.5}}, [][]float64{x, y})
}

func TestStepLine(t *testing.T) {
	rollout := Row{
		"reward": 0.481, "reward_stderr": 0.03, "loss": 0.01, "accuracy": 0.36, "kl/k3": 0.0213, "completions/mean_length": 12.2,
		"completions/clipped_ratio": 0.0, "time/step": 12.13,
	}
	at := Progress{Stage: "reinforce", Done: 4, Total: 60, Left: 680 * time.Second}
	for name, test := range map[string]struct {
		progress Progress
		row      Row
		width    int
		want     string
	}{
		"rollout":     {at, rollout, 0, "reinforce  4/60  reward 0.48 ±0.03  sampled acc 36 %  kl 0.021  len 12  12.1 s/step  ETA 11:20"},
		"narrow":      {at, rollout, 60, "reinforce  4/60  reward 0.48 ±0.03  12.1 s/step  ETA 11:20"},
		"very narrow": {at, rollout, 10, "reinforce  4/60  reward 0.48 ±0.03  12.1 s/step  ETA 11:20"},
		"supervised": {
			Progress{Stage: "supervised", Done: 100, Total: 100}, Row{"loss": 0.5, "accuracy": 1.0, "time/step": 0.0123}, 80,
			"supervised 100/100  loss 0.500  acc 100 %  0.012 s/step",
		},
		"preferences": {
			Progress{Stage: "dpo", Done: 1, Total: 2}, Row{"loss": 0.5, "rewards/margins": 1.5, "rewards/accuracies": 0.75}, 80,
			"dpo 1/2  loss 0.500  acc 75 %  margin 1.50",
		},
		"answer format": {
			at, Row{"reward": -1.0, "format_rate": 0.5, "completions/clipped_ratio": 0.25}, 0,
			"reinforce  4/60  reward -1.00  format 50 %  truncated 25 %  ETA 11:20",
		},
		"evaluation": {at, Row{"step": 4, "eval_accuracy": 0.5}, 0, ""},
	} {
		expect.Equal(t, test.want, StepLine(test.progress, test.row, test.width), name)
	}
}

func TestRowLine(t *testing.T) {
	expect.Same(t, "loss=0.5123 reward=1", RowLine(Row{"loss": 0.51234, "time/step": 1.0, "reward": 1.0, "text": "x"}), "RowLine")
}

func TestTracked(t *testing.T) {
	got := Tracked(Row{"step": 3, "policy_version": uint64(2), "eval_accuracy/long": 0.5, "rewards/a/mean": 1.0, "note": "x"})
	expect.Equal(t, map[string]float64{"train/global_step": 3, "train/policy_version": 2, "eval/accuracy/long": 0.5, "train/rewards/a/mean": 1}, got)
}
