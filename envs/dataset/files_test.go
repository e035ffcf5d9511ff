package dataset

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/parquet-go/parquet-go"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

func TestChoose(t *testing.T) {
	readme := "---\nlicense: mit\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: main/train-*\n  - split: test\n    path:\n    - \"main/b[0-9].json\"\n    - ./main/a?.json\n" +
		"- config_name: socratic\n  data_files: [\"**/s.csv\", \"t**.tsv\"]\n- config_name: dir\n  data_dir: more\n---\n# A data set\n"
	for _, tt := range []struct {
		name, config, readme string
		files                []string
		want                 []Part
		err                  string
	}{
		{"sharded", "", "", []string{"README.md", "data/test-00000-of-00001.parquet", "data/train_sft-00001-of-00002-ab.parquet", "data/train_sft-00000-of-00002-cd.parquet", "data/train.csv"},
			[]Part{{"test", []string{"data/test-00000-of-00001.parquet"}}, {"train_sft", []string{"data/train_sft-00000-of-00002-cd.parquet", "data/train_sft-00001-of-00002-ab.parquet"}}}, ""},
		{"file names", "", "", []string{"my_valid.jsonl", "train-1.jsonl", "train-0.jsonl", "eval.jsonl.gz", "latest.jsonl", ".hidden/train.jsonl"},
			[]Part{{"train", []string{"train-0.jsonl", "train-1.jsonl"}}, {"validation", []string{"my_valid.jsonl"}}, {"test", []string{"eval.jsonl.gz"}}}, ""},
		{"folder names", "", "", []string{"test/x.json", "en-train-2/a/y.json", "train.json"},
			[]Part{{"train", []string{"en-train-2/a/y.json"}}, {"test", []string{"test/x.json"}}}, ""},
		{"commonest format", "", "", []string{"a.csv", "b.csv", "train.json", "dataset_info.json", "state.json", "x.arrow"}, []Part{{"train", []string{"a.csv", "b.csv"}}}, ""},
		{"two as common", "", "", []string{"a.csv", "b.jsonl"}, []Part{{"train", []string{"b.jsonl"}}}, ""},
		{"no data", "", "", []string{"README.md", "a.txt", "b.parquet.gz"}, nil, `no data files; want .parquet, .jsonl, .json or .csv`},
		{"folder of a configuration", "en", "", []string{"en/a.csv", "de/a.csv", "end/a.csv"}, []Part{{"train", []string{"en/a.csv"}}}, ""},
		{"no such folder", "fr", "", []string{"en/a.csv"}, nil, `no data files of the configuration "fr"; want .parquet, .jsonl, .json or .csv`},

		{"converted", "b", "", []string{"a/train/0000.parquet", "b/train_x/0001.parquet", "b/train_x/0000.parquet", "b/test/0000.parquet"},
			[]Part{{"test", []string{"b/test/0000.parquet"}}, {"train_x", []string{"b/train_x/0000.parquet", "b/train_x/0001.parquet"}}}, ""},
		{"converted, default", "", "", []string{"default/train/0000.parquet", "z/train/0000.parquet"}, []Part{{"train", []string{"default/train/0000.parquet"}}}, ""},
		{"converted, several", "", "", []string{"a/train/0000.parquet", "b/train/0000.parquet"}, nil, `the data set has several configurations; choose one with --dataset-config: "a", "b"`},
		{"converted, none such", "c", "", []string{"a/train/0000.parquet"}, nil, `the data set has no configuration "c"; choose from "a"`},

		{"README", "main", readme, []string{"main/train-b.txt", "main/train-a.txt", "main/b1.json", "main/b11.json", "main/a1.json", "main/x/train-c"},
			[]Part{{"train", []string{"main/train-a.txt", "main/train-b.txt"}}, {"test", []string{"main/b1.json", "main/a1.json"}}}, ""},
		{"README, any depth", "socratic", readme, []string{"s.csv", "a/b/s.csv", "as.csv", "t/u/v.tsv", "t_tsv"}, []Part{{"train", []string{"a/b/s.csv", "s.csv", "t/u/v.tsv"}}}, ""},
		{"README, folder", "dir", readme, []string{"more/test.csv", "more/train.csv", "train.csv"}, []Part{{"train", []string{"more/train.csv"}}, {"test", []string{"more/test.csv"}}}, ""},
		{"README, no files", "main", readme, []string{"main/train-a"}, nil, `no files match "main/b[0-9].json", which README.md names for split "test" of the configuration "main"`},
		{"README without configs", "", "---\nlicense: mit\n---\n", []string{"a.csv"}, []Part{{"train", []string{"a.csv"}}}, ""},
		{"README that is not YAML", "", "---\nconfigs: [\n---\n", []string{"a.csv"}, nil, `README.md: the header is not valid YAML: [1:10] sequence end token ']' not found`},
		{"README with broken YAML behind", "", strings.Replace(readme, "---\n# A", "dataset_info: [{\n---\n# A", 1), []string{"a.csv"}, nil, `the data set has several configurations; choose one with --dataset-config: "main", "socratic", "dir"`},
		{"README with an alias", "", "---\nconfigs:\n- data_files: *.csv\n---\n", nil, nil, `README.md: YAML anchor or alias "*" is not supported in configurations; quote the pattern`},
		{"README with deep YAML", "", "---\nconfigs: " + strings.Repeat("[", 1<<12) + "\n---\n", nil, nil, "README.md: the configurations are nested deeper than 8"},
		{"README with long YAML", "", "---\nconfigs:\n" + strings.Repeat("- data_dir: a\n", 1<<17) + "---\n", nil, nil, "README.md: the configurations have 1835016 bytes, maximum 1048576"},
		{"README with other paths", "", "---\nconfigs:\n- config_name: a\n  data_files: {train: x}\n---\n", nil, nil, `README.md: configuration "a": data_files: want a path, a list of paths, or a list of split and path`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Choose(tt.config, tt.files, []byte(tt.readme))
			expect.Equal(t, tt.err, text(err), "error")
			expect.Equal(t, tt.want, got)
		})
	}
}

func TestFind(t *testing.T) {
	dir := must.Folder(t, map[string]string{"sub/train.jsonl": "a\n1\n", "sub/test.jsonl": "a\n1\n", "other.csv": "a\n1\n", "plain.csv": "a\n1\n"})
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, tt := range []struct {
		name   string
		config string
		paths  []string
		want   []Part
		err    string
	}{
		{"folder", "", []string{in("sub")}, []Part{{"train", []string{in("sub/train.jsonl")}}, {"test", []string{in("sub/test.jsonl")}}}, ""},
		{"file", "", []string{in("sub/test.jsonl")}, []Part{{"train", []string{in("sub/test.jsonl")}}}, ""},
		{"files of splits", "", []string{in("sub/test.jsonl"), in("sub/train.jsonl")}, []Part{{"train", []string{in("sub/train.jsonl")}}, {"test", []string{in("sub/test.jsonl")}}}, ""},
		{"files", "", []string{in("plain.csv"), in("other.csv")}, []Part{{"train", []string{in("plain.csv"), in("other.csv")}}}, ""},
		{"files, some of splits", "", []string{in("sub/train.jsonl"), in("other.csv")}, nil, "DIR/other.csv: the file name has no split but the others do; add train, validation or test to the name"},
		{"folder and file", "", []string{in("sub"), in("other.csv")}, nil, "DIR/sub is a folder; pass one folder or only files"},
		{"missing", "", []string{in("none")}, nil, "reading data set: stat DIR/none: no such file or directory"},
		{"configuration of a file", "a", []string{in("other.csv")}, nil, `configuration "a": only folders and hub data sets have configurations`},
		{"configuration of a folder", "a", []string{in("sub")}, nil, `DIR/sub: no data files of the configuration "a"; want .parquet, .jsonl, .json or .csv`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Find(tt.config, tt.paths...)
			expect.Equal(t, tt.err, strings.ReplaceAll(text(err), dir, "DIR"), "error")
			expect.Equal(t, tt.want, got)
		})
	}
}

func TestFilesOf(t *testing.T) {
	parts := []Part{{"train", []string{"a"}}, {"validation", []string{"b"}}}
	got, err := FilesOf(parts, Val)
	expect.True(t, err == nil && cmp.Equal(got, []string{"b"}), "%v, %v", got, err)
	_, err = FilesOf(parts, "test")
	expect.Same(t, `the data set has no split "test"; choose from "train", "validation"`, text(err), "%v", err)
}

func TestChooseSplits(t *testing.T) {
	readme := []byte("---\nconfigs:\n- data_files:\n  - {split: train, path: a.csv}\n  - {split: test, path: b.csv}\n---\n")
	got, err := Choose("", []string{"a.csv"}, readme, "train", "validation")
	diff := cmp.Diff([]Part{{"train", []string{"a.csv"}}}, got)
	expect.True(t, diff == "" && err == nil, "%v %v", err, diff)
	_, err = Choose("", []string{"a.csv"}, readme, "test")
	want := `no files match "b.csv", which README.md names for split "test"`
	expect.True(t, text(err) == want, "got %v, want %s", err, want)
	_, err = Choose("", []string{"a.csv"}, readme, "dev")
	want = `the data set has no split "dev"`
	expect.Same(t, want, text(err), "got %v, want %s", err, want)
}

func FuzzChoose(f *testing.F) {
	f.Add("", "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: main/tr[a-z]?n-*\n---\n", "main/train-1\ntest.csv")
	f.Add("a", "---\nconfigs:\n- data_files: '**'\n---", "a/train/0000.parquet\ndata/x-00000-of-00001.csv")
	f.Fuzz(func(t *testing.T, config, readme, files string) {
		names := strings.Split(files, "\n")
		parts, err := Choose(config, names, []byte(readme))
		expect.Require(t, err != nil || len(parts) != 0, "no parts and no error")
		for _, part := range parts {
			expect.Require(t, part.Split != "" && len(part.Files) != 0, "part %+v", part)
		}
	})
}

// TestPipeInAFolder: a named pipe in a folder of files is an error, and nothing waits for its writer.
func TestPipeInAFolder(t *testing.T) {
	dir := must.Folder(t, map[string]string{"train.csv": "text,label\na,b\n"})
	must.Do(t, syscall.Mkfifo(filepath.Join(dir, "README.md"), 0o600))
	expect.Failure(findInFolder("", dir))(t, "README.md: not a regular file")
}

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
			expect.Equal(t, all(t, filepath.Join("testdata", lines)), all(t, filepath.Join("testdata", file)))
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
	expect.True(t, err == nil && len(rows) == 2 && rows[0].Label == "18446744073709551615" && rows[1].Line == 2, "rows %v, error %v", rows, err)
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

// A folder of save_to_disk has the saved splits and rows.
func TestSaveToDisk(t *testing.T) {
	parts := must.Get(Find("", filepath.Join("testdata", "saved")))(t)
	d, err := Reader{}.Divide(parts)
	expect.Require(t, err == nil && d.Given, "%v %v", d.Given, err)
	want := all(t, filepath.Join("testdata", "messages.jsonl"))
	var train, held []Object
	for r, err := range d.Train {
		must.Do(t, err)
		train = append(train, r.Fields)
	}
	for r, err := range d.Validation {
		must.Do(t, err)
		held = append(held, r.Fields)
	}
	diff := cmp.Diff(want, train) + cmp.Diff(want[:1], held)
	expect.True(t, diff == "", "(-want +got):\n%s", diff)
	alone, err := Find("", filepath.Join("testdata", "saved_alone"))
	expect.Require(t, err == nil && len(alone) == 1 && alone[0].Split == "train" && len(alone[0].Files) == 3, "%v %v", alone, err)
	var ids []int64
	for _, fields := range all(t, alone[0].Files...) {
		id, _ := fields.Get("id")
		ids = append(ids, id.(int64))
	}
	expect.Equal(t, []int64{0, 1, 2, 3, 4, 5, 6}, ids)
}

func TestArrowRefused(t *testing.T) {
	saved := must.Get(os.ReadFile(filepath.Join("testdata", "saved", "train", "data-00000-of-00001.arrow")))(t)
	for name, content := range map[string][]byte{"empty": nil, "text": []byte("hello, this is no Arrow"), "short": saved[:len(saved)/2], "zeros": make([]byte, 4096)} {
		var failed error
		for _, err := range Records(must.File(t, "rows.arrow", string(content))) {
			failed = err
		}
		if name == "zeros" && failed == nil {
			continue // a stream that ends at once
		}
		expect.True(t, failed != nil && strings.Contains(failed.Error(), "rows.arrow: not an Arrow stream, or damaged") && !strings.Contains(failed.Error(), "\n"), "%s: %v", name, failed)
	}
	expect.Failure(Reader{}.Rows([]Part{{"train", []string{filepath.Join("testdata", "saved_alone", "data-00000-of-00003.arrow")}}}, Columns{Label: "nope"}, &Faults{}))(t, `no column "nope"; columns are`)
}

// Any bytes give records or a one-line error.
func FuzzArrow(f *testing.F) {
	saved := must.Get(os.ReadFile(filepath.Join("testdata", "saved", "train", "data-00000-of-00001.arrow")))(f)
	f.Add(saved)
	f.Fuzz(func(t *testing.T, data []byte) {
		n := 0
		err := readArrowFrom(bytes.NewReader(data), int64(len(data)), "x.arrow", nil, func(Record) error {
			if n++; n > 10000 {
				return errStop
			}
			return nil
		})
		expect.True(t, err == nil || !strings.Contains(err.Error(), "\n"), "%q", err)
	})
}

// TestUnpackBound: a file that unpacks to very much more than its size is refused, and the reader hears that it takes long.
func TestUnpackBound(t *testing.T) {
	defer func(most int64) { maxUnpacked = most }(maxUnpacked)
	maxUnpacked = 16 << 20
	said := ""
	reader := Reader{Progress: func(line string) { said = line }}
	write := func(name string, row string, rows int) string {
		t.Helper()
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		for range rows {
			must.Get(z.Write([]byte(row)))(t)
		}
		must.Do(t, z.Close())
		return must.File(t, name, packed.String())
	}
	count := func(path string) (n int, err error) {
		for _, err = range reader.Records(path) {
			if err != nil {
				return n, err
			}
			n++
		}
		return n, nil
	}
	long := `{"text":"` + strings.Repeat("x", 1<<20) + `"}` + "\n"
	if n, err := count(write("bomb.jsonl.gz", long, 300)); err == nil || !strings.Contains(err.Error(), "unpack it yourself") || n > 17 {
		t.Errorf("%d rows, %v", n, err)
	}
	if n, err := count(write("small.jsonl.gz", long, 12)); err != nil || n != 12 {
		t.Errorf("below the bound: %d rows, %v", n, err)
	}
	maxUnpacked = 1 << 40
	if n, err := count(write("large.jsonl.gz", long, 260)); err != nil || n != 260 || !strings.Contains(said, "256 MiB") {
		t.Errorf("%d rows, %v, progress %q", n, err, said)
	}
}
