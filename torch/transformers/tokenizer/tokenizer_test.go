package tokenizer

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

const wordpiece = "testdata/wordpiece"

func load(t testing.TB, dir string) *Tokenizer {
	t.Helper()
	return must.Open(Load(dir))(t)
}

func read(t testing.TB, name string) string {
	t.Helper()
	return must.Read(t, filepath.Join(wordpiece, name))
}

// encode.json has transformers' tokens for the same texts; its tokenizer.json asks for truncation at 4 and padding to
// 6, which must be ignored.
func TestEncode(t *testing.T) {
	var cases []struct {
		Text      string  `json:"text"`
		MaxLength int     `json:"max_length"`
		Side      string  `json:"side"`
		Full      int     `json:"full"`
		IDs       []int32 `json:"ids"`
	}
	must.Do(t, json.Unmarshal([]byte(read(t, "encode.json")), &cases))
	sides := map[string]*Tokenizer{
		"right": load(t, wordpiece),
		"left":  load(t, must.Folder(t, map[string]string{"tokenizer.json": read(t, "tokenizer.json"), "tokenizer_config.json": `{"truncation_side":"left"}`})),
	}
	for _, c := range cases {
		ids, cut, err := sides[c.Side].Encode(c.Text, c.MaxLength)
		if err != nil {
			t.Errorf("%.40q: %v", c.Text, err)
			continue
		}
		expect.Equal(t, c.IDs, ids, fmt.Sprintf("%.40q at %d, cut on the %s", c.Text, c.MaxLength, c.Side))
		expect.Same(t, c.Full > c.MaxLength, cut, "%.40q at %d: cut is %t of %d tokens", c.Text, c.MaxLength, cut, c.Full)
	}
}

// Without a tokenizer_config.json, tokenizer.json decides the truncation side.
func TestEncodeCutsAsTokenizerJSONSays(t *testing.T) {
	file := strings.Replace(read(t, "tokenizer.json"), `"direction": "Right",
  "max_length"`, `"direction": "Left",
  "max_length"`, 1)
	tok := load(t, must.Folder(t, map[string]string{"tokenizer.json": file}))
	ids, cut, err := tok.Encode("the law of force", 4)
	want := []int32{2, 7, 8, 3}
	expect.True(t, err == nil && cut && cmp.Equal(want, ids), "ids %v, %t, %v, want %v", ids, cut, err, want)
}

func TestEncodeWithoutSpecialTokens(t *testing.T) {
	file := must.Into[map[string]any](t, json.Unmarshal, []byte(read(t, "tokenizer.json")))
	file["post_processor"] = nil
	data := must.Get(json.Marshal(file))(t)
	tok := load(t, must.Folder(t, map[string]string{"tokenizer.json": string(data)}))
	ids, cut, err := tok.Encode("the law of force", 2)
	want := []int32{5, 6}
	expect.True(t, err == nil && cut && cmp.Equal(want, ids), "ids %v, %t, %v, want %v", ids, cut, err, want)
	ids, cut, err = tok.Encode("", 1)
	expect.True(t, err == nil && !cut && len(ids) == 0, "empty text: %v, %t, %v", ids, cut, err)
}

func TestEncodeRefuses(t *testing.T) {
	tok := load(t, wordpiece)
	for _, tt := range []struct {
		name, text string
		max        int
		want       string
	}{
		{"NUL", "a\x00b", 8, "NUL byte at byte 1"},
		{"UTF-8", "\ufffdab\xffc", 8, "not valid UTF-8 at byte 5"},
		{"no room", "a", 2, "maxLength 2 leaves no room beside 2 special tokens"},
	} {
		_, _, err := tok.Encode(tt.text, tt.max)
		expect.True(t, err != nil && strings.Contains(err.Error(), tt.want), "%s: error %v, want %q", tt.name, err, tt.want)
	}
	tok.Close()
	_, _, err := tok.Encode("a", 8)
	expect.True(t, err != nil && strings.Contains(err.Error(), "closed"), "closed: %v", err)
	expect.NoError(t, tok.Close(), "closing twice")
}

func TestLoadRefuses(t *testing.T) {
	file := read(t, "tokenizer.json")
	for _, tt := range []struct{ name, tokenizer, config, want string }{
		{"cut short", file[:len(file)/2], "{}", "not a JSON object"},
		{"no model", `{"version":"1.0"}`, "{}", "model.vocab is missing"},
		{"null vocabulary", `{"model":{"vocab":null}}`, "{}", "model.vocab: found null"},
		{"unknown model", `{"model":{"type":"Psychic","vocab":{}}}`, "{}", "tokenizer.json"},
		{"case", file, `{"do_lower_case":false}`, "tokenizer_config.json has do_lower_case false"},
		{"side", file, `{"truncation_side":"middle"}`, `truncation_side "middle"`},
		{"config", file, "[]", "tokenizer_config.json"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := must.Folder(t, map[string]string{"tokenizer.json": tt.tokenizer, "tokenizer_config.json": tt.config})
			_, err := Load(dir)
			expect.True(t, err != nil && strings.Contains(err.Error(), tt.want) && strings.Contains(err.Error(), dir) && !strings.Contains(err.Error(), "\n"),
				"error %v, want %q", err, tt.want)
		})
	}
	expect.Failure(Load(t.TempDir()))(t, "tokenizer.json")
}

func TestTokenID(t *testing.T) {
	tok := load(t, wordpiece)
	for token, want := range map[string]int32{"[PAD]": 0, "[SEP]": 3, "law": 6, "##happi": 22} {
		id, ok := tok.TokenID(token)
		expect.True(t, ok && id == want, "%s is %d, %t, want %d", token, id, ok, want)
	}
	id, ok := tok.TokenID("absent")
	expect.True(t, !ok, "absent is %d", id)
	ids := tok.IDs()
	expect.Same(t, 34, len(ids), "%d tokens", len(ids))
	ids["[PAD]"] = 9
	id, _ = tok.TokenID("[PAD]")
	expect.Same(t, 0, id, "IDs is not a copy")
}

func TestParseVocab(t *testing.T) {
	got, err := parseVocab([]byte(`[["<s>",0],["▁a",-2.5]]`))
	diff := cmp.Diff(map[string]int32{"<s>": 0, "▁a": 1}, got)
	expect.True(t, err == nil && diff == "", "%v %v", err, diff)
	expect.Failure(parseVocab([]byte(`[[1,0]]`)))(t, "piece 0 has no text")
}

func TestEncodeConcurrently(t *testing.T) {
	tok := load(t, wordpiece)
	want, _, err := tok.Encode("unhappiness dogs! the law of force", 12)
	must.Do(t, err)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				got, _, err := tok.Encode("unhappiness dogs! the law of force", 12)
				if err != nil || !cmp.Equal(want, got) {
					t.Errorf("ids %v, %v, want %v", got, err, want)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestSPMRefuses(t *testing.T) {
	for name, tt := range map[string]struct{ file, want string }{
		"no file":          {"", "tokenizer.json"},
		"not a message":    {"\x0a\xff", "spm.model: "},
		"no piece":         {"\x10\x01", "spm.model: no pieces"},
		"a score above 0":  {"\x0a\x08\x0a\x01a\x15\x00\x00\x80\x3f", `piece "a" has the score 1`},
		"no unknown piece": {"\x0a\x03\x0a\x01a", "no piece [UNK]"},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{}
			if tt.file != "" {
				files["spm.model"] = tt.file
			}
			expect.Failure(Load(must.Folder(t, files)))(t, tt.want)
		})
	}
}

func FuzzParseSPM(f *testing.F) {
	f.Add(must.Get(os.ReadFile(filepath.Join("testdata", "spm", "spm.model")))(f))
	f.Fuzz(func(t *testing.T, data []byte) {
		pieces, err := parseSPM(data)
		if err != nil {
			return
		}
		text, err := debertaJSON(pieces, true)
		expect.True(t, err != nil || json.Valid(text), "not JSON: %.200s", text)
	})
}

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
			c := must.Into[tokenCase](t, json.Unmarshal, []byte(line))
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
			t.Errorf("%s: %s of %.60q, ids %.40v: %v %s", filepath.Base(c.Dir), what, must.Get(json.Marshal(c.Text))(t),
				c.Special, err, diff)
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
