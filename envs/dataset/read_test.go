package dataset

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// row is a Row without the file.
type row struct {
	Text, Label, Split string
	Line               int
}

// readFrom is Read for a text file that does not exist.
func readFrom(in io.Reader, name string, cols Columns) ([]Row, error) {
	c := newCollector(cols)
	if err := textReader(filepath.Ext(name))(in, name, c.want(), c.add); err != nil {
		return nil, err
	}
	if len(c.rows) == 0 {
		return nil, fmt.Errorf("%s: no rows", name)
	}
	return c.rows, nil
}

func TestRead(t *testing.T) {
	named := Columns{Text: "question", Label: "category"}
	for _, tt := range []struct {
		name, file, content string
		cols                Columns
		want                []row
	}{
		{
			name: "csv", file: "a.csv",
			content: "label,id,text\nmath,1,What is 2+2?\nlaw,2,\"Is a \"\"verbal\"\" contract, unsigned,\nbinding?\"\n\nlaw,3,Who sues?\n",
			want: []row{
				{"What is 2+2?", "math", "", 2},
				{"Is a \"verbal\" contract, unsigned,\nbinding?", "law", "", 3},
				{"Who sues?", "law", "", 6},
			},
		},
		{
			name: "csv with mark, CRLF, split, no last newline", file: "a.CSV",
			content: "\ufefftext,label,split\r\nα,1,train\r\nβ,2,validation\r\nγ,1,test",
			want:    []row{{"α", "1", "train", 2}, {"β", "2", "val", 3}, {"γ", "1", "test", 4}},
		},
		{
			name: "csv of a spreadsheet", file: "a.csv",
			content: "id; text;label ;split\n1;\"Yes; no, perhaps\";b;\n",
			want:    []row{{"Yes; no, perhaps", "b", "", 2}},
		},
		{
			name: "csv with tabs", file: "a.csv",
			content: "text\tlabel\nWhy, then?\ta\n",
			want:    []row{{"Why, then?", "a", "", 2}},
		},
		{
			name: "jsonl", file: "a.jsonl", cols: named,
			content: "\ufeff{\"question\": \"Why \\u00e9\\\\ \\ud83d\\ude00?\", \"options\": [\"a\\\"]\", {\"question\": 3}], \"category\": \"other\"}\r\n\n" +
				"  {\"category\":-12,\"question\":\"q\",\"deep\":{\"x\":[{}]}}  ",
			want: []row{{"Why é\\ 😀?", "other", "", 1}, {"q", "-12", "", 3}},
		},
		{
			name: "jsonl with an escaped key and null splits", file: "a.jsonl",
			content: `{"\u0074ext":"q","label":0,"split":null}` + "\n" + `{"text":"r","label":"0"}` + "\n",
			want:    []row{{"q", "0", "", 1}, {"r", "0", "", 2}},
		},
		{
			name: "one column as text and label", file: "a.jsonl", cols: Columns{Text: "a", Label: "a"},
			content: `{"a":"q"}`,
			want:    []row{{"q", "q", "", 1}},
		},
		{
			name: "json", file: "a.json",
			content: "\n[ {\"text\":\"q\",\"label\":\"a\",\"split\":\"val\"},\n\n  {\"label\":7,\n\"split\":\"train\",\"text\":\"r\"}\n]\n",
			want:    []row{{"q", "a", "val", 2}, {"r", "7", "train", 4}},
		},
		{
			name: "a split column by name", file: "a.json", cols: Columns{Split: "part"},
			content: `[{"text":"q","label":"a","split":"ignored","part":"test"}]`,
			want:    []row{{"q", "a", "test", 1}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := must.File(t, tt.file, tt.content)
			rows := must.Get(Read(path, tt.cols))(t)
			var got []row
			for _, r := range rows {
				expect.Same(t, path, r.File, "File")
				got = append(got, row{r.Text, r.Label, r.Split, r.Line})
			}
			expect.Equal(t, tt.want, got, "rows")
		})
	}
}

func TestReadErrors(t *testing.T) {
	ok := `{"text":"q","label":"a"}` + "\n"
	for _, tt := range []struct {
		name, file, content string
		cols                Columns
		want                string // after the path
	}{
		{"extension", "a.txt", "", Columns{}, `: unknown data set extension ".txt"; use .csv, .json, .jsonl (or one of them with .gz or .zst), .parquet or .arrow`},
		{"empty csv", "a.csv", "", Columns{}, `: the file is empty; want a header row with the columns "text" and "label"`},
		{"empty json", "a.json", " \n", Columns{}, `: the file is empty; want an array of objects`},
		{"empty jsonl", "a.jsonl", "", Columns{}, `: the file is empty; want one JSON object per line`},
		{"header only", "a.csv", "text,label\n", Columns{}, `: no rows`},

		{"short record", "a.csv", "text,label\nq,a\n\nq\n", Columns{}, `:4: the row has 1 fields, want 2 ("text", "label"); quote fields that contain commas`},
		{"record with semicolons", "a.csv", "text;label\nwhy; then?;a\n", Columns{}, `:2: the row has 3 fields, want 2 ("text", "label"); quote fields that contain semicolons`},
		{"no header", "a.csv", "q,a\nr,b\n", Columns{}, `:1: no columns "text", "label"; columns are "q", "a"; the first line must name the columns`},
		{"open quote", "a.csv", "text,label\n\"q,a\n", Columns{}, `:2:6: invalid CSV: extraneous or missing " in quoted-field`},

		{"csv column", "a.csv", "sentence,lable\nq,a\n", Columns{Text: "sentence"}, `:1: no column "label"; columns are "sentence", "lable"; did you mean "lable"?`},
		{"csv column twice", "a.csv", "text,label,text\nq,a,r\n", Columns{}, `:1: column "text" occurs twice in the header; rename one`},
		{"csv split column", "a.csv", "text,label\nq,a\n", Columns{Split: "part"}, `:1: no column "part"; columns are "text", "label"`},
		{"jsonl column", "a.jsonl", ok + `{"text":"q","lab\u0065ls":"a"}`, Columns{}, `:2: no column "label"; columns are "text", "labels"; did you mean "labels"?`},
		{"jsonl no column", "a.jsonl", `{}`, Columns{}, `:1: no columns "text", "label"; the object is empty`},
		{"jsonl split column", "a.jsonl", ok, Columns{Split: "part"}, `:1: no column "part"; columns are "text", "label"`},
		{"json column", "a.json", "[\n {\"text\":\"q\",\"label\":\"a\"},\n {\"text\":\"q\"}]", Columns{}, `:3:2: no column "label"; columns are "text"`},

		{"csv empty text", "a.csv", "text,label\n  ,a\n", Columns{}, `:2: column "text" is empty; fill it or remove the row`},
		{"json empty text", "a.json", `[{"text":"","label":"a"}]`, Columns{}, `:1:2: column "text" is empty; fill it or remove the row`},
		{"null", "a.jsonl", ok + `{"text":"q","label":null}`, Columns{}, `:2: column "label": got null, want a string, an integer or a boolean`},
		{"text number", "a.jsonl", `{"text":1,"label":"a"}`, Columns{}, `:1: column "text": got the number "1", want a string`},
		{"label fraction", "a.jsonl", `{"text":"q","label":1.5}`, Columns{}, `:1: column "label": got the number "1.5", want a string, an integer or a boolean`},
		{"label array", "a.jsonl", `{"text":"q","label":["a"]}`, Columns{}, `:1: column "label": got an array, want one label (a string, an integer or a boolean)`},
		{"duplicate key", "a.jsonl", `{"text":"q","label":"a","t\u0065xt":"r"}`, Columns{}, `:1: key "text" occurs twice; remove one`},
		{"not an object", "a.jsonl", ok + `"q"`, Columns{}, `:2: got a string, want an object with the columns "text" and "label"`},
		{"element not an object", "a.json", `[{"text":"q","label":"a"}, 3]`, Columns{}, `:1:28: got the number "3", want an object with the columns "text" and "label"`},

		{"split value", "a.csv", "text,label,split\nq,a,dev\n", Columns{}, `:2: column "split": unknown split "dev"; want train, val, validation or test`},
		{"split type", "a.jsonl", `{"text":"q","label":"a","split":1}`, Columns{}, `:1: column "split": got the number "1", want a string`},
		{"split in some", "a.csv", "text,label,split\nq,a,train\nr,a,\n", Columns{}, `:3: column "split" is set in some rows only; set it in all rows or in none`},
		{"split in others", "a.jsonl", ok + `{"text":"q","label":"a","split":"val"}`, Columns{}, `:2: column "split" is set in some rows only; set it in all rows or in none`},
		{"named split empty", "a.csv", "text,label,part\nq,a,\n", Columns{Split: "part"}, `:2: column "part" is empty; want train, val or test in every row`},

		{"csv utf8", "a.csv", "text,label\nq,a\ncaf\xe9,a\n", Columns{}, `:3: invalid UTF-8 at byte 4 of the line; save the file as UTF-8`},
		{"csv cut rune", "a.csv", "text,label\nq,\xe2\x82", Columns{}, `:2: invalid UTF-8 at byte 3 of the line; save the file as UTF-8`},
		{"csv nul", "a.csv", "text,label\nq\x00,a\n", Columns{}, `:2: NUL at byte 2 of the line; save the file as UTF-8`},
		{"json utf8 behind the array", "a.json", "[{\"text\":\"q\",\"label\":1}]\n\xff", Columns{}, `:2: invalid UTF-8 at byte 1 of the line; save the file as UTF-8`},
		{"utf16", "a.csv", "\xff\xfet\x00", Columns{}, `:1: invalid UTF-8 at byte 1 of the line; save the file as UTF-8`},
		{"escaped nul", "a.jsonl", `{"text":"a\u0000","label":"a"}`, Columns{}, `:1: column "text": NUL character at byte 2; remove it`},
		{"half a character", "a.jsonl", `{"text":"\\\ud83dx","label":"a"}`, Columns{}, `:1: column "text": unpaired surrogate escape in "\"\\\\\\ud83dx\""; write the character itself`},
		{"halves reversed", "a.jsonl", `{"text":"\ude00\ud83d","label":"a"}`, Columns{}, `:1: column "text": unpaired surrogate escape in "\"\\ude00\\ud83d\""; write the character itself`},

		{"jsonl cut", "a.jsonl", ok + `{"text":"q`, Columns{}, `:2:10: invalid JSON: unexpected end of JSON input`},
		{"jsonl two on a line", "a.jsonl", `{"text":"q","label":1} {}`, Columns{}, `:1:24: invalid JSON: invalid character '{' after top-level value`},
		{"json lines named json", "a.json", ok + "{\n\"text\":q}", Columns{}, `:2:1: invalid JSON: invalid character 'q' looking for beginning of value`},
		{"json lines cut", "a.json", ok + `{"text`, Columns{}, `:2:1: invalid JSON: unexpected end of file in the object`},
		{"json scalar", "a.json", "3", Columns{}, `: want an array of objects`},
		{"json syntax", "a.json", "[{\"text\":\"q\",\"label\":1},\n {text}]", Columns{}, `:2:2: invalid JSON: invalid character 't' looking for beginning of object key string`},
		{"json comma", "a.json", `[{"text":"q","label":1} {"text":"q"}]`, Columns{}, `:1:25: invalid JSON: expected comma after array element`},
		{"json cut", "a.json", "[{\"text\":\"q\",\"label\":1},\n{\"text", Columns{}, `:2:1: invalid JSON: unexpected end of file in the array`},
		{"json cut between", "a.json", "[{\"text\":\"q\",\"label\":1}\n", Columns{}, `:2:1: invalid JSON: unexpected end of file in the array`},
		{"json trailing", "a.json", `[{"text":"q","label":1}] 7`, Columns{}, `:1:26: invalid JSON: trailing data after the array`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := must.File(t, tt.file, tt.content)
			rows, err := Read(path, tt.cols)
			expect.Require(t, err != nil, "no error, rows %v", rows)
			got, ok := strings.CutPrefix(err.Error(), path)
			expect.True(t, ok, "%v: want the path first", err)
			expect.Equal(t, tt.want, got)
		})
	}
}

// The readers must not depend on the chunks in which bytes arrive.
func TestReadInPieces(t *testing.T) {
	for name, content := range map[string]string{
		".csv":   "\ufefftext,label\n\"é😀\n\",€\nq,b\n",
		".jsonl": "{\"text\":\"é😀\",\"label\":\"€\"}\n{\"text\":\"q\",\"label\":3}",
		".json":  "[{\"text\":\"é😀\",\"label\":\"€\"},\n{\"text\":\"q\",\"label\":3}]",
		"x.csv":  "text,label\nq\xe2\x82x,€\n",
		"y.csv":  "text,label\nq,\xe2\x82",
		"x.json": "[{\"text\":\"\xf0\x9f\x98",
		"s.csv":  "t",
		"e.json": "",
	} {
		want, wantErr := readFrom(strings.NewReader(content), name, Columns{})
		for _, wrap := range []func(io.Reader) io.Reader{iotest.OneByteReader, iotest.HalfReader, iotest.DataErrReader} {
			got, err := readFrom(wrap(strings.NewReader(content)), name, Columns{})
			expect.Equal(t, want, got, name)
			expect.Equal(t, text(wantErr), text(err), fmt.Sprintf("%s: error", name))
		}
	}
}

func TestReadDeviceError(t *testing.T) {
	for name, content := range map[string]string{"a.csv": "text,label\n", "a.json": "[\n", "a.jsonl": "\n"} {
		_, err := readFrom(io.MultiReader(strings.NewReader(content), iotest.ErrReader(io.ErrClosedPipe)), name, Columns{})
		expect.Same(t, name+":2: reading data set: io: read/write on closed pipe", text(err), "error")
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestReaderRows(t *testing.T) {
	train, more, test := must.File(t, "a.jsonl", `{"text":"a","label":1,"split":"odd"}`), must.File(t, "b.csv", "text,label\nb,2\n"), must.File(t, "c.jsonl", `{"text":"c","label":1}`)
	rows, err := Reader{}.Rows([]Part{{"train", []string{train, more}}, {"validation", []string{test}}}, Columns{}, &Faults{})
	want := []Row{{"a", "1", 0, Train, train, 1}, {"b", "2", 0, Train, more, 2}, {"c", "1", 0, Val, test, 1}}
	diff := cmp.Diff(want, rows)
	expect.True(t, diff == "" && err == nil, "%v %v", err, diff)
	for name, tt := range map[string]struct {
		parts []Part
		cols  Columns
		want  string
	}{
		"a part of another name": {[]Part{{"train", []string{more}}, {"extra", []string{test}}}, Columns{}, `unknown split "extra"; want train, val, validation or test`},
		"a split column too":     {[]Part{{"train", []string{more}}, {"test", []string{test}}}, Columns{Split: "s"}, `column "s": the data set already has files for the splits train and test; drop --split-column`},
		"an empty file":          {[]Part{{"train", []string{more, must.File(t, "d.csv", "text,label\n")}}}, Columns{}, "d.csv: no rows"},
	} {
		_, err = (Reader{}).Rows(tt.parts, tt.cols, &Faults{})
		expect.True(t, strings.HasSuffix(text(err), tt.want), "%s: got %v, want %s", name, err, tt.want)
	}
}

// All bad rows are told at once, or skipped and counted.
func TestFaults(t *testing.T) {
	for n, want := range map[int]string{
		0: "", 1: "f:1: bad 1", 2: "2 rows cannot be used; fix them, or drop them with --on-bad-row skip: f:1: bad 1; f:2: bad 2",
		8: "8 rows cannot be used; fix them, or drop them with --on-bad-row skip: f:1 and 1 more: bad 1; f:2: bad 2; f:3: bad 3; f:4: bad 4; f:5: bad 5; and 2 rows with other faults",
	} {
		for _, skip := range []bool{false, true} {
			f := OnBadRow{map[bool]string{false: "error", true: "skip"}[skip]}.Faults()
			for i := range n {
				expect.NoError(t, f.Add(fmt.Errorf("f:%d: bad %d", i+1, i%7+1)), "%d rows stop it", n)
			}
			skipped, first := f.Skipped()
			err := f.Err()
			switch {
			case skip && (err != nil || skipped != n || (first != nil) != (n > 0)):
				t.Errorf("%d rows skipped: %v, %d, %v", n, err, skipped, first)
			case !skip && (skipped != 0 || (err == nil) != (want == "") || err != nil && err.Error() != want):
				t.Errorf("%d rows: %v, want %q; %d skipped", n, err, want, skipped)
			}
		}
	}
	f := Faults{}
	var stopped error
	for i := 0; stopped == nil; i++ {
		stopped = f.Add(errors.Join(errNoRows))
		expect.Require(t, i <= mostFaults, "it never stops")
	}
	expect.True(t, errors.Is(stopped, errNoRows) && strings.Contains(stopped.Error(), "1000 rows"), "%v", stopped)
}

var errNoRows = errors.New("bad")

// TestRecordBound: the bound is on a record, not on a file.
func TestRecordBound(t *testing.T) {
	defer func(most int64) { maxRecord = most }(maxRecord)
	maxRecord = 256 << 10
	field := strings.Repeat("x", 64<<10)
	for name, text := range map[string][2]string{
		"a.csv":   {"text,label\n", field + ",1\n"},
		"a.jsonl": {"", `{"text":"` + field + `","label":"1"}` + "\n"},
		"a.json":  {"[", `{"text":"` + field + `","label":"1"},`},
	} {
		path := filepath.Join(t.TempDir(), name)
		count := func(rows int, row string) (n int, err error) {
			body := text[0] + strings.Repeat(row, rows)
			if strings.HasSuffix(name, ".json") {
				body = strings.TrimSuffix(body, ",") + "]"
			}
			must.Do(t, os.WriteFile(path, []byte(body), 0o600))
			for _, err := range (Reader{}).Records(path) {
				if err != nil {
					return n, err
				}
				n++
			}
			return n, nil
		}
		if n, err := count(20, text[1]); n != 20 || err != nil {
			t.Errorf("%s: %d of 20 rows, %v", name, n, err)
		}
		_, err := count(1, strings.Replace(text[1], field, strings.Repeat(field, 20), 1))
		expect.True(t, err != nil && strings.Contains(err.Error(), "a record is larger than"), "%s: a long record: %v", name, err)
	}
}

func TestReadMissingFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none.csv")
	expect.Failure(Read(path, Columns{}))(t, path)
}

// checkRows fails on rows that violate the documentation of Read, and on errors that are not one line starting with the
// file's name.
func checkRows(t *testing.T, name string, rows []Row, err error) {
	t.Helper()
	if err != nil {
		msg := err.Error()
		expect.Require(t, strings.HasPrefix(msg, name+":") && !strings.ContainsAny(msg, "\n\r\x00") && utf8.ValidString(msg), "error %q", msg)
		return
	}
	expect.Require(t, len(rows) != 0, "no rows and no error")
	line := 0
	for _, r := range rows {
		for _, s := range []string{r.Text, r.Label} {
			expect.Require(t, strings.TrimSpace(s) != "" && utf8.ValidString(s) && !strings.Contains(s, "\x00"), "row %+v", r)
		}
		expect.Require(t, r.Line >= max(1, line), "line %d follows line %d", r.Line, line)
		line = r.Line
		expect.Require(t, (r.Split == "") == (rows[0].Split == "") && strings.Contains(" train val test", r.Split), "row %+v", r)
	}
}

func FuzzReadCSV(f *testing.F) {
	f.Add("text,label\nq,a\n")
	f.Add("\ufefflabel,text,split\r\na,\"q, \"\"r\"\"\n\",train\r\n")
	f.Add("text,label\n\"q,a\n\xff")
	f.Add("text,label\n\nq\n")
	f.Fuzz(func(t *testing.T, s string) {
		rows, err := readFrom(strings.NewReader(s), "f.csv", Columns{})
		checkRows(t, "f.csv", rows, err)
	})
}

func FuzzReadJSONLines(f *testing.F) {
	f.Add(`{"text":"q","label":"a","split":"val"}` + "\n" + `{"text":"\ud83d\ude00","label":1,"split":"test"}`)
	f.Add("\ufeff" + `{"t\u0065xt":"q","x":[{"a\"}":1}],"label":-3}` + "\r\n\r\n")
	f.Add(`{"text":"\ud83d","label":"a"}`)
	f.Add(`{"text":"q","label":1e5,"label":null}`)
	f.Fuzz(func(t *testing.T, s string) {
		rows, err := readFrom(strings.NewReader(s), "f.jsonl", Columns{})
		checkRows(t, "f.jsonl", rows, err)
		if err != nil {
			return
		}
		// encoding/json is the oracle.
		lines := strings.Split(strings.TrimPrefix(s, "\ufeff"), "\n")
		for _, r := range rows {
			sameRow(t, r, []byte(lines[r.Line-1]))
		}
	})
}

func FuzzReadJSON(f *testing.F) {
	f.Add(`[{"text":"q","label":"a","split":"val"},` + "\n" + `{"text":"r","label":1,"split":"test"}]`)
	f.Add("\ufeff[ \n" + `{"x":{"y":[]},"text":"q","label":-3}` + "\n] \n")
	f.Add(`[{"text":"q","label":"a"},]`)
	f.Add(`[{"text":"q"`)
	f.Add(`[{"text":"q","label":"a"},`)
	f.Add(`{"text":"q","label":"a"}` + "\n" + `{"text":"r","label":"b"}`)
	f.Fuzz(func(t *testing.T, s string) {
		rows, err := readFrom(strings.NewReader(s), "f.json", Columns{})
		checkRows(t, "f.json", rows, err)
		if err != nil {
			return
		}
		text := strings.TrimPrefix(s, "\ufeff")
		if !strings.HasPrefix(strings.TrimLeft(text, " \t\r\n"), "[") { // an object a line, as in .jsonl
			for _, r := range rows {
				sameRow(t, r, []byte(strings.Split(text, "\n")[r.Line-1]))
			}
			return
		}
		elements := must.Into[[]json.RawMessage](t, json.Unmarshal, []byte(text))
		expect.Require(t, len(elements) == len(rows), "%d rows of %d elements", len(rows), len(elements))
		for i, r := range rows {
			sameRow(t, r, elements[i])
		}
	})
}

func sameRow(t *testing.T, r Row, object []byte) {
	t.Helper()
	var want map[string]any // exact keys; into a struct their case would not count
	dec := json.NewDecoder(strings.NewReader(string(object)))
	dec.UseNumber()
	must.Do(t, dec.Decode(&want))
	label := want["label"]
	if n, ok := label.(json.Number); ok {
		label = n.String()
	}
	expect.Require(t, r.Text == want["text"] && r.Label == label, "row %+v of %s", r, object)
}

// readBytes reads a Parquet file from memory.
func readBytes(b []byte) error {
	return readParquetFrom(bytes.NewReader(b), int64(len(b)), "f", nil, func(Record) error { return nil })
}

// checkLine fails on an error that is not one line with the file's name.
func checkLine(t *testing.T, err error) {
	t.Helper()
	msg := text(err)
	expect.Require(t, err == nil || strings.HasPrefix(msg, "f:") && !strings.ContainsAny(msg, "\n\r\x00") && utf8.ValidString(msg), "error %q", msg)
}

func FuzzReadParquet(f *testing.F) {
	for _, file := range must.Get(filepath.Glob(filepath.Join("testdata", "*.parquet")))(f) {
		content := must.Get(os.ReadFile(file))(f)
		if len(content) < 16<<10 {
			f.Add(content)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) { checkLine(t, readBytes(b)) })
}
