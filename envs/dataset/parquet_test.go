package dataset

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/parquet-go/parquet-go"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

func all(t *testing.T, files ...string) []Object {
	t.Helper()
	var out []Object
	for r, err := range Records(files...) {
		must.Do(t, err)
		out = append(out, r.Fields)
	}
	return out
}

// Parquet files give the same records as their rows in JSON Lines.
func TestParquet(t *testing.T) {
	for file, lines := range map[string]string{
		"messages.parquet":        "messages.jsonl",
		"many_zstd_v2.parquet":    "many.jsonl",
		"many_gzip_plain.parquet": "many.jsonl",
		"many_none_delta.parquet": "many.jsonl",
	} {
		t.Run(file, func(t *testing.T) {
			want := all(t, filepath.Join("testdata", lines))
			expect.Equal(t, want, all(t, filepath.Join("testdata", file)))
		})
	}
}

func TestParquetTypes(t *testing.T) {
	want := []Object{
		{
			{"bool", true}, {"int8", int64(-8)}, {"uint32", int64(4294967295)}, {"uint64", json.Number("18446744073709551615")},
			{"float", 0.5}, {"double", 1e300}, {"text", "é"}, {"binary", []byte("\x00\xff")}, {"fixed", []byte("ab")},
			{"date", "2024-02-29"}, {"local", "2024-02-29T13:14:15.123456"}, {"utc", "2024-02-29T13:14:15.123456Z"}, {"clock", "13:14:15.123456"},
			{"decimal", json.Number("-1.50")}, {"big", json.Number("123456789012345678901234567890")}, {"null", nil}, {"class", "law"},
			{"map", Object{{"k", int64(1)}, {"l", nil}}},
			{"nested", []any{[]any{int64(1), int64(2)}, []any{}, nil}},
			{"struct", Object{{"a", nil}, {"b", Object{{"c", []any{nil, "x"}}}}}},
		},
		{
			{"bool", nil}, {"int8", nil}, {"uint32", nil}, {"uint64", int64(7)},
			{"float", nil}, {"double", nil}, {"text", nil}, {"binary", nil}, {"fixed", nil},
			{"date", nil}, {"local", "1969-12-31T23:59:59.999"}, {"utc", nil}, {"clock", nil},
			{"decimal", json.Number("0.05")}, {"big", nil}, {"null", nil}, {"class", nil},
			{"map", nil}, {"nested", nil}, {"struct", nil},
		},
	}
	expect.Equal(t, want, all(t, filepath.Join("testdata", "types.parquet")))
}

// oldList is a list as old writers annotate one.
type oldList struct{ parquet.Group }

func (oldList) Type() parquet.Type { return parquet.List(parquet.Int(64)).Type() }

// TestParquetOldLists: the one field of a list's repeated group is the element, unless the group's name says that the
// group is.
func TestParquetOldLists(t *testing.T) {
	for group, want := range map[string]any{
		"list": []any{int64(3)}, "array": []any{Object{{"x", int64(3)}}}, "l_tuple": []any{Object{{"x", int64(3)}}},
	} {
		path := filepath.Join(t.TempDir(), group+".parquet")
		f := must.Get(os.Create(path))(t)
		schema := parquet.NewSchema("s", parquet.Group{"l": oldList{parquet.Group{group: parquet.Repeated(parquet.Group{"x": parquet.Int(64)})}}})
		w := parquet.NewWriter(f, schema)
		must.Get(w.WriteRows([]parquet.Row{{parquet.Int64Value(3).Level(0, 1, 0)}}))(t)
		must.Do(t, w.Close())
		must.Do(t, f.Close())
		expect.Equal(t, []Object{{{"l", want}}}, all(t, path), group)
	}
}

func TestParquetRows(t *testing.T) {
	rows, err := Read(filepath.Join("testdata", "types.parquet"), Columns{Text: "date", Label: "uint64"})
	want := `testdata/types.parquet:2: column "date": got null, want a string`
	expect.Same(t, want, text(err), "error %q, want %q, rows %v", text(err), want, rows)
	_, err = Read(filepath.Join("testdata", "types.parquet"), Columns{Text: "txt", Label: "uint64"})
	want = `testdata/types.parquet: no column "txt"; columns are "bool", "int8", "uint32", "uint64", "float", "double", "text", "binary", "fixed", "date", "local", "utc", "clock", "decimal", "big", "null", "class", "map", "nested", "struct"; did you mean "text"?`
	expect.Same(t, want, text(err), "error")
	rows, err = Read(filepath.Join("testdata", "types.parquet"), Columns{Text: "local", Label: "uint64"})
	expect.True(t, err == nil && len(rows) == 2 && rows[0].Label == "18446744073709551615" && rows[1].Line == 2,
		"rows %v, error %v", rows, err)
}

// A truncated or changed file gives an error or records, never a panic.
func TestParquetDamaged(t *testing.T) {
	whole := must.Get(os.ReadFile(filepath.Join("testdata", "messages.parquet")))(t)
	for n := 0; n < len(whole); n += 7 {
		expect.Require(t, readBytes(whole[:n]) != nil, "no error in the first %d of %d bytes", n, len(whole))
	}
	for i := range whole {
		changed := append([]byte(nil), whole...)
		changed[i] ^= 0xff
		checkLine(t, readBytes(changed))
	}
}
