package policy

import (
	"encoding/json"
	"errors"
	"iter"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch/transformers/tokenizer"
)

// TestSpell reports the length of the text after each token.
func TestSpell(t *testing.T) {
	p := tinyPolicy(t, Config{})
	ids := must.Get(p.Tokenizer.EncodeRaw("a+b=", false))(t)
	text, ends, err := p.DecodeEnds(append(ids, p.EOS()[0]))
	expect.True(t, err == nil && text == "a+b=" && slices.Equal(ends, []int{1, 2, 3, 4, 4}), "%q, %v, %v; want the text, and no more of it for the end token", text, ends, err)
	expect.Equal(t, ids, must.Get(p.EncodeObservation(envs.Observation{Text: "a+b="}))(t), "an observation is read as it is")
	expect.Failure(p.EncodeObservation(question("so")))(t, "chat template")
	_, _, err = p.DecodeEnds([]int32{1 << 20})
	expect.Error(t, err, "1048576")
	// Bytes of a character have no text until it is complete; at the end they are no character.
	p.Tokenizer = must.Get(tokenizer.Load(filepath.Join("..", "..", "torch", "transformers", "tokenizer", "testdata", "bytes")))(t)
	ids, err = p.Tokenizer.EncodeRaw("日+日", false)
	expect.Require(t, err == nil && len(ids) == 7, "%v, %v", ids, err)
	text, ends, err = p.DecodeEnds(ids[:6])
	expect.True(t, err == nil && strings.HasPrefix(text, "日+\ufffd") && len(ends) == 6 && slices.Equal(ends[:5], []int{0, 0, 3, 4, 4}), "%q, %v, %v", text, ends, err)
}

// pairOf is a row with two answers.
func pairOf(line int, prompt, chosen, rejected string) chat.Example {
	return chat.Example{File: "f", Line: line, Format: chat.Preference, Prompt: chat.Content{Text: prompt}, Chosen: chat.Content{Text: chosen}, Rejected: chat.Content{Text: rejected}}
}

// singleOf is a row with one answer.
func singleOf(prompt, answer string, good bool) chat.Example {
	e := completionOf(prompt, answer)
	e.Format, e.Label = chat.Unpaired, good
	return e
}

// TestEncodePreferences: what is truncated and what is skipped, with one token per letter and at most six tokens.
func TestEncodePreferences(t *testing.T) {
	p := tinyPolicy(t, Config{})
	type kept struct {
		Answers []string // tokens of a unit; a full stop is the end token
		Truths  []int32
	}
	for _, test := range []struct {
		name                      string
		examples                  []chat.Example
		singles                   bool
		want                      []kept
		cut, dropped, equal, null int
		first                     string
	}{
		{name: "pair", examples: []chat.Example{pairOf(1, "ab", "c", "")}, want: []kept{{[]string{"c.", "."}, []int32{1, 0}}}},
		{name: "cut", examples: []chat.Example{pairOf(1, "ab", "cdefg", "c")}, want: []kept{{[]string{"cdef", "c."}, []int32{1, 0}}}, cut: 1},
		{name: "one side is gone", examples: []chat.Example{pairOf(1, "abcdef", "g", "h"), pairOf(2, "a", "b", "c")}, want: []kept{{[]string{"b.", "c."}, []int32{1, 0}}}, dropped: 1, first: "f:1"},
		{name: "equal", examples: []chat.Example{pairOf(1, "a", "b", "c"), pairOf(2, "a", "b", "b")}, want: []kept{{[]string{"b.", "c."}, []int32{1, 0}}}, equal: 1, first: "f:2"},
		{name: "equal once cut", examples: []chat.Example{pairOf(1, "a", "b", "c"), pairOf(2, "ab", "cdefg", "cdefh")}, want: []kept{{[]string{"b.", "c."}, []int32{1, 0}}}, dropped: 1, first: "f:2"},
		{name: "null", examples: []chat.Example{{}, pairOf(2, "a", "b", "c")}, want: []kept{{[]string{"b.", "c."}, []int32{1, 0}}}, null: 1},
		{name: "a single is gone", singles: true, examples: []chat.Example{singleOf("abcdef", "g", true), singleOf("a", "d", true)}, want: []kept{{[]string{"d."}, []int32{1}}}, dropped: 1, first: "f:1"},
		{name: "taken apart", singles: true, examples: []chat.Example{pairOf(1, "a", "b", "c"), singleOf("a", "d", false), singleOf("a", "e", true)},
			want: []kept{{[]string{"b."}, []int32{1}}, {[]string{"c."}, []int32{0}}, {[]string{"d."}, []int32{0}}, {[]string{"e."}, []int32{1}}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := must.Get(p.EncodePreferences(withNulls(test.examples), EncodeOptions{MaxLength: 6}, test.singles))(t)
			var units []kept
			for i, unit := range got.Units {
				var k kept
				for _, x := range unit {
					expect.Same(t, i, x.Prompt, "unit %d has the number", i)
					answer := must.Get(p.Tokenizer.Decode(x.Actions, false))(t)
					k.Answers, k.Truths = append(k.Answers, strings.ReplaceAll(answer, "<eos>", ".")), append(k.Truths, x.Truth)
				}
				units = append(units, k)
			}
			expect.Equal(t, test.want, units, "units")
			diff := cmp.Diff([]int{test.cut, test.dropped, test.equal, test.null}, []int{got.Cut, got.Dropped, got.Equal, got.Null})
			expect.True(t, diff == "" && got.First == test.first, "cut, dropped, equal, null (-want +got):\n%s; first %q, want %q", diff, got.First, test.first)
		})
	}
}

// TestEqualRankings: a row whose best answer is among the others teaches a reward model nothing.
func TestEqualRankings(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tiny")
	must.Do(t, TinyModel(dir, 1, 32, 3))
	m := must.Open(NewRewardModel(Config{Dir: dir, R: 4, Alpha: 8, MaxLength: 40}))(t)
	got := must.Get(m.Units(examplesOf(pairOf(1, "a", "b", "c"), pairOf(2, "a", "b", "b")), false))(t)
	expect.True(t, len(got.Units) == 1 && got.Equal == 1 && got.First == "f:2", "%+v", got)
	expect.Equal(t, []string{"f:1"}, got.Places)
	bad := pairOf(3, "a", "b", "c")
	bad.Extra = dataset.Object{{Name: "margin", Value: "much"}}
	expect.Failure(m.Units(examplesOf(bad), false))(t, `f:3: column "margin": much is not a number`)
	got = must.Get(m.Units(examplesOf(bad, pairOf(4, "a", "b", "c")), true))(t)
	expect.Equal(t, []string{"f:4"}, got.Places, "without the row that cannot be encoded")
}

// TestJoinedExamples: every count is the sum of both.
func TestJoinedExamples(t *testing.T) {
	var x, y TokenExamples
	counts := func(of *TokenExamples, f func(i int, v reflect.Value)) {
		for i := range reflect.TypeFor[TokenExamples]().NumField() {
			if v := reflect.ValueOf(of).Elem().Field(i); v.Kind() == reflect.Int {
				f(i, v)
			}
		}
	}
	counts(&x, func(i int, v reflect.Value) { v.SetInt(int64(i)) })
	counts(&y, func(i int, v reflect.Value) { v.SetInt(int64(100 * i)) })
	x.Join(y)
	counts(&x, func(i int, v reflect.Value) { expect.Same(t, int64(101*i), v.Int(), "field %d", i) })
}

// withNulls returns examples; rows without a file become null rows.
func withNulls(examples []chat.Example) iter.Seq2[chat.Example, error] {
	return func(yield func(chat.Example, error) bool) {
		for _, e := range examples {
			var err error
			if e.File == "" {
				err = errors.Join(chat.ErrNull)
			}
			if !yield(e, err) {
				return
			}
		}
	}
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
		expect.Equal(t, want, string(must.Get(os.ReadFile(filepath.Join(dir, name)))(t)), name)
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
	for _, tt := range []struct{ name, content, want string }{
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
		{"leading zero", strings.Replace(good, `"1": "b"`, `"01": "b"`, 1), `field idx_to_category: index "1" is missing; want "0" to "1"`},
		{"not inverse", strings.Replace(good, `"a": 0, "b": 1`, `"a": 1, "b": 0`, 1), `label "a": category_to_idx has index 1, idx_to_category has "0"`},
		{"other name", strings.Replace(good, `"1": "b"`, `"1": "c"`, 1), `field category_to_idx: label "c" is missing`},
		{"fewer", strings.Replace(good, `, "b": 1`, "", 1), "field category_to_idx has 1 entries, idx_to_category 2"},
		{"not UTF-8", strings.ReplaceAll(good, `"a"`, "\"\xff\""), "the file is not UTF-8"},
		{"empty label", strings.ReplaceAll(good, `"a"`, `""`), "label 0 is empty"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "label_mapping.json")
			must.Do(t, os.WriteFile(path, []byte(tt.content), 0o644))
			_, err := ReadMapping(dir)
			expect.True(t, err != nil && strings.HasPrefix(err.Error(), path+": ") && strings.Contains(err.Error(), tt.want), "error %v, want %q", err, tt.want)
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
	_, err := ReadMapping(dir)
	expect.True(t, err != nil && strings.HasPrefix(err.Error(), path+": labels differ"), "error %v, want one naming %s", err, path)
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
		diff := cmp.Diff(labels, back)
		expect.Require(t, diff == "", "(-first +again):\n%s", diff)
	})
}
