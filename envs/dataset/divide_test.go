package dataset_test

import (
	"iter"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// idsOf are the records' column "id".
func idsOf(t *testing.T, records iter.Seq2[dataset.Record, error]) string {
	t.Helper()
	var ids []string
	for r, err := range records {
		if err != nil {
			return "error: " + err.Error()
		}
		id, _ := r.Fields.Get("id")
		ids = append(ids, id.(string))
	}
	return strings.Join(ids, " ")
}

func TestDivide(t *testing.T) {
	const column = `{"id":"a","split":"train"}
{"id":"b","split":"validation"}
{"id":"c","split":"test"}
{"id":"d","split":"train"}
{"id":"e","split":"val"}
`
	for _, tt := range []struct {
		name              string
		files             map[string]string
		config            string
		train, validation string
		given             bool
	}{
		{"column", map[string]string{"rows.jsonl": column}, "", "a d", "b e", true},
		{"files win over the column", map[string]string{"train.jsonl": column, "valid.jsonl": `{"id":"x"}`}, "", "a b c d e", "x", true},
		{"files called val", map[string]string{"data/train-00000-of-00001.jsonl": column, "data/val-00000-of-00001.jsonl": `{"id":"x"}`}, "", "a b c d e", "x", true},
		{"README's dev", map[string]string{"README.md": "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: a.jsonl\n  - split: dev\n    path: b.jsonl\n---\n", "a.jsonl": `{"id":"x"}`, "b.jsonl": `{"id":"y"}`}, "", "x", "y", true},
		{"none", map[string]string{"rows.jsonl": `{"id":"a"}` + "\n" + `{"id":"b"}`}, "", "a b", "", false},
		{"another meaning", map[string]string{"rows.jsonl": `{"id":"a","split":"left"}` + "\n" + `{"id":"b","split":"train"}`}, "", "a b", "", false},
		{"some rows only", map[string]string{"rows.jsonl": `{"id":"a","split":"train"}` + "\n" + `{"id":"b"}`}, "",
			`error: DIR/rows.jsonl:2: column "split": got null, want train, val, validation or test`, `error: DIR/rows.jsonl:2: column "split": got null, want train, val, validation or test`, true},
		{"unknown split", map[string]string{"rows.jsonl": `{"id":"a","split":"train"}` + "\n" + `{"id":"b","split":"x"}`}, "",
			`error: DIR/rows.jsonl:2: column "split": unknown split "x"; want train, val, validation or test`, `error: DIR/rows.jsonl:2: column "split": unknown split "x"; want train, val, validation or test`, true},
		{"test only", map[string]string{"train.jsonl": `{"id":"a"}`, "test.jsonl": `{"id":"b"}`}, "", "a", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, content := range tt.files {
				path := filepath.Join(dir, filepath.FromSlash(name))
				must.Write(t, path, content)
			}
			parts := must.Get(dataset.Find("", dir))(t)
			d := must.Get(dataset.Reader{}.Divide(parts))(t)
			in := func(ids string) string { return strings.ReplaceAll(ids, dir, "DIR") }
			got := []string{in(idsOf(t, d.Train)), in(idsOf(t, d.Validation))}
			diff := cmp.Diff([]string{tt.train, tt.validation}, got)
			expect.True(t, diff == "" && d.Given == tt.given, "given is %t: %s", d.Given, diff)
		})
	}
	expect.Failure((dataset.Reader{}).Divide([]dataset.Part{{dataset.Test, nil}}))(t, "no split")
}
