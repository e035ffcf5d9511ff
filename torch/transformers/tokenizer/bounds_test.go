package tokenizer

import (
	"encoding/base64"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// splitting is a tokenizer.json of words split by a pattern.
func splitting(t testing.TB, pattern string) string {
	return words(t, map[string]any{"pre_tokenizer": map[string]any{
		"type": "Split", "pattern": map[string]string{"Regex": pattern}, "behavior": "Isolated", "invert": false,
	}})
}

// words is a tokenizer.json with two words and some optional parts.
func words(t testing.TB, parts map[string]any) string {
	t.Helper()
	file := map[string]any{
		"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": []any{}, "normalizer": nil, "pre_tokenizer": nil, "post_processor": nil, "decoder": nil,
		"model": map[string]any{"type": "WordLevel", "vocab": map[string]int{"a": 0, "?": 1}, "unk_token": "?"},
	}
	for name, part := range parts {
		file[name] = part
	}
	data := must.Get(json.Marshal(file))(t)
	return string(data)
}

func TestTokenizerRefusesWhatHasNoBound(t *testing.T) {
	replace := func(content string) map[string]any {
		return map[string]any{"type": "Replace", "pattern": map[string]string{"String": "a"}, "content": content}
	}
	sequence := func(normalizers ...any) map[string]any {
		return map[string]any{"normalizer": map[string]any{"type": "Sequence", "normalizers": normalizers}}
	}
	table := base64.StdEncoding.EncodeToString([]byte("\x04\x00\x00\x00tree" + strings.Repeat("x", 1<<20) + "\x00"))
	for _, tt := range []struct{ name, file, want string }{
		{"steps that double", splitting(t, `(a+)+$`), `pre_tokenizer: the pattern "(a+)+$" cannot be used: it repeats a group`},
		{"cubes of steps", splitting(t, `a*a*a*b`), "it can take more than 8e+06 steps for a text of 500 characters"},
		{"in a normalizer", words(t, map[string]any{"normalizer": map[string]any{"type": "Replace", "pattern": map[string]string{"Regex": `(a|a)*b`}, "content": ""}}), "normalizer: the pattern"},
		{"expansion", words(t, map[string]any{"normalizer": replace(strings.Repeat("a", 1<<20))}), "normalizer: it can make a text 1048576 times as long"},
		{"expansions in turn", words(t, sequence(replace(strings.Repeat("a", 1000)), replace(strings.Repeat("a", 1000)))), "normalizer: it can make a text 1000000 times as long"},
		{"prefix", words(t, sequence(map[string]any{"type": "Prepend", "prepend": strings.Repeat("a", 1<<20)})), "normalizer: it can make"},
		{"table", words(t, sequence(map[string]any{"type": "Precompiled", "precompiled_charsmap": table})), "normalizer: it can make"},
		{"short table", words(t, sequence(map[string]any{"type": "Precompiled", "precompiled_charsmap": "/////w=="})), "precompiled_charsmap: the table is shorter"},
	} {
		expect.Failure(Load(must.Folder(t, map[string]string{"tokenizer.json": tt.file})))(t, tt.want)
	}
}

func TestExpansion(t *testing.T) {
	for part, want := range map[string]float64{
		`null`: 1, `{"type":"StripAccents"}`: 1, `{"type":"NFKC"}`: 11, `{"type":"Lowercase"}`: 3, `{"type":"Prepend","prepend":"▁"}`: 4,
		`{"type":"Replace","pattern":{"String":"ab"},"content":"wxyz"}`: 2, `{"type":"Replace","pattern":{"String":"ab"},"content":"w"}`: 1,
		`{"type":"Replace","pattern":{"Regex":"a*"},"content":"wxyz"}`:                                                                             5,
		`{"type":"Sequence","normalizers":[{"type":"NFC"},{"type":"Replace","pattern":{"String":"a"},"content":"bcd"}]}`:                           9,
		`{"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"Sequence","decoders":[{"type":"Prepend","prepend":"a"}]}]}`:               2,
		`{"type":"Precompiled","precompiled_charsmap":"` + base64.StdEncoding.EncodeToString([]byte("\x02\x00\x00\x00ab1234\x0012345\x00")) + `"}`: 5,
	} {
		expect.Same(t, want, must.Get(expansion(must.Into[any](t, json.Unmarshal, []byte(part))))(t), "%s", part)
	}
}

func TestTokenizerFileTooLarge(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "tokenizer.json")
	must.Do(t, os.WriteFile(path, []byte("{"), 0o644))
	if err := os.Truncate(path, 20<<30); err != nil { // sparse on disk
		t.Skip(err)
	}
	expect.Failure(Load(dir))(t, "tokenizer.json has 21474836480 bytes, more than")
}

// A text that is too long to encode at once is an error; if only its start is needed, the remainder is not tokenized.
func TestLongTexts(t *testing.T) {
	tok := load(t, "testdata/bytes")
	long := strings.Repeat("the law of force ", 1<<20)
	expect.Failure(tok.EncodeRaw(long, false))(t, "the text has 17825792 bytes, more than the 4194304")
	want := must.Get(tok.EncodeRaw(long[:1<<12], false))(t)
	ids, spans, err := tok.EncodeStart(long, 100)
	expect.True(t, err == nil && cmp.Equal(want[:100], ids) && len(spans) == 100, "%v, %d spans, %v", ids, len(spans), err)
	if ids, cut, err := tok.Encode(long, 100); err != nil || !cut || !cmp.Equal(want[:100], ids) {
		t.Errorf("%v, %t, %v", ids, cut, err)
	}
	_, _, err = tok.EncodeStart(long+"\xff", 100)
	expect.True(t, err != nil, "invalid UTF-8 far after the requested tokens is accepted")
	spaces := strings.Repeat(" ", 11_000_000)
	split := load(t, must.Folder(t, map[string]string{"tokenizer.json": splitting(t, published["llama3"])}))
	_, _, err = split.EncodeStart(spaces, 512)
	expect.True(t, err != nil && strings.Contains(err.Error(), "bytes, more than the"), "%v", err)
	// If backtracking grows with the square of a text's length, far shorter texts are too long.
	square := load(t, must.Folder(t, map[string]string{"tokenizer.json": splitting(t, `a*a*b`)}))
	must.Get(square.EncodeRaw(strings.Repeat("a", 1000), false))(t)
	expect.Failure(square.EncodeRaw(strings.Repeat("a", 10_000), false))(t, "the text has 10000 bytes, more than the ")
}

// The first tokens of a long text, or the last if the folder truncates on the left, equal those of the full encoding.
func TestStartIsThatOfTheWhole(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	units := []string{"the ", "law", " of", "force", "\n", "  ", "1234", "東京", "é", "👩‍🔬", "don't ", "<s>", "</s>", "x", "\t"}
	for _, dir := range []string{"bytes", "fallback", "llama/first", "characters", "wordpiece"} {
		right := load(t, filepath.Join("testdata", dir))
		left := load(t, change(t, dir, config(map[string]any{"truncation_side": "left"})))
		for range 6 {
			var b strings.Builder
			for range 2000 + rng.IntN(8000) {
				b.WriteString(units[rng.IntN(len(units))])
			}
			text, n := b.String(), 5+rng.IntN(300)
			whole, spans, err := right.EncodeSpans(text)
			must.Do(t, err)
			ids, places, err := right.EncodeStart(text, n)
			expect.Require(t, err == nil && cmp.Equal(whole[:n], ids) && cmp.Equal(spans[:n], places), "%s: the first %d tokens differ from those of the full text: %v", dir, n, err)
			full := must.Get(left.EncodeRaw(text, true))(t)
			ids, cut, err := left.Encode(text, n)
			own := n - left.before - left.after
			last := full[len(full)-left.after-own : len(full)-left.after]
			expect.Require(t, err == nil && cut && cmp.Equal(last, ids[left.before:n-left.after]), "%s: the last %d tokens differ from those of the full text: %v", dir, n, err)
		}
	}
}

// The end token is written once.
func TestEncodeDocument(t *testing.T) {
	for _, tt := range []struct {
		name, dir, text string
		end             int32
		limit           int
		ids             []int32
	}{
		{"appended", "llama/first", "the law", 2, 99, []int32{1, 294, 297, 2}},
		{"there already", "llama/first", "the law</s>", 2, 99, []int32{1, 294, 297, 2}},
		{"twice by the text's own will", "llama/first", "the law</s></s>", 2, 99, []int32{1, 294, 297, 2, 2}},
		{"none", "llama/first", "the law", -1, 99, []int32{1, 294, 297}},
		{"cut", "llama/first", "the law", 2, 3, []int32{1, 294, 297}},
		{"empty", "llama/first", "", 2, 99, []int32{1, 2}},
		{"not an added token", "characters", "12", 2, 99, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tok := load(t, filepath.Join("testdata", tt.dir))
			if tt.ids == nil { // a character as the end token
				tt.end, _ = tok.TokenID("=")
				one, _ := tok.TokenID("1")
				two, _ := tok.TokenID("2")
				tt.ids = []int32{one, two, tt.end}
			}
			ids, err := tok.EncodeDocument(tt.text, tt.end, tt.limit)
			diff := cmp.Diff(tt.ids, ids)
			expect.True(t, diff == "" && err == nil, "%v %v", diff, err)
		})
	}
}

// published are the split patterns of published tokenizers.
var published = map[string]string{
	"gpt2":     `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`,
	"llama3":   `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
	"o200k":    `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
	"cl100k":   `'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s`,
	"deepseek": "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
	"kimi":     `[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\s+`,
	"bloom":    ` ?[^(\s|[.,!?…。，、।۔،])]+`,
	"digits":   `\d{1,3}(?=(?:\d{3})*\b)`,
	"every":    `[\s\S]`,
}

// They all split a text of half a megabyte that makes each of them backtrack as often as it can.
func TestPublishedPatterns(t *testing.T) {
	for name, pattern := range published {
		s, err := patternSteps(pattern)
		if err != nil || s.longest() < 1<<19 {
			t.Errorf("%s: %d characters at most (%v), %v", name, s.longest(), s, err)
			continue
		}
		tok, err := newTokenizer([]byte(splitting(t, pattern)), tokenizerConfig{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for unit, length := range map[string]int{" ": tok.longest, "a": 1 << 16, "9": 1 << 12, "'": 1 << 12, "\n": 1 << 16} {
			_, err = tok.EncodeRaw(strings.Repeat(unit, length), false)
			expect.True(t, err == nil, "%s of %q: %v", name, unit, err)
		}
		tok.Close()
	}
}

func TestPatternSteps(t *testing.T) {
	for _, tt := range []struct {
		pattern string
		want    string // of an error, else
		power   int
	}{
		{`abc`, "", 0},
		{`a*`, "", 0},
		{`a*b`, "", 1},
		{`a*b|c*d`, "", 1},
		{`a*a*b`, "", 2},
		{`a*+a*b`, "", 1},
		{`(?>a*)a*b`, "", 1},
		{`a{0,9}b`, "", 0},
		{`a{9,2}b`, "", 0},
		{`a{0,1000}b`, "", 1},
		{`a*(?=b*c)`, "", 2},
		{`(a*){3}b`, "", 3},
		{`(a|b){3}`, "", 0},
		{`(a+)+`, "", 1},
		{`(a*b|a)*`, "", 2},
		{`(?<name>a+)b # (`, "does not close", 0},
		{`(a+)+$`, "can match in several ways", 0},
		{`(a|a)*b`, "can match in several ways", 0},
		{`((a+)+b)*`, "can match in several ways", 0},
		{`(?:a+){2,}b`, "can match in several ways", 0},
		{`a{1,3}+b`, "can match in several ways", 0}, // no possessive quantifier in this syntax
		{`(a*)\1b`, "refers to one of its groups", 0},
		{`(?(1)a|b)`, "not known here", 0},
		{`[a`, "does not close", 0},
		{`a)`, "not opened", 0},
		{`a\`, `ends in \`, 0},
		{strings.Repeat("(", 200) + strings.Repeat(")", 200), "too deep", 0},
	} {
		s, err := patternSteps(tt.pattern)
		expect.True(t, tt.want == "" || err != nil && strings.Contains(err.Error(), tt.want), "%.60s: %v, %v, want %q", tt.pattern, s, err, tt.want)
		expect.True(t, tt.want != "" || err == nil && s.power == tt.power, "%s: %v, %v, want the power %d", tt.pattern, s, err, tt.power)
	}
	if s, err := patternSteps(strings.Repeat("a?", 30) + strings.Repeat("a", 30)); err != nil || s.longest() != 0 {
		t.Errorf("thirty choices: %v, %v", s, err)
	}
}

func FuzzPatternSteps(f *testing.F) {
	for _, pattern := range published {
		f.Add(pattern)
	}
	f.Add(`(?i-m:a{2,}?|[^]\]&&[b]]*)+(?<!x)\x{41}\p{L}`)
	f.Fuzz(func(t *testing.T, pattern string) {
		s, err := patternSteps(pattern)
		expect.True(t, err != nil || s.longest() >= 0 && s.factor > 0, "%v: %d", s, s.longest())
	})
}
