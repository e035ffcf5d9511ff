package text

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/answer/hacks"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

func TestBuiltin(t *testing.T) {
	rows := Builtin()
	counts, seen := map[string]int{}, map[string]bool{}
	for _, r := range rows {
		counts[r.Label]++
		expect.True(t, !seen[r.Text] && r.Text == strings.TrimSpace(r.Text) && len(strings.Fields(r.Text)) >= 4, "%s:%d: %q is a duplicate, or not a sentence", r.File, r.Line, r.Text)
		seen[r.Text] = true
	}
	expect.Equal(t, map[string]int{"positive": 155, "negative": 155}, counts)
	for class, label := range []string{"negative", "positive"} {
		var own []dataset.Row
		for _, r := range rows {
			if r.Label == label {
				own = append(own, r)
			}
		}
		want := slices.Clone(own)
		dataset.Rank(want, class)
		expect.Equal(t, want, own, label)
	}
}

// find names a file as a data set of one part.
func find(path string) envs.Setup {
	return envs.Setup{Seed: 1, Find: func(context.Context, string, string, ...string) ([]dataset.Part, error) {
		return []dataset.Part{{Files: []string{path}}}, nil
	}}
}

// TestColumnOfLabels: a column is no label if more than nine of ten values differ.
func TestColumnOfLabels(t *testing.T) {
	for _, distinct := range []int{8, 9, 10} {
		path, rows := filepath.Join(t.TempDir(), "rows.csv"), "text,label\n"
		for i := range 10 {
			rows += fmt.Sprintf("text %d,label %d\n", i, min(i, distinct-1))
		}
		must.Do(t, os.WriteFile(path, []byte(rows), 0o644))
		o := envs.LabelledRows{Dataset: path, TextColumn: "text", LabelColumn: "label"}
		_, err := o.Rows(t.Context(), find(path))
		expect.True(t, (err == nil) == (distinct < 10), "%d labels of 10 rows: %v", distinct, err)
	}
}

func TestCustomLabels(t *testing.T) {
	rows := "text,label\na b,art\nc d,art history\ne f,art\ng h,art history\n"
	for _, test := range []struct {
		rows   string
		labels []string
		wrong  string
	}{
		{rows, nil, ""},
		{rows, []string{"art history", "art"}, ""},
		{rows, []string{"art"}, `"art" is the only label`},
		{rows, []string{"art", "Art "}, "differ only in case or spaces"},
		{rows, []string{"art", " "}, "is empty"},
		{rows, []string{"art", "a\nb"}, "more than one line"},
		{rows, []string{"art", "art history", "law"}, `label "law" has no row`},
		{rows, []string{"art", "law"}, "label \"art history\" is not one of"},
		{"text,label\na b,art\nc d,Art\n", nil, "differ only in case or spaces"},
		{"text,label\na b,art\nc d,art\n", nil, "training needs at least two labels"},
	} {
		path := must.File(t, "rows.csv", test.rows)
		o := &options{LabelledRows: envs.LabelledRows{Dataset: path, TextColumn: "text", LabelColumn: "label"}, Labels: test.labels}
		err := o.Check()
		if err == nil {
			_, err = o.Rows(t.Context(), find(path))
		}
		expect.True(t, (err == nil) == (test.wrong == "") && (err == nil || strings.Contains(err.Error(), test.wrong)), "labels %q: error %v, want %q", test.labels, err, test.wrong)
	}
	o := &options{LabelledRows: envs.LabelledRows{TextColumn: "text", LabelColumn: "label"}, Template: "what?"}
	expect.Error(t, o.Check(), "{text}")
}

func TestSeveralLabelsOfARow(t *testing.T) {
	path := must.File(t, "rows.jsonl", `{"text":"a","label":"x"}`+"\n"+`{"text":"b","label":["x","y"]}`+"\n")
	o := &options{LabelledRows: envs.LabelledRows{Dataset: path, TextColumn: "text", LabelColumn: "label"}}
	expect.Failure(o.Rows(t.Context(), find(path)))(t, "rows.jsonl:2", "want one label")
}

func TestEpisodes(t *testing.T) {
	ctx := t.Context()
	for _, asText := range []bool{true, false} {
		made := must.Get((&options{}).Task(envs.Setup{Seed: 1, Text: asText}))(t)
		expect.Same(t, 310, made.Len(envs.Train)+made.Len(envs.Eval), "%d and %d rows", made.Len(envs.Train), made.Len(envs.Eval))
		e := must.Get(made.Episode(envs.Train, 3))(t)
		row := e.(*episode).row
		expect.Same(t, map[bool]string{true: " " + row.Label, false: row.Label}[asText], e.(envs.Demonstrator).Solution(), "solution")
		for _, test := range []struct {
			answer string
			info   envs.Info
		}{
			{" " + row.Label + "\n", envs.Info{Correct: true, FormatOK: true, FoundBy: "label", Answer: row.Label, Truth: row.Label}},
			{"\n" + strings.ToUpper(row.Label) + " \nbecause", envs.Info{Correct: true, FormatOK: true, FoundBy: "label", Answer: row.Label, Truth: row.Label}},
			{"It is " + row.Label + ".", envs.Info{Correct: true, FoundBy: "mention", Answer: row.Label, Truth: row.Label}},
			{"negative or positive", envs.Info{FoundBy: "none", Truth: row.Label}},
			{"", envs.Info{FoundBy: "none", Truth: row.Label}},
		} {
			shown := must.Get(e.Reset(ctx))(t)
			want := "Classify the following text as \"negative\" or \"positive\".\n\nText: \"" + row.Text + "\"\n\nClassification:"
			expect.True(t, (!asText || shown.Text == want) && (asText || len(shown.Messages) == 2 && shown.Messages[1].Content == row.Text), "shown %+v", shown)
			step := must.Get(e.Step(ctx, envs.Action{Text: test.answer}))(t)
			reward := 0.0
			if test.info.Correct {
				reward = 1
			}
			expect.Equal(t, envs.Step{Keep: len(test.answer), Done: true, Reward: reward, Info: &test.info}, step, test.answer)
			expect.Fails(e.Step(ctx, envs.Action{}))(t, "a second answer is taken")
		}
	}
	made := must.Get((&options{Template: "{text} Is that {labels}?"}).Task(envs.Setup{Seed: 1, Text: true}))(t)
	e, _ := made.Episode(envs.Eval, 0)
	if shown, _ := e.Reset(ctx); shown.Text != e.(*episode).row.Text+` Is that "negative" or "positive"?` {
		t.Errorf("shown %q", shown.Text)
	}
	expect.Fails(made.Episode(envs.Eval, made.Len(envs.Eval)))(t, "a held-out row past the last")
}

func TestFindLabel(t *testing.T) {
	labels := []string{"positive", "negative", "art", "art history", "C++", "N/A"}
	for _, test := range []struct{ response, label, by string }{
		{"positive", "positive", byLabel},
		{" Positive\nbecause", "positive", byLabel},
		{"**Negative**.", "negative", byLabel},
		{"\n\nnegative", "negative", byLabel},
		{"The label is: positive.", "positive", byMention},
		{"Label: \"negative\"", "negative", byMention},
		{"I think that this is POSITIVE!", "positive", byMention},
		{"Art history", "art history", byLabel},
		{"It is about art history.", "art history", byMention},
		{"c++", "C++", byLabel},
		{"It is C++ code", "C++", byMention},
		{"n/a", "N/A", byLabel},
		{"Let me see.\nIt is negative.", "negative", byMention},
		{"positive, positive", "positive", byMention},
		// none
		{"", "", ""},
		{"positive or negative", "", ""},
		{"positive, negative, art, art history", "", ""},
		{"not positive", "", ""},
		{"It isn't negative.", "", ""},
		{"It is not a positive text.", "", ""},
		{"nonpositive", "", ""},
		{"partly", "", ""},
		{"positives", "", ""},
		{"art and art history", "", ""},
	} {
		label, by := named.find(test.response, labels)
		expect.True(t, label == test.label && by == test.by, "%q: %q by %q, want %q by %q", test.response, label, by, test.label, test.by)
	}
	for response, want := range map[string]string{" Positive \n": "positive", "The label is: positive.": "", "positive.": "", "x\npositive": ""} {
		label, _ := exact.find(response, labels)
		expect.True(t, label == want, "exact, %q: %q, want %q", response, label, want)
	}
}

func FuzzFindLabel(f *testing.F) {
	f.Add("The label is: positive.")
	f.Add("É positive\x00 ß art\nhistory")
	labels := []string{"positive", "art", "art history", "ß"}
	f.Fuzz(func(t *testing.T, response string) {
		label, by := named.find(response, labels)
		expect.Same(t, by == "", label == "", "%q by %q", label, by)
	})
}

// TestHacks: what policies try in place of a label is not positive by any rule.
func TestHacks(t *testing.T) {
	expect.True(t, len(hacks.Labels) >= 80, "only %d hacks", len(hacks.Labels))
	for _, response := range hacks.Labels {
		for _, rule := range []match{named, exact} {
			label, by := rule.find(response, []string{"negative", "positive"})
			expect.True(t, label != "positive", "%s: %q is taken for it by %s", rule, response, by)
		}
	}
}
