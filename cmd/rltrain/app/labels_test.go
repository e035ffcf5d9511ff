package app

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/policy/policytest"
	"github.com/rltrain/rltrain/torch/torchtest"
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
	var texts []string
	for i := range 40 { // more than a batch
		text := policytest.Words[i%13] + " " + policytest.Words[i%7]
		if i == 5 {
			text = " "
		}
		texts = append(texts, text)
		fmt.Fprintf(&csv, "%d;%s;old\n", i, text)
	}
	f.write(t, "TMP/in.csv", csv.String())
	want := strings.Split(f.must(t, strings.Join(texts, "\n"), "predict", "--model", "MODEL"), "\n")
	f.must(t, "", "predict", "--model", "MODEL", "--input", "TMP/in.csv", "--text-column", "body", "--top", "2", "--output", "TMP/out.jsonl")
	type answered struct {
		ID, Body string
		predictedRow
	}
	rows := lines[answered](t, f.expand("TMP/out.jsonl"))
	expect.Same(t, 40, len(rows), "rows")
	for n, row := range rows {
		switch {
		case row.ID != fmt.Sprint(n) || row.Body != texts[n]:
			t.Errorf("row %d: %+v", n, row)
		case n == 5 && row.Predicted != nil:
			t.Errorf("a blank text got %+v", row)
		case n != 5 && (len(row.Top) != 2 || !strings.HasPrefix(want[n], fmt.Sprintf("%s\t%.4f\t", *row.Predicted, *row.Probability)) && want[n] != fmt.Sprintf("%s\t%.4f", *row.Predicted, *row.Probability)):
			t.Errorf("row %d: %+v, want %s", n, row, want[n])
		}
	}
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
	answer := must.Into[struct{ Probability float64 }](t, json.Unmarshal, []byte(f.must(t, text, "predict", "--model", "MODEL", "--json")))
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
		answer := must.Into[prediction](t, json.Unmarshal, []byte(f.must(t, "the cat", "predict", "--model", "MODEL", "--json", "--rejection", at)))
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
		results := must.JSON[shared.LabelResults](t, f.expand("TMP/out/logs/eval_results.json"))
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

// letters writes rows whose first letter determines the label.
func (f folders) letters(t *testing.T, name string) {
	t.Helper()
	text := "text,label,split\n"
	for i := range 60 {
		label := []string{"low", "lower", "high"}[i%3]
		text += fmt.Sprintf("%c %c%c cat,%s,%s\n", "adg"[i%3], 'a'+i%26, 'a'+i*7%26, label, []string{"train", "train", "train", "val", "test"}[i%5])
	}
	f.write(t, name, text)
}

// TestText trains each kind of policy from an untrained model, then uses the result.
func TestText(t *testing.T) {
	torchtest.NoLeaks(t)
	f := newFolders(t, transformers.PoolMean)
	must.Do(t, policy.TinyModel(f.expand("TMP/lm"), 1, 32, 1))
	f.letters(t, "TMP/rows.csv")
	few := strings.Fields("--task text --dataset TMP/rows.csv --rl-episodes 3 --eval-every 2 --buffer-size 24 --samples-per-prompt 2 --rl-batch-size 12 --threads 1")
	for _, test := range []struct {
		name, algorithm, options, pooling, log string
	}{
		{"encoder", "dqn", "--model BASE --policy head --pooling mean --algorithm dqn --labels lower,high,low", transformers.PoolMean, "DQN Update: td_loss="},
		{"encoder as its family", "grpo", "--model BASE --policy head --pooling family --algorithm grpo", transformers.PoolFamily, "GRPO Episode 3/3"},
		{"last token", "a2c", "--model TMP/lm --policy head --algorithm a2c", policy.PoolLast, "A2C Episode 3/3"},
		{"scored", "ppo", "--model TMP/lm --policy score --algorithm ppo --labels lower,high,low --prompt-template {labels}?{text}=", policy.PoolScore, `"lower" or "high" or "low"?`},
		{"scored, usual prompt", "grpo", "--model TMP/lm --policy score", policy.PoolScore, `Classify the following text as "high" or "low" or "lower".`},
	} {
		t.Run(test.name, func(t *testing.T) {
			out := "TMP/" + strings.ReplaceAll(test.name, " ", "_")
			options := slices.Concat(few, strings.Fields(test.options), []string{"--output-dir", out})
			f.says(t, "", options...)
			found := must.Get(filepath.Glob(f.expand(out) + "/classification_" + test.algorithm + "_*"))(t)
			expect.Require(t, len(found) == 1, "%d folders of %s in %s", len(found), test.algorithm, out)
			dir := found[0]
			p, err := policy.ReadClassifier(dir)
			labels := []string{"high", "low", "lower"}
			if strings.Contains(test.options, "--labels") {
				labels = []string{"lower", "high", "low"}
			}
			expect.Require(t, err == nil && p.Pooling == test.pooling && slices.Equal(p.Labels, labels), "pooling %q, labels %q: %v", p.Pooling, p.Labels, err)
			for _, name := range []string{"training_curves.png", "README.md", "adapter_model.safetensors", "checkpoints/checkpoint-2"} {
				must.Get(os.Stat(filepath.Join(dir, name)))(t)
			}
			log := must.Read(t, filepath.Join(dir, "logs", "training_log.txt"))
			expect.True(t, strings.Contains(log, test.log), "no %q in\n%s", test.log, log)
			results := must.JSON[struct {
				N        int
				Accuracy float64
			}](t, filepath.Join(dir, "logs", "eval_results.json"))
			expect.Same(t, 12, results.N, "measured on %d rows, want the 12 test rows", results.N)
			// eval reproduces the training metrics and agrees with predict.
			f.must(t, "", "eval", "--task", "text", "--model", dir, "--dataset", "TMP/rows.csv", "--output-dir", "TMP/eval")
			again := must.JSON[shared.LabelResults](t, f.expand("TMP/eval/logs/eval_results.json"))
			expect.Same(t, results.Accuracy, again.Accuracy, "eval finds %v, the run %v", again.Accuracy, results.Accuracy)
			label, _, _ := strings.Cut(f.must(t, "a cat\n", "predict", "--model", dir), "\t")
			expect.True(t, slices.Contains(p.Labels, label), "predicted %q", label)
			// Training continues from the result, with the same kind of policy only.
			more := slices.Concat(few, strings.Fields("--algorithm ppo --policy "+map[bool]string{true: "score", false: "head"}[test.pooling == policy.PoolScore]),
				[]string{"--rl-episodes", "1", "--pretrained-model", dir, "--output-dir", out + "_more"})
			more = drop(more, "--rl-episodes")
			f.says(t, "", append(more, "--rl-episodes", "1")...)
			more[slices.Index(more, "--policy")+1] = map[bool]string{false: "score", true: "head"}[test.pooling == policy.PoolScore]
			f.refused(t, "reads texts in another way", append(more, "--rl-episodes", "1")...)
		})
	}
}

func TestTextRefuses(t *testing.T) {
	torchtest.NoLeaks(t)
	f := newFolders(t, transformers.PoolMean)
	must.Do(t, policy.TinyModel(f.expand("TMP/lm"), 1, 32, 1))
	f.letters(t, "TMP/rows.csv")
	f.write(t, "TMP/mark.csv", "text,label,split\na b,art,train\nc d,x{text},val\ne f,law,test\n")
	for _, test := range []struct{ options, want string }{
		{"--policy score", "--policy: score needs a language model: name one with --model"},
		{"--policy score --model BASE --dataset TMP/rows.csv", "is an encoder"},
		{"--policy score --model tiny", "tiny generates labels: use --policy generate"},
		{"--policy head --model TMP/lm --pooling mean --dataset TMP/rows.csv", "is for encoders"},
		{"--policy generate --model TMP/lm --dataset TMP/rows.csv --max-new-tokens 2 --eval-samples 10", `the label "high" has`},
		{"--model BASE --policy head --dataset TMP/mark.csv", "the placeholder for the text"},
		{"--model BASE --policy head --dataset TMP/rows.csv --labels low,high", `label "lower" is not one of`},
		{"--policy score --model TMP/lm --dataset TMP/rows.csv --prompt-template what", "has no {text}"},
		{"--policy head --model BASE --dataset TMP/rows.csv --prompt-template {text}", "applies only with --policy generate or score"},
	} {
		f.refused(t, test.want, append(strings.Fields("--task text --output-dir TMP/out --threads 1"), strings.Fields(test.options)...)...)
		_, err := os.Stat(f.expand("TMP/out"))
		expect.Require(t, err != nil, "%s: a folder was made", test.options)
	}
}

// TestDecisions trains a small chat model on questions of all types, and then answers and measures with it.
func TestDecisions(t *testing.T) {
	torchtest.NoLeaks(t)
	f := folders{tmp: t.TempDir()}
	must.Do(t, policy.TinyChatModel(f.expand("TMP/model"), 1, 32, 1))
	f.rows(t, "TMP/rows.jsonl", 40, func(i int) string {
		colour := []string{"red", "blue"}[i%2]
		return fmt.Sprintf(`{"state":{"ball":%q,"n":%d},"questions":{"which":{"type":"choice","criteria":{"red":null,"blue":null},"answer":%q},"red":{"type":"noul","answer":%t},"many":{"type":"score","criteria":["none","one","two"],"answer":%d}}}`,
			colour, i, colour, i%2 == 0, i%3)
	})
	f.write(t, "TMP/costs.json", `{"red":{"blue":10},"*":{"abstain":0.4}}`)
	f.says(t, "", strings.Fields("train --task decisions --model TMP/model --dataset TMP/rows.jsonl --mode supervised_then_rl --max-steps 2 --batch-size 4 --rl-episodes 2 --buffer-size 12 "+
		"--rl-batch-size 12 --eval-every 1 --threads 1 --output-dir TMP/out")...)
	dir := f.expand("TMP/out/decisions_rl")
	settings := must.JSON[struct{ Temperature map[string]float64 }](t, filepath.Join(dir, "decision.json"))
	expect.True(t, len(settings.Temperature) == 3 && strings.Contains(must.Read(t, filepath.Join(dir, "decision_template.jinja")), "question.options"), "decision.json %v", settings)
	// A bad row keeps its place and says what is wrong; the others are answered.
	f.write(t, "TMP/asked.jsonl", `{"state":"a","questions":{"q":{"type":"score","criteria":["x","y"]}},"id":7}`+"\n"+
		`{"state":"a","questions":{"q":{"type":"rank"}}}`+"\n"+`{"state":["b"],"questions":{"p":{"type":"noul"},"q":{"type":"choice","criteria":{"x":null}}}}`+"\n")
	code, out, errs := f.rltrain("", "predict", "--model", dir, "--input", "TMP/asked.jsonl", "--threads", "1")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	expect.Require(t, code == 1 && len(lines) == 3 && strings.Contains(errs, "1 rows could not be answered"), "exit code %d, %d lines, %s", code, len(lines), errs)
	first := must.Into[struct {
		ID      int
		Answers map[string]struct{ Probabilities map[string]float64 }
	}](t, json.Unmarshal, []byte(lines[0]))
	p := first.Answers["q"].Probabilities
	expect.True(t, first.ID == 7 && math.Abs(p["0"]+p["1"]-1) <= 1e-6, "answers %s", lines[0])
	expect.True(t, strings.Contains(lines[1], `"errors":[{"file":`) && strings.Contains(lines[1], `"line":2,"field":"questions.q"`), "errors %s", lines[1])
	out = f.must(t, "", strings.Fields("eval --task decisions --model TMP/out/decisions_rl --dataset TMP/rows.jsonl --cost TMP/costs.json --threads 1")...)
	expect.Contains(t, out, "question which", "Brier", "ranked", "answered", "Cost of the cheapest expected answer", "rejection below", "risk_coverage.png")
	f.refused(t, "none.json", strings.Fields("train --task decisions --model TMP/model --dataset TMP/rows.jsonl --policy head --mode rl_only --reward cost:TMP/none.json --output-dir TMP/o2")...)
}
