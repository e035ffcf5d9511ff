package decisions

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

func decisions(t testing.TB, name, text string, change func(*options)) ([]envs.Decision, []string, error) {
	t.Helper()
	path := must.File(t, name, text)
	o := &options{Dataset: path, TextColumn: "text", LabelColumn: "label", OnBadRow: dataset.OnBadRow{OnBadRow: "error"}}
	if change != nil {
		change(o)
	}
	var told []string
	all, err := o.Decisions(context.Background(), envs.Setup{Tell: func(line string) { told = append(told, line) }})
	return all, told, err
}

func TestAnswers(t *testing.T) {
	for _, test := range []struct {
		asks, answer string
		want         []float64
		feedback     *envs.Feedback
	}{
		{`"type":"noul"`, `true`, []float64{1, 0}, nil},
		{`"type":"noul"`, `"false"`, []float64{0, 1}, nil},
		{`"type":"noul"`, `0.25`, []float64{0.25, 0.75}, nil},
		{`"type":"noul"`, `{"false":1}`, []float64{0, 1}, nil},
		{`"type":"choice","criteria":{"a":null,"b":"x","c":null}`, `"b"`, []float64{0, 1, 0}, nil},
		{`"type":"choice","criteria":{"a":null,"b":"x","c":null}`, `{"a":0.5,"c":0.5}`, []float64{0.5, 0, 0.5}, nil},
		{`"type":"score","criteria":["low","mid","high"]`, `2`, []float64{0, 0, 1}, nil},
		{`"type":"score","criteria":["low","mid","high"]`, `[0.5,0.25,0.25]`, []float64{0.5, 0.25, 0.25}, nil},
		{`"type":"score","criteria":["low","high"]`, `{"0":1}`, []float64{1, 0}, nil},
		{`"type":"choice","criteria":{"a":null,"b":null}`, `{"chosen":"b","reward":1}`, nil, &envs.Feedback{Chosen: 1, Reward: 1, Probability: 0.5}},
		{`"type":"noul"`, `{"chosen":false,"reward":0.5,"probability":0.8}`, nil, &envs.Feedback{Chosen: 1, Reward: 0.5, Probability: 0.8}},
		{`"type":"choice","criteria":{"reward":null,"b":null}`, `{"reward":1}`, []float64{1, 0}, nil},
	} {
		all, _, err := decisions(t, "a.jsonl", `{"state":"s","questions":{"q":{`+test.asks+`,"answer":`+test.answer+`}}}`, nil)
		must.Do(t, err)
		diff := cmp.Diff(test.want, all[0].Target) + cmp.Diff(test.feedback, all[0].Feedback)
		expect.True(t, diff == "", "%s: %s", test.answer, diff)
	}
}

// TestFaultsAreJSON: every fault of every row is a line with file, line and field; other rows are kept.
func TestFaultsAreJSON(t *testing.T) {
	text := strings.Join([]string{
		`{"state":"good","questions":{"q":{"type":"noul","answer":true}}}`,
		`{"state":3,"questions":{"q":{"type":"noul","answer":true}}}`,
		`{"state":"x","questions":{"q":{"type":"noul"},"r":{"type":"choice","criteria":{"a":null},"answer":"z"},"s":{"type":"rank","answer":1}}}`,
		`{"state":"x","questions":{"q":{"type":"score","criteria":["a","b"],"answer":[0.5,0.6]}}}`,
		`{"questions":[]}`,
		`{"state":"x","questions":{"q":{"type":"noul","answer":{"chosen":true,"reward":2}}}}`,
		`{"state":{"also":"good"},"questions":{"q":{"type":"noul","answer":false},"r":{"type":"noul","answer":true}}}`,
	}, "\n")
	want := []string{"2 state", "3 questions.q.answer", "3 questions.r.answer", "3 questions.s", "4 questions.q.answer", "5 state", "5 questions", "6 questions.q.answer"}
	all, told, err := decisions(t, "a.jsonl", text, func(o *options) { o.OnBadRow.OnBadRow = "skip" })
	must.Do(t, err)
	expect.Equal(t, 3, len(all))
	var got []string
	for _, line := range told[:len(told)-1] {
		f := must.Into[Fault](t, json.Unmarshal, []byte(line))
		expect.True(t, filepath.Base(f.File) == "a.jsonl" && f.What != "", "%v", line)
		got = append(got, strings.Join([]string{string(rune('0' + f.Line)), f.Field}, " "))
	}
	expect.Equal(t, want, got)
	expect.True(t, all[1].Row == all[2].Row && all[0].Row != all[1].Row, "the questions of a row do not share it")
	_, _, err = decisions(t, "a.jsonl", text, nil)
	expect.Error(t, err, "a.jsonl:2", "state")
	_, _, err = decisions(t, "a.jsonl", `{"state":"a","split":"val","questions":{"q":{"type":"noul","answer":true}}}`+"\n"+`{"state":"b","questions":{"q":{"type":"noul","answer":true}}}`, nil)
	expect.Error(t, err, "split is set in 1 of 2 rows")
}

func TestFixedLabels(t *testing.T) {
	all, _, err := decisions(t, "a.csv", "text,label\nhello,greet\nbye,part\nhi,greet\n", func(o *options) { o.Instructions = "Which?" })
	must.Do(t, err)
	expect.Equal(t, []string{"greet", "part"}, all[1].Question.Options)
	expect.Equal(t, []float64{0, 1}, all[1].Target)
	expect.True(t, all[1].State == "bye" && all[1].Question.Instructions == "Which?" && all[1].Question.Name == "label", "%+v", all[1])
}

// FuzzRead: rows of any kind are questions whose targets are distributions, or faults with a place.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{
		`{"state":"s","questions":{"q":{"type":"choice","criteria":{"a":null,"b":1},"answer":{"a":0.3,"b":0.7}}}}`,
		`{"state":[],"questions":{"q":{"type":"score","criteria":["a"],"answer":0}},"split":"test"}`,
		`{"state":{},"questions":{"q":{"type":"noul","answer":{"chosen":true,"reward":1e-9,"probability":1}}}}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		value, err := dataset.Parse(text)
		fields, ok := value.(dataset.Object)
		if err != nil || !ok {
			return
		}
		all, faults := read(dataset.Record{File: "f", Line: 1, Fields: fields}, 0, true)
		expect.Require(t, (len(all) == 0) != (len(faults) == 0), "%d questions and %d faults", len(all), len(faults))
		for _, fault := range faults {
			expect.Require(t, fault.Field != "" && fault.What != "", "%v", fault)
		}
		for _, d := range all {
			sum := 0.0
			for _, p := range d.Target {
				sum += p
			}
			expect.Require(t, d.Feedback != nil || sum >= 1-1e-9 && sum <= 1+1e-9 && len(d.Target) == len(d.Question.Options), "target %v", d.Target)
		}
	})
}
