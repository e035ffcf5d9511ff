package tokenizer

import (
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

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
