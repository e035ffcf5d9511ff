package dataset

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

func packed(t *testing.T, name, content string) string {
	t.Helper()
	var b bytes.Buffer
	switch filepath.Ext(name) {
	case ".gz":
		z := gzip.NewWriter(&b)
		z.Write([]byte(content))
		z.Close()
	case ".zst":
		z := must.Get(zstd.NewWriter(&b))(t)
		z.Write([]byte(content))
		z.Close()
	}
	return must.File(t, name, b.String())
}

func TestRecords(t *testing.T) {
	lines := "\ufeff" + `{"z":1,"a":[null,{"y":-0.5,"x":"\u00e9"}],"n":true}` + "\r\n\r\n" + `{"a":12345678901234567890,"f":1e2,"e":{},"l":[]}`
	want := []Object{
		{{"z", int64(1)}, {"a", []any{nil, Object{{"y", -0.5}, {"x", "é"}}}}, {"n", true}},
		{{"a", json.Number("12345678901234567890")}, {"f", 100.0}, {"e", Object{}}, {"l", []any{}}},
	}
	array := "\ufeff [" + strings.Replace(strings.TrimPrefix(lines, "\ufeff"), "\r\n\r\n", "\n,\n", 1) + "]\n"
	tests := map[string]string{
		"jsonl":                must.File(t, "a.jsonl", lines),
		"jsonl.gz":             packed(t, "a.jsonl.gz", lines),
		"jsonl.zst":            packed(t, "a.JSONL.zst", lines),
		"json":                 must.File(t, "a.json", array),
		"json.gz":              packed(t, "a.json.gz", array),
		"json lines":           must.File(t, "b.json", lines),
		"json over many lines": must.File(t, "c.json", strings.ReplaceAll(lines, ",", ",\n")),
	}
	for name, path := range tests {
		t.Run(name, func(t *testing.T) {
			expect.Equal(t, want, all(t, path))
		})
	}
	csv := must.File(t, "a.csv", "a,b\n1,\n\"x\ny\",é\n")
	expect.Equal(t, []Object{{{"a", "1"}, {"b", ""}}, {{"a", "x\ny"}, {"b", "é"}}}, all(t, csv), "csv")

	var places []string
	for r, err := range Records(tests["json lines"], tests["jsonl"], csv, filepath.Join("testdata", "types.parquet")) {
		must.Do(t, err)
		places = append(places, filepath.Base(r.Place()))
	}
	expect.Equal(t, []string{"b.json:1:1", "b.json:3:1", "a.jsonl:1", "a.jsonl:3", "a.csv:2", "a.csv:3", "types.parquet:1", "types.parquet:2"}, places, "places")
	for range Records(tests["jsonl"], "none.jsonl") {
		break // must not go on to the file that is not there
	}
}

func TestRecordsErrors(t *testing.T) {
	deep := func(n int) string { return `{"a":` + strings.Repeat("[", n) + strings.Repeat("]", n) + "}" }
	ok := `{"text":"q"}` + "\n"
	gz := must.Get(os.ReadFile(packed(t, "a.jsonl.gz", strings.Repeat(ok, 99))))(t)
	pq := must.Get(os.ReadFile(filepath.Join("testdata", "messages.parquet")))(t)
	for _, tt := range []struct{ name, file, content, want string }{
		{"row that is an array", "a.jsonl", ok + `["q"]`, `:2: got an array, want an object`},
		{"row that is null", "a.json", `[null]`, `:1:2: got null, want an object`},
		{"key twice inside", "a.jsonl", `{"a":[{"b":1,"b":2}]}`, `:1: column "a": key "b" occurs twice; remove one`},
		{"key twice among many", "a.jsonl", `{` + strings.Repeat(`"a":1,`, 20) + `"b":1}`, `:1: key "a" occurs twice; remove one`},
		{"too deep", "a.jsonl", deep(100), `:1: column "a": arrays and objects are nested deeper than 100`},
		{"far too deep", "a.jsonl", deep(20_000), `:1:10005: invalid JSON: invalid character '[' exceeded max depth`},
		{"number too large", "a.jsonl", `{"a":1e999}`, `:1: column "a": number "1e999" is out of range for a float64`},
		{"surrogate before another escape", "a.jsonl", `{"a":["\ud800\ndc00"]}`, `:1: column "a": unpaired surrogate escape in "\"\\ud800\\ndc00\""; write the character itself`},
		{"empty gz", "a.json.gz", "", `:1: reading data set: truncated gzip data; download the file again`},
		{"not gz", "a.json.gz", "[]  and more than ten bytes", `:1: reading data set: decompressing gzip data: gzip: invalid header`},
		{"not zstd", "a.json.zst", "[]  and more", `:1: reading data set: decompressing zstd data: invalid input: magic number mismatch`},
		{"cut gz", "a.jsonl.gz", string(gz[:len(gz)-9]), `:100: reading data set: truncated gzip data; download the file again`},
		{"compressed parquet", "a.parquet.gz", "", `: a compressed Parquet or Arrow file cannot be streamed; decompress it first`},
		{"compressed something", "a.txt.gz", "", `: unknown data set extension ".gz"; use .csv, .json, .jsonl (or one of them with .gz or .zst), .parquet or .arrow`},
		{"empty parquet", "a.parquet", "", `: the file is empty; want a Parquet file`},
		{"not parquet", "a.parquet", strings.Repeat(ok, 2), `: not a Parquet file: it starts with "{\"te", want "PAR1"`},
		{"parquet cut", "a.parquet", string(pq[:len(pq)-100]), `: truncated Parquet file: it ends with "AAIA", want "PAR1"; download or write it again`},
		{"parquet footer too long", "a.parquet", string(pq[:len(pq)-8]) + "\xff\xff\xff\x7fPAR1", `: damaged Parquet file: a footer of 2147483647 bytes in a file of 3861`},
		{"parquet encrypted", "a.parquet", string(pq[:len(pq)-4]) + "PARE", `: the Parquet file is encrypted; write it without encryption`},
		{"parquet footer that recurses", "a.parquet", "PAR1" + strings.Repeat("\x1c", 64<<10) + "\x00\x00\x01\x00PAR1", `: damaged Parquet file: footer: structures are nested deeper than 32`},
		{"parquet without its first pages", "a.parquet", "PAR1" + string(pq[500:]), ``},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := must.File(t, tt.file, tt.content)
			var got error
			for r, err := range Records(path) {
				expect.True(t, got == nil, "more records after an error")
				got = err
				expect.True(t, err == nil || r.File == "", "record %v with an error", r)
			}
			expect.Require(t, got != nil, "no error")
			diff := cmp.Diff(tt.want, strings.TrimPrefix(got.Error(), path))
			expect.True(t, diff == "" || tt.want == "", "(-want +got):\n%s", diff)
		})
	}
}

// The live heap in the middle of a long file must not grow with it.
func TestRecordsInFlatMemory(t *testing.T) {
	const n = 60_000
	type message struct {
		Role    string `parquet:"role,dict" json:"role"`
		Content string `parquet:"content" json:"content"`
	}
	type row struct {
		Messages []message `parquet:"messages,list" json:"messages"`
		ID       int       `parquet:"id" json:"id"`
	}
	rowOf := func(i int) row {
		return row{[]message{{"user", fmt.Sprintf("question %d%s", i, strings.Repeat(" and so on", 20))}, {"assistant", fmt.Sprint(i)}}, i}
	}
	dir := t.TempDir()
	files := []string{filepath.Join(dir, "a.jsonl.gz"), filepath.Join(dir, "a.json"), filepath.Join(dir, "a.csv"), filepath.Join(dir, "a.parquet")}
	var outs []*os.File
	for _, file := range files {
		f := must.Open(os.Create(file))(t)
		outs = append(outs, f)
	}
	z := gzip.NewWriter(outs[0])
	fmt.Fprint(outs[1], "[")
	fmt.Fprint(outs[2], "id,text\n")
	pq := parquet.NewGenericWriter[row](outs[3], parquet.Compression(&parquet.Snappy), parquet.MaxRowsPerRowGroup(10_000))
	for i := range n {
		r := rowOf(i)
		object := must.Get(json.Marshal(r))(t)
		z.Write(append(object, '\n'))
		if i > 0 {
			fmt.Fprint(outs[1], ",\n")
		}
		outs[1].Write(object)
		fmt.Fprintf(outs[2], "%d,%s\n", i, r.Messages[0].Content)
		must.Get(pq.Write([]row{r}))(t)
	}
	fmt.Fprint(outs[1], "]")
	expect.Require(t, z.Close() == nil && pq.Close() == nil, "closing the files")

	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			seen, most := 0, uint64(0)
			var mem runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&mem)
			before := mem.HeapAlloc
			for _, err := range Records(file) {
				must.Do(t, err)
				if seen++; seen%(n/4) == n/8 {
					runtime.GC()
					runtime.ReadMemStats(&mem)
					most = max(most, mem.HeapAlloc)
				}
			}
			expect.Same(t, n, seen, "%d records, want %d", seen, n)
			if grown := int64(most) - int64(before); grown > 8<<20 {
				t.Errorf("%.1f MiB alive in the middle of the file", float64(grown)/(1<<20))
			} else {
				t.Logf("%.2f MiB", float64(grown)/(1<<20))
			}
		})
	}
}

func TestObjectJSON(t *testing.T) {
	want := `{"b":[1,2.0,-0.5,1e+30,12345678901234567890,null,true],"a":{"<é>":"\"\n"},"c":{}}`
	var dec decoder
	o := must.Get(dec.object(place{}, []byte(want), nil))(t)
	got, err := o.MarshalJSON()
	expect.True(t, err == nil && string(got) == want, "got %s, error %v, want %s", got, err, want)
	_, err = (Object{{"a", []byte("b")}}).MarshalJSON()
	expect.Same(t, "JSON cannot represent binary data", text(err), "error %v", err)
}

func TestEqual(t *testing.T) {
	object := func(s string) Object {
		var dec decoder
		return must.Get(dec.object(place{}, []byte(s), nil))(t)
	}
	tests := []struct {
		a, b string
		want bool
	}{
		{`{"a":1,"b":[{"c":null}]}`, `{"b":[{"c":null}],"a":1}`, true},
		{`{"a":1}`, `{"a":1.0}`, false},
		{`{"a":1}`, `{"a":1,"b":null}`, false},
		{`{"a":null}`, `{"b":null}`, false},
		{`{"a":[1,2]}`, `{"a":[2,1]}`, false},
		{`{"a":[1]}`, `{"a":{"b":1}}`, false},
		{`{"a":"1"}`, `{"a":[]}`, false},
	}
	for _, tt := range tests {
		expect.Same(t, tt.want, Equal(object(tt.a), object(tt.b)), "Equal(%s, %s)", tt.a, tt.b)
	}
	expect.True(t, Equal([]byte("a"), []byte("a")) && !Equal([]byte("a"), []byte("b")) && !Equal([]byte("a"), "a"), "bytes are compared wrongly")
}

// TestManyKeys: objects of all sizes are read, with each key once.
func TestManyKeys(t *testing.T) {
	row := "{"
	for n := range 40 {
		row += fmt.Sprintf(`"k%d":%d,`, n, n)
		want := []string{}
		for _, field := range all(t, must.File(t, "a.jsonl", row[:len(row)-1]+"}"))[0] {
			want = append(want, field.Name)
		}
		expect.True(t, len(want) == n+1 && want[n] == fmt.Sprint("k", n), "%d keys are read as %q", n+1, want)
		for r, err := range Records(must.File(t, "b.jsonl", row+`"k0":1}`)) {
			expect.Error(t, err, `key "k0" occurs twice`)
			expect.True(t, err != nil, "%v", r)
		}
	}
}

// A pipe without a writer is refused immediately.
func TestRecordsOfAPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rows.jsonl")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Skip(err)
	}
	for _, err := range Records(path) {
		expect.Error(t, err, "rows.jsonl is not a regular file; save its content to a file first")
		return
	}
	t.Error("a pipe is an empty data set")
}
