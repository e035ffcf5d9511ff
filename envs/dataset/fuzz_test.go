package dataset

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

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
		var elements []json.RawMessage
		must.Do(t, json.Unmarshal([]byte(text), &elements))
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
