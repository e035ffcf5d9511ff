package answer

import (
	"math/big"
	"strings"
	"testing"
)

func rat(t *testing.T, s string) *big.Rat {
	t.Helper()
	value, ok := new(big.Rat).SetString(s)
	if !ok {
		t.Fatalf("%q is no number", s)
	}
	return value
}

func TestExtract(t *testing.T) {
	for _, test := range []struct {
		name, text, value string
		tier              Tier
	}{
		{"the form asked for", "+1=1 +2=3 [ANSWER] 28", "28", TierTag},
		{"no space", "[ANSWER]28", "28", TierTag},
		{"next line", "[ANSWER]\n28", "28", TierTag},
		{"negative", "[ANSWER] -28", "-28", TierTag},
		{"mathematical minus", "[ANSWER] −28", "-28", TierTag},
		{"the last of several", "[ANSWER] 3 no, [ANSWER] 28", "28", TierTag},
		{"an empty tag behind", "[ANSWER] 28 is my [ANSWER]", "28", TierTag},
		{"a tag without a number, then the phrase", "[ANSWER] none. The answer is 28", "28", TierPhrase},
		{"angle brackets", "[ANSWER] <28>", "28", TierTag},
		{"emphasis", "[ANSWER] **28**", "28", TierTag},
		{"emphasis around the tag", "**[ANSWER]** 28", "28", TierTag},
		{"emphasis alone is no announcement", "**28**", "28", TierLastNumber},
		{"colon", "[ANSWER]: 28.", "28", TierTag},
		{"box", `[ANSWER] $\boxed{28}$`, "28", TierTag},
		{"thousands", "[ANSWER] 1,234", "1234", TierTag},
		{"more thousands", "[ANSWER] 1,234,567.5", "1234567.5", TierTag},
		{"no thousands: the first number", "[ANSWER] 1,23", "1", TierTag},
		{"no thousands: the first number", "[ANSWER] 1234,567", "1234", TierTag},
		{"leading zeros", "[ANSWER] 007", "7", TierTag},
		{"decimal", "[ANSWER] 28.50", "57/2", TierTag},
		{"whole decimal", "[ANSWER] 28.0", "28", TierTag},
		{"fraction", "[ANSWER] 3/4", "3/4", TierTag},
		{"fraction by zero", "[ANSWER] 3/0", "3", TierTag},
		{"exponent", "[ANSWER] 1.5e3", "1500", TierTag},
		{"no exponent", "[ANSWER] 3eggs", "3", TierTag},
		{"unit", "[ANSWER] 28 apples", "28", TierTag},
		{"currency", "[ANSWER] -$28", "-28", TierTag},
		{"sum with result", "[ANSWER] 3 + 4 × 2 = 11", "11", TierTag},
		{"equality with the answer first", "[ANSWER] 11 = 3 + 8", "11", TierTag},
		{"sum without result", "[ANSWER] 3 + 4", "3", TierTag},
		{"tag in other letters", "[answer] 9 so 3", "9", TierPhrase},
		{"phrase", "so the answer is 28, I think", "28", TierPhrase},
		{"phrase with colon", "The answer is: 28", "28", TierPhrase},
		{"short phrase", "Final answer: 28\n", "28", TierPhrase},
		{"phrase with emphasis", "**Answer:** 28", "28", TierPhrase},
		{"last phrase", "the answer is 3. Wait: the answer is 28", "28", TierPhrase},
		{"phrase without a number behind it", "the answer is not 5 but 6", "6", TierLastNumber},
		{"phrase before equation", "the answer is 28 as 20+8=29", "28", TierPhrase},
		{"equation at the end", "20 + 8 = 28.", "28", TierPhrase},
		{"equation before The answer", "20 + 8 = 28. The answer you wanted", "28", TierPhrase},
		{"equation in the middle", "20 + 8 = 28 and 3 more", "3", TierLastNumber},
		{"two equations", "1+1=2, 2+2=4", "4", TierPhrase},
		{"running sum cut off", "+1=1 +2=3 +5", "5", TierLastNumber},
		{"last number", "first 3 then 28 of them", "28", TierLastNumber},
		{"hyphen", "ten-12", "12", TierLastNumber},
		{"range", "3-5", "5", TierLastNumber},
		{"dash and space", "total - 5", "5", TierLastNumber},
		{"sign", "it is -5", "-5", TierLastNumber},
		{"rule of dashes", "---5", "5", TierLastNumber},
		{"last number has no denominator", "on 8/2", "2", TierLastNumber},
		{"leading point", "about .5", "1/2", TierLastNumber},
		{"a version is read as it comes", "1.2.3", "3/10", TierLastNumber},
		{"digits of other scripts are letters", "٢٨", "", TierNone},
		{"no number", "[ANSWER] twenty-eight", "", TierNone},
		{"empty", "", "", TierNone},
		{"too long for a number", "5 " + strings.Repeat("9", maxDigits+1), "5", TierLastNumber},
		{"invalid UTF-8", "\xff[ANSWER]\xfe 28", "28", TierLastNumber},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := Extract(test.text)
			if got.Tier != test.tier {
				t.Errorf("Extract(%q) has tier %s, want %s", test.text, got.Tier, test.tier)
			}
			switch {
			case test.value == "":
				if got.Value != nil {
					t.Errorf("Extract(%q) = %s, want none", test.text, got.Value)
				}
			case got.Value == nil || got.Value.Cmp(rat(t, test.value)) != 0:
				t.Errorf("Extract(%q) = %v, want %s", test.text, got.Value, test.value)
			}
		})
	}
}

func TestTagged(t *testing.T) {
	for text, want := range map[string]bool{"[ANSWER] 1": true, "[ANSWER]": true, "[answer] 1": false, "ANSWER 1": false} {
		if Tagged(text) != want {
			t.Errorf("Tagged(%q) = %t", text, !want)
		}
	}
}

func FuzzExtract(f *testing.F) {
	for _, seed := range []string{"[ANSWER] <28>", "the answer is: **1,234.5e-3**", "3 + 4 = 7. The answer", "ten-12 −3 .5 1,2,345", "[answer] 3/4 \\boxed{5", "\xff9" + minus} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got := Extract(text)
		if (got.Value == nil) != (got.Tier == TierNone) || (got.Text == "") != (got.Tier == TierNone) {
			t.Fatalf("Extract(%q) = %+v", text, got)
		}
		if !strings.Contains(text, got.Text) {
			t.Fatalf("Extract(%q) found %q, which is not in the text", text, got.Text)
		}
		if got.Tier == TierTag && !Tagged(text) {
			t.Fatalf("Extract(%q) has tier tag", text)
		}
		if got.Value != nil {
			again := Extract("[ANSWER] " + got.Text)
			if again.Value == nil || again.Tier != TierTag || again.Value.Cmp(got.Value) != 0 {
				t.Fatalf("Extract(%q) found %q = %s, which reads as %v behind a tag", text, got.Text, got.Value, again)
			}
		}
	})
}

func BenchmarkExtract(b *testing.B) {
	text := strings.Repeat("+7=28 and so on, ", 30) + "[ANSWER] 28"
	for b.Loop() {
		Extract(text)
	}
}
