package report

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

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
	got := must.Read(t, path)
	expect.Equal(t, want, got)
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
			line := must.Get(encodeJSON(row))(t)
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
	want := map[string]float64{"train/global_step": 3, "train/policy_version": 2, "eval/accuracy/long": 0.5, "train/rewards/a/mean": 1}
	expect.Equal(t, want, got)
}
