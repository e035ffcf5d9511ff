package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/must"
)

// A tokenCase is a text with transformers' tokens, or, without a text, ids with their text.
type tokenCase struct {
	Dir     string   `json:"dir"`
	Text    *string  `json:"text"`
	IDs     []int32  `json:"ids"`
	Special []int32  `json:"special"` // with the special tokens around
	Spans   [][2]int `json:"spans"`   // of IDs
	Decoded string   `json:"decoded"` // of Special
	Skipped string   `json:"skipped"`
}

// The cases are in testdata, and in the file named by $RLTRAIN_TOKENIZER_CASES.
func TestTokenizerAsTransformers(t *testing.T) {
	files := []string{"testdata/tokenizers.jsonl", "testdata/unigram.jsonl"}
	if more := os.Getenv("RLTRAIN_TOKENIZER_CASES"); more != "" {
		files = append(files, more)
	}
	for _, file := range files {
		data := must.Get(os.ReadFile(file))(t)
		loaded := map[string]*Tokenizer{}
		n := 0
		for line := range strings.Lines(string(data)) {
			var c tokenCase
			must.Do(t, json.Unmarshal([]byte(line), &c))
			if !filepath.IsAbs(c.Dir) {
				c.Dir = filepath.Join(filepath.Dir(file), c.Dir)
			}
			if loaded[c.Dir] == nil {
				loaded[c.Dir] = load(t, c.Dir)
			}
			checkTokens(t, loaded[c.Dir], c)
			n++
		}
		t.Logf("%d cases of %s", n, file)
	}
}

func checkTokens(t *testing.T, tok *Tokenizer, c tokenCase) {
	t.Helper()
	same := func(what string, want, got any, err error) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %s of %.60q, ids %.40v: %v %s", filepath.Base(c.Dir), what, val(c.Text), c.Special, err, diff)
		}
	}
	if c.Text != nil {
		ids, err := tok.EncodeRaw(*c.Text, false)
		same("ids", c.IDs, ids, err)
		ids, err = tok.EncodeRaw(*c.Text, true)
		same("ids with special tokens", c.Special, ids, err)
		ids, spans, err := tok.EncodeSpans(*c.Text)
		same("ids with spans", c.IDs, ids, err)
		got := make([][2]int, len(spans))
		for i, s := range spans {
			got[i] = [2]int{s.Start, s.End}
		}
		if c.Spans != nil {
			same("spans", c.Spans, got, nil)
		}
	}
	for _, d := range []struct {
		skip bool
		want string
	}{{false, c.Decoded}, {true, c.Skipped}} {
		text, err := tok.Decode(c.Special, d.skip)
		same("text", d.want, text, err)
		same("text token by token", d.want, pushAll(t, tok, c.Special, d.skip), nil)
	}
}

func val(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func pushAll(t testing.TB, tok *Tokenizer, ids []int32, skip bool) string {
	t.Helper()
	d := tok.NewDecoder(skip)
	var b strings.Builder
	for _, id := range ids {
		text := must.Get(d.Push(id))(t)
		b.WriteString(text)
	}
	rest := must.Get(d.Flush())(t)
	return b.String() + rest
}
