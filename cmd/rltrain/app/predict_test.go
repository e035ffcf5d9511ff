package app

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy/policytest"
	"github.com/rltrain/rltrain/torch/transformers"
)

func TestPredict(t *testing.T) {
	f := newFolders(t, transformers.PoolMean)
	var texts []string
	for i := range 100 { // more than three batches
		texts = append(texts, policytest.Words[i%13]+" "+policytest.Words[i%7]+" "+policytest.Words[i%5])
	}
	lines := func(out string) []string { return strings.Split(strings.TrimSuffix(out, "\n"), "\n") }
	answers := lines(f.must(t, strings.Join(texts, "\n")+"\n", "predict", "--model", "MODEL"))
	expect.Require(t, len(answers) == len(texts), "%d answers to %d texts", len(answers), len(texts))
	details := lines(f.must(t, strings.Join(texts, "\n"), "predict", "--model", "MODEL", "--json", "--top", "3"))
	distinct := map[string]bool{}
	for i, line := range details {
		var answer struct {
			Label       string
			Probability float64
			Top         []struct {
				Label       string
				Probability float64
			}
		}
		err := json.Unmarshal([]byte(line), &answer)
		expect.Require(t, err == nil, "line %d: %v", i+1, err)
		want := fmt.Sprintf("%s\t%.4f", answer.Label, answer.Probability)
		expect.True(t, answers[i] == want, "line %d is %q, with --json %q", i+1, answers[i], want)
		sum, last := 0.0, 1.0
		for _, s := range answer.Top {
			expect.True(t, s.Probability <= last, "line %d: labels out of order in %s", i+1, line)
			sum, last = sum+s.Probability, s.Probability
		}
		expect.True(t, len(answer.Top) == 3 && answer.Top[0].Label == answer.Label && math.Abs(sum-1) <= 1e-5, "line %d: %s", i+1, line)
		distinct[answers[i]] = true
	}
	expect.True(t, len(distinct) >= 10, "only %d different answers: order is not tested", len(distinct))
	// A line gives the same result by itself and in a batch.
	for _, i := range []int{0, 31, 32, 99} {
		alone := lines(f.must(t, texts[i], "predict", "--model", "MODEL"))
		expect.True(t, alone[0] == answers[i], "text %d by itself: %q, in a batch: %q", i, alone[0], answers[i])
	}
	expect.Same(t, "", f.must(t, "", "predict", "--model", "MODEL"), "no input")
}

// TestPredictFile classifies the rows of a file, as the lines of standard input.
func TestPredictFile(t *testing.T) {
	f := newFolders(t, transformers.PoolMean)
	var csv strings.Builder
	csv.WriteString("id;body;predicted\n")
	var lines []string
	for i := range 40 { // more than a batch
		text := policytest.Words[i%13] + " " + policytest.Words[i%7]
		if i == 5 {
			text = " "
		}
		lines = append(lines, text)
		fmt.Fprintf(&csv, "%d;%s;old\n", i, text)
	}
	f.write(t, "TMP/in.csv", csv.String())
	want := strings.Split(f.must(t, strings.Join(lines, "\n"), "predict", "--model", "MODEL"), "\n")
	f.must(t, "", "predict", "--model", "MODEL", "--input", "TMP/in.csv", "--text-column", "body", "--top", "2", "--output", "TMP/out.jsonl")
	n := 0
	for r, err := range dataset.Records(f.expand("TMP/out.jsonl")) {
		must.Do(t, err)
		data, err := json.Marshal(r.Fields)
		var row struct {
			ID, Body string
			predictedRow
		}
		must.Do(t, errors.Join(err, json.Unmarshal(data, &row)))
		switch {
		case row.ID != fmt.Sprint(n) || row.Body != lines[n]:
			t.Errorf("row %d: %s", n, data)
		case n == 5 && row.Predicted != nil:
			t.Errorf("a blank text got %s", data)
		case n != 5 && (len(row.Top) != 2 || !strings.HasPrefix(want[n], fmt.Sprintf("%s\t%.4f\t", *row.Predicted, *row.Probability)) && want[n] != fmt.Sprintf("%s\t%.4f", *row.Predicted, *row.Probability)):
			t.Errorf("row %d: %s, want %s", n, data, want[n])
		}
		n++
	}
	expect.Same(t, 40, n, "%d rows", n)
	for args, want := range map[string]string{
		"--input TMP/in.csv": `--text-column: TMP/in.csv:2: no column "text"; columns are "id", "body", "predicted"`,
		"--text-column body": "--text-column: needs --input FILE",
		"--output x":         "--output: needs --input FILE",
		"--input TMP/in.csv --text-column body --json": "--json: applies to lines",
	} {
		f.usage(t, want, append([]string{"predict", "--model", "MODEL"}, strings.Fields(args)...)...)
	}
}

func TestPredictLines(t *testing.T) {
	f := newFolders(t, transformers.PoolFamily)
	cat := f.must(t, "the cat", "predict", "--model", "MODEL")
	catJSON := f.must(t, "the cat", "predict", "--model", "MODEL", "--json")
	both := f.must(t, "the cat", "predict", "--model", "MODEL", "--top", "2")
	expect.True(t, strings.Count(both, "\t") == 3 && strings.HasPrefix(both, strings.TrimSuffix(cat, "\n")+"\t"), "--top 2 gives %q, one label is %q", both, cat)
	long := strings.Repeat("cat ", 11)
	for _, test := range []struct {
		name, stdin, args string
		code              int
		stdout, stderr    string
	}{
		{"blank lines", "the cat\n\n \t\nthe cat\n", "", 0, cat + "\n\n" + cat, ""},
		{"blank lines as JSON", "\nthe cat\n", "--json", 0, "null\n" + catJSON, ""},
		{"CRLF and byte order mark", "\ufeffthe cat\r\nthe cat\r\n", "", 0, cat + cat, ""},
		{"invalid UTF-8", "the cat\nthe \xff\nthe cat\n", "", 1, cat + "\n" + cat, "standard input, line 2: transformers: the text is not valid UTF-8 at byte 4\nrltrain: could not read 1 of 3 lines; they have blank predictions"},
		{"NUL", "the cat\n\nthe \x00cat\n", "", 1, cat + "\n\n", "standard input, line 3: transformers: the text has a NUL byte at byte 4\nrltrain: could not read 1 of 3 lines; they have blank predictions"},
		{"NUL in a later batch", strings.Repeat("the cat\n", 40) + "\x00\n", "", 1, strings.Repeat(cat, 40) + "\n", "standard input, line 41: transformers: the text has a NUL byte at byte 0\nrltrain: could not read 1 of 41 lines; they have blank predictions"},
		{"invalid UTF-8 as JSON", "\xff\nthe cat\n", "--json", 1, "null\n" + catJSON, "standard input, line 1: transformers: the text is not valid UTF-8 at byte 0\nrltrain: could not read 1 of 2 lines; they have blank predictions"},
		{"endless line", "the cat\n" + strings.Repeat("x", 3<<20) + "\nthe cat", "", 1, cat + "\n" + cat, "standard input, line 2: line is longer than 1048576 bytes\nrltrain: could not read 1 of 3 lines; they have blank predictions"},
		{"long text", long + "\nthe cat\n", "", 0, f.says(t, long, "predict", "--model", "MODEL") + cat,
			"truncated 1 of 2 texts to 12 tokens"},
	} {
		code, stdout, stderr := f.rltrain(test.stdin, append([]string{"predict", "--model", "MODEL"}, strings.Fields(test.args)...)...)
		if test.stderr != "" {
			test.stderr = "rltrain: " + test.stderr + "\n"
		}
		expect.True(t, code == test.code && stdout == test.stdout && stderr == test.stderr,
			"%s: exit code %d, want %d\n%s%s", test.name, code, test.code, cmp.Diff(test.stdout, stdout), cmp.Diff(test.stderr, stderr))
	}
}

// Each prediction is flushed before the next text is sent, as a program at the other end of two pipes needs. An interrupt stops
// the command while it waits for a line.
func TestPredictAnswersAtOnce(t *testing.T) {
	f := newFolders(t, transformers.PoolMean)
	ctx, cancel := context.WithCancelCause(t.Context())
	in, question := io.Pipe()
	defer question.Close()
	answers, out := io.Pipe()
	var stderr strings.Builder
	done := make(chan int)
	go func() {
		done <- Run(ctx, []string{"rltrain", "predict", "--model", f.model}, nil, in, out, &stderr)
	}()
	reader := bufio.NewReader(answers)
	for range 3 {
		must.Get(io.WriteString(question, "the cat\n"))(t)
		line, err := reader.ReadString('\n')
		expect.Require(t, err == nil && strings.Contains(line, "\t"), "answered %q, %v", line, err)
	}
	cancel(interrupted{syscall.SIGINT})
	code := <-done
	expect.True(t, code == 130 && stderr.String() == "rltrain: stopped by SIGINT\n", "exit code %d, error %q", code, stderr.String())
}

// closedPipe is a standard output whose reader has exited.
type closedPipe struct{}

func (closedPipe) Write([]byte) (int, error) { return 0, syscall.EPIPE }

func TestPredictEndsQuietlyWithItsReader(t *testing.T) {
	f := newFolders(t, transformers.PoolMean)
	var stderr strings.Builder
	code := Run(t.Context(), []string{"rltrain", "predict", "--model", f.model}, nil, strings.NewReader("the cat\n"), closedPipe{}, &stderr)
	expect.True(t, code == 0 && stderr.String() == "", "exit code %d, error %q", code, stderr.String())
}

// surest is the probability that predict gives the most likely label.
func surest(t *testing.T, f folders, text string) float64 {
	t.Helper()
	var answer struct{ Probability float64 }
	must.Do(t, json.Unmarshal([]byte(f.must(t, text, "predict", "--model", "MODEL", "--json")), &answer))
	return answer.Probability
}

func TestPredictRejects(t *testing.T) {
	f := newFolders(t, transformers.PoolMean)
	label, _, _ := strings.Cut(f.must(t, "the cat", "predict", "--model", "MODEL"), "\t")
	p := surest(t, f, "the cat")
	for _, test := range []struct {
		least    float64
		rejected bool
	}{{0, false}, {p - 1e-4, false}, {p + 1e-4, true}, {1, true}} {
		at := fmt.Sprint(test.least)
		want := fmt.Sprintf("%s\t%.4f\n", label, p)
		if test.rejected {
			want = fmt.Sprintf("%s\t%.4f\n", rejected, p)
		}
		expect.Same(t, want, f.must(t, "the cat", "predict", "--model", "MODEL", "--rejection", at), "--rejection %s", at)
		var answer prediction
		must.Do(t, json.Unmarshal([]byte(f.must(t, "the cat", "predict", "--model", "MODEL", "--json", "--rejection", at)), &answer))
		expect.True(t, answer.Rejected == test.rejected && answer.Label == label, "--rejection %s: %+v", at, answer)
	}
	for _, wrong := range []string{"1.5", "-0.1", "NaN"} {
		f.usage(t, "--rejection: ", "predict", "--model", "MODEL", "--rejection", wrong)
	}
}

func TestEvalOutOfScope(t *testing.T) {
	f := newFolders(t, transformers.PoolMean)
	texts := []string{"the cat", "a dog ?", "is the horse a cat", "the judge", "a court is the law", "light is a wave", "the force", "a wave"}
	rows := "text,label,split\n"
	var in, out [2][]rl.Sureness // of val, of test
	for i, text := range append(texts, texts...) {
		part := i / len(texts)
		label, kind := labels[i%len(labels)], &in[part]
		if i%len(texts)%4 == 3-part {
			label, kind = "other", &out[part]
		}
		rows += fmt.Sprintf("%s,%s,%s\n", text, label, []string{"val", "test"}[part])
		answer, _, _ := strings.Cut(f.must(t, text, "predict", "--model", "MODEL"), "\t")
		*kind = append(*kind, rl.Sureness{P: float32(surest(t, f, text)), Right: answer == label})
	}
	f.write(t, "TMP/scope.csv", rows)
	args := []string{"eval", "--model", "MODEL", "--dataset", "TMP/scope.csv", "--output-dir", "TMP/out"}
	threshold := must.Get(rl.RejectionThreshold(in[0], out[0]))(t)
	for _, test := range []struct {
		more      []string
		threshold float64
		chosen    string
	}{{nil, threshold, "val"}, {[]string{"--rejection", "0.36"}, 0.36, ""}} {
		printed := f.must(t, "", append(append(args, "--out-of-scope-label", "other"), test.more...)...)
		var results shared.LabelResults
		must.JSON(t, f.expand("TMP/out/logs/eval_results.json"), &results)
		want := must.Get(rl.MeasureOutOfScope(test.threshold, in[1], out[1]))(t)
		got := results.OutOfScope
		if got == nil || got.N != 2 || got.InScope != 6 || results.N != 6 || got.Chosen != test.chosen || got.Label != "other" ||
			math.Abs(got.Threshold-test.threshold) > 1e-6 || got.Recall != want.Recall || got.FalseAlarms != want.FalseAlarms || got.Accuracy != want.Accuracy || got.AUROC != want.AUROC {
			t.Errorf("%+v, want %+v", got, want)
		}
		expect.True(t, len(results.Selective) >= 2 && results.Selective[0].Accuracy == results.Accuracy, "selective accuracy %+v of %v", results.Selective, results.Accuracy)
		expect.Contains(t, printed, "2 texts out of scope (other)", "surest texts")
	}
	for _, test := range []struct{ more, want string }{
		{"--rejection 0.5", "needs --out-of-scope-label"},
		{"--out-of-scope-label other --rejection 2", "it must be 0 to 1"},
		{"--out-of-scope-label " + labels[0], "is a label of the model"},
		{"--out-of-scope-label nothing", `has 0 rows with label`},
		{"--out-of-scope-label other --split val", "pass --rejection"},
	} {
		f.usage(t, test.want, append(args, strings.Fields(test.more)...)...)
	}
}
