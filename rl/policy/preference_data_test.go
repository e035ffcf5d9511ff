package policy

import (
	"errors"
	"iter"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/envs/chat"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

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
