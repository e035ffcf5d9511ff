package policy

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/envs/intent"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

func TestMapping(t *testing.T) {
	labels := append(intent.Labels(), `quoted "ß" <b>`)
	dir := t.TempDir()
	must.Do(t, WriteMapping(dir, labels))
	expect.Equal(t, labels, must.Get(ReadMapping(dir))(t))
	entries := must.Get(os.ReadDir(dir))(t)
	expect.Same(t, 2, len(entries), "%v in the folder, want the two files only", entries)
}

func TestWriteMappingBytes(t *testing.T) {
	dir := t.TempDir()
	must.Do(t, WriteMapping(dir, []string{"law", "math"}))
	want := `{
  "category_to_idx": {
    "law": 0,
    "math": 1
  },
  "idx_to_category": {
    "0": "law",
    "1": "math"
  }
}
`
	for _, name := range []string{"label_mapping.json", "category_mapping.json"} {
		got := must.Get(os.ReadFile(filepath.Join(dir, name)))(t)
		expect.Equal(t, want, string(got), name)
	}
}

func TestWriteMappingErrors(t *testing.T) {
	for want, labels := range map[string][]string{
		"1 labels":                  {"a"},
		"label 1 is empty":          {"a", " "},
		`label "b" occurs twice`:    {"b", "a", "b"},
		`label "\xff" is not UTF-8`: {"a", "\xff"},
		"no such file or directory": {"a", "b"},
	} {
		dir := t.TempDir()
		if strings.HasPrefix(want, "no such") {
			dir = filepath.Join(dir, "none")
		}
		expect.Error(t, WriteMapping(dir, labels), want, dir)
		entries, _ := os.ReadDir(dir)
		expect.True(t, len(entries) == 0, "WriteMapping(%q) left %v", labels, entries)
	}
}

func TestReadMappingErrors(t *testing.T) {
	good := `{"category_to_idx": {"a": 0, "b": 1}, "idx_to_category": {"0": "a", "1": "b"}}`
	tests := []struct{ name, content, want string }{
		{"empty", "", "invalid JSON: EOF"},
		{"cut", good[:40], "invalid JSON: unexpected EOF"},
		{"more", good + "{}", "trailing data"},
		{"array", "[]", "a JSON array, want an object with the fields category_to_idx and idx_to_category"},
		{"unknown field", `{"label_to_id": {"a": 0}}`, `invalid JSON: json: unknown field "label_to_id"`},
		{"no names", `{"category_to_idx": {"a": 0, "b": 1}}`, "field idx_to_category is missing"},
		{"no indices", `{"idx_to_category": {"0": "a", "1": "b"}}`, "field category_to_idx is missing"},
		{"one label", `{"category_to_idx": {"a": 0}, "idx_to_category": {"0": "a"}}`, "1 labels"},
		{"type of index", strings.Replace(good, "1", `"1"`, 1), "field category_to_idx: got a JSON string, want an integer for every label"},
		{"fraction", strings.Replace(good, "1", "1.5", 1), "field category_to_idx: got a JSON number 1.5, want an integer for every label"},
		{"type of name", strings.Replace(good, `"1": "b"`, `"1": 3`, 1), "field idx_to_category: got a JSON number, want a name for every index"},
		{"type of field", `{"category_to_idx": [], "idx_to_category": {}}`, "field category_to_idx: got a JSON array, want an integer for every label"},
		{"null", "null", "field category_to_idx is missing"},
		{"gap", `{"category_to_idx": {"a": 0, "b": 2}, "idx_to_category": {"0": "a", "2": "b"}}`, `field idx_to_category: index "1" is missing`},
		{"from one", `{"category_to_idx": {"a": 1, "b": 2}, "idx_to_category": {"1": "a", "2": "b"}}`, `field idx_to_category: index "0" is missing`},
		{"leading zero", strings.Replace(good, `"1": "b"`, `"01": "b"`, 1), `field idx_to_category: index "1" is missing`},
		{"not inverse", strings.Replace(good, `"a": 0, "b": 1`, `"a": 1, "b": 0`, 1), `label "a": category_to_idx has index 1, idx_to_category has "0"`},
		{"other name", strings.Replace(good, `"1": "b"`, `"1": "c"`, 1), `field category_to_idx: label "c" is missing`},
		{"fewer", strings.Replace(good, `, "b": 1`, "", 1), "field category_to_idx has 1 entries, idx_to_category 2"},
		{"not UTF-8", strings.ReplaceAll(good, `"a"`, "\"\xff\""), "the file is not UTF-8"},
		{"empty label", strings.ReplaceAll(good, `"a"`, `""`), "label 0 is empty"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "label_mapping.json")
			must.Do(t, os.WriteFile(path, []byte(tt.content), 0o644))
			_, err := ReadMapping(dir)
			expect.True(t, err != nil && strings.HasPrefix(err.Error(), path+": ") && strings.Contains(err.Error(), tt.want),
				"error %v, want %q", err, tt.want)
		})
	}
}

func TestReadMappingOfTwoFiles(t *testing.T) {
	dir := t.TempDir()
	expect.Failure(ReadMapping(dir))(t, "label_mapping.json")
	must.Do(t, WriteMapping(dir, []string{"a", "b"}))
	other := `{"category_to_idx": {"b": 0, "a": 1}, "idx_to_category": {"0": "b", "1": "a"}}`
	path := filepath.Join(dir, "category_mapping.json")
	must.Do(t, os.WriteFile(path, []byte(other), 0o644))
	if _, err := ReadMapping(dir); err == nil || !strings.HasPrefix(err.Error(), path+": labels differ") {
		t.Errorf("error %v, want one naming %s", err, path)
	}
	must.Do(t, os.Remove(path))
	expect.Failure(ReadMapping(dir))(t, path)
}

func FuzzDecodeMapping(f *testing.F) {
	f.Add(`{"category_to_idx": {"a": 0, "b": 1}, "idx_to_category": {"0": "a", "1": "b"}}`)
	f.Add(`{"category_to_idx": {"a": 0, "a": 1}, "idx_to_category": {"0": "a", "00": "b"}}`)
	f.Add(`{"category_to_idx": null}`)
	f.Fuzz(func(t *testing.T, content string) {
		labels, err := decodeMapping([]byte(content))
		if err != nil {
			expect.Require(t, !strings.ContainsAny(err.Error(), "\n\r"), "error %q", err)
			return
		}
		again, err := encodeMapping(labels)
		expect.Require(t, err == nil, "labels %q: %v", labels, err)
		expect.Require(t, json.Valid(again), "not JSON: %s", again)
		back := must.Get(decodeMapping(again))(t)
		if diff := cmp.Diff(labels, back); diff != "" {
			t.Fatalf("(-first +again):\n%s", diff)
		}
	})
}
