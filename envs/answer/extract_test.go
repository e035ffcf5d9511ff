package answer

import (
	"math/big"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

func rat(t *testing.T, s string) *big.Rat {
	t.Helper()
	value, ok := new(big.Rat).SetString(s)
	expect.Require(t, ok, "%q is not a number", s)
	return value
}

func TestExtract(t *testing.T) {
	for _, test := range []struct {
		name, text, value string
		tier              FoundBy
	}{
		{"the form asked for", "+1=1 +2=3 [ANSWER] 28", "28", ByTag},
		{"no space", "[ANSWER]28", "28", ByTag},
		{"next line", "[ANSWER]\n28", "28", ByTag},
		{"negative", "[ANSWER] -28", "-28", ByTag},
		{"mathematical minus", "[ANSWER] −28", "-28", ByTag},
		{"the last of several", "[ANSWER] 3 no, [ANSWER] 28", "28", ByTag},
		{"an empty tag behind", "[ANSWER] 28 is my [ANSWER]", "28", ByTag},
		{"a tag without a number, then the phrase", "[ANSWER] none. The answer is 28", "28", ByPhrase},
		{"angle brackets", "[ANSWER] <28>", "28", ByTag},
		{"emphasis", "[ANSWER] **28**", "28", ByTag},
		{"emphasis around the tag", "**[ANSWER]** 28", "28", ByTag},
		{"emphasis alone is no announcement", "**28**", "28", ByLastNumber},
		{"colon", "[ANSWER]: 28.", "28", ByTag},
		{"box", `[ANSWER] $\boxed{28}$`, "28", ByTag},
		{"thousands", "[ANSWER] 1,234", "1234", ByTag},
		{"more thousands", "[ANSWER] 1,234,567.5", "1234567.5", ByTag},
		{"no thousands: the first number", "[ANSWER] 1,23", "1", ByTag},
		{"no thousands: the first number", "[ANSWER] 1234,567", "1234", ByTag},
		{"leading zeros", "[ANSWER] 007", "7", ByTag},
		{"decimal", "[ANSWER] 28.50", "57/2", ByTag},
		{"whole decimal", "[ANSWER] 28.0", "28", ByTag},
		{"fraction", "[ANSWER] 3/4", "3/4", ByTag},
		{"fraction by zero", "[ANSWER] 3/0", "3", ByTag},
		{"exponent", "[ANSWER] 1.5e3", "1500", ByTag},
		{"no exponent", "[ANSWER] 3eggs", "3", ByTag},
		{"unit", "[ANSWER] 28 apples", "28", ByTag},
		{"currency", "[ANSWER] -$28", "-28", ByTag},
		{"sum with result", "[ANSWER] 3 + 4 × 2 = 11", "11", ByTag},
		{"equality with the answer first", "[ANSWER] 11 = 3 + 8", "11", ByTag},
		{"sum without result", "[ANSWER] 3 + 4", "3", ByTag},
		{"tag in other letters", "[answer] 9 so 3", "9", ByPhrase},
		{"phrase", "so the answer is 28, I think", "28", ByPhrase},
		{"phrase with colon", "The answer is: 28", "28", ByPhrase},
		{"short phrase", "Final answer: 28\n", "28", ByPhrase},
		{"phrase with emphasis", "**Answer:** 28", "28", ByPhrase},
		{"last phrase", "the answer is 3. Wait: the answer is 28", "28", ByPhrase},
		{"phrase without a number behind it", "the answer is not 5 but 6", "6", ByLastNumber},
		{"phrase before equation", "the answer is 28 as 20+8=29", "28", ByPhrase},
		{"equation at the end", "20 + 8 = 28.", "28", ByPhrase},
		{"equation before The answer", "20 + 8 = 28. The answer you wanted", "28", ByPhrase},
		{"equation in the middle", "20 + 8 = 28 and 3 more", "3", ByLastNumber},
		{"two equations", "1+1=2, 2+2=4", "4", ByPhrase},
		{"running sum cut off", "+1=1 +2=3 +5", "5", ByLastNumber},
		{"last number", "first 3 then 28 of them", "28", ByLastNumber},
		{"hyphen", "ten-12", "12", ByLastNumber},
		{"range", "3-5", "5", ByLastNumber},
		{"dash and space", "total - 5", "5", ByLastNumber},
		{"sign", "it is -5", "-5", ByLastNumber},
		{"rule of dashes", "---5", "5", ByLastNumber},
		{"last number has no denominator", "on 8/2", "2", ByLastNumber},
		{"leading point", "about .5", "1/2", ByLastNumber},
		{"a version is read as it comes", "1.2.3", "3/10", ByLastNumber},
		{"digits of other scripts are letters", "٢٨", "", NotFound},
		{"no number", "[ANSWER] twenty-eight", "", NotFound},
		{"empty", "", "", NotFound},
		{"too long for a number", "5 " + strings.Repeat("9", maxDigits+1), "5", ByLastNumber},
		{"invalid UTF-8", "\xff[ANSWER]\xfe 28", "28", ByLastNumber},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := Extract(test.text)
			expect.Same(t, test.tier, got.FoundBy, "Extract(%q) has tier", test.text)
			switch {
			case test.value == "":
				expect.True(t, got.Value == nil, "Extract(%q) = %s, want none", test.text, got.Value)
			case got.Value == nil || got.Value.Cmp(rat(t, test.value)) != 0:
				t.Errorf("Extract(%q) = %v, want %s", test.text, got.Value, test.value)
			}
		})
	}
}

func TestTagged(t *testing.T) {
	for text, want := range map[string]bool{"[ANSWER] 1": true, "[ANSWER]": true, "[answer] 1": false, "ANSWER 1": false} {
		expect.Same(t, want, Tagged(text), "Tagged(%q) = %t", text, !want)
	}
}

func FuzzExtract(f *testing.F) {
	for _, seed := range []string{"[ANSWER] <28>", "the answer is: **1,234.5e-3**", "3 + 4 = 7. The answer", "ten-12 −3 .5 1,2,345", "[answer] 3/4 \\boxed{5", "\xff9" + minus} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got := Extract(text)
		expect.Require(t, (got.Value == nil) == (got.FoundBy == NotFound) && (got.Text == "") == (got.FoundBy == NotFound),
			"Extract(%q) = %+v", text, got)
		expect.Require(t, strings.Contains(text, got.Text), "Extract(%q) found %q, which is not in the text", text, got.Text)
		expect.Require(t, got.FoundBy != ByTag || Tagged(text), "Extract(%q) has tier tag", text)
		if got.Value != nil {
			again := Extract("[ANSWER] " + got.Text)
			expect.Require(t, again.Value != nil && again.FoundBy == ByTag && again.Value.Cmp(got.Value) == 0,
				"Extract(%q) found %q = %s, which reads as %v after a tag", text, got.Text, got.Value, again)
		}
	})
}
