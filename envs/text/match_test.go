package text

import (
	"testing"

	"github.com/rltrain/rltrain/envs/answer/hacks"
	"github.com/rltrain/rltrain/internal/expect"
)

func TestFindLabel(t *testing.T) {
	labels := []string{"positive", "negative", "art", "art history", "C++", "N/A"}
	for _, test := range []struct{ response, label, by string }{
		{"positive", "positive", byLabel},
		{" Positive\nbecause", "positive", byLabel},
		{"**Negative**.", "negative", byLabel},
		{"\n\nnegative", "negative", byLabel},
		{"The label is: positive.", "positive", byMention},
		{"Label: \"negative\"", "negative", byMention},
		{"I think that this is POSITIVE!", "positive", byMention},
		{"Art history", "art history", byLabel},
		{"It is about art history.", "art history", byMention},
		{"It is about art.", "art", byMention},
		{"c++", "C++", byLabel},
		{"It is C++ code", "C++", byMention},
		{"n/a", "N/A", byLabel},
		{"Let me see.\nIt is negative.", "negative", byMention},
		{"positive, positive", "positive", byMention},
		// none
		{"", "", ""},
		{"positive or negative", "", ""},
		{"positive/negative", "", ""},
		{"positive, negative, art, art history", "", ""},
		{"not positive", "", ""},
		{"It isn't negative.", "", ""},
		{"It is not a positive text.", "", ""},
		{"nonpositive", "", ""},
		{"partly", "", ""},
		{"positives", "", ""},
		{"neutral", "", ""},
		{"art and art history", "", ""},
	} {
		label, by := named.find(test.response, labels)
		expect.True(t, label == test.label && by == test.by, "%q: %q by %q, want %q by %q", test.response, label, by, test.label, test.by)
	}
	for response, want := range map[string]string{" Positive \n": "positive", "The label is: positive.": "", "positive.": "", "x\npositive": ""} {
		label, _ := exact.find(response, labels)
		expect.True(t, label == want, "exact, %q: %q, want %q", response, label, want)
	}
}

func FuzzFindLabel(f *testing.F) {
	f.Add("The label is: positive.")
	f.Add("É positive\x00 ß art\nhistory")
	labels := []string{"positive", "art", "art history", "ß"}
	f.Fuzz(func(t *testing.T, response string) {
		label, by := named.find(response, labels)
		expect.Same(t, by == "", label == "", "%q by %q", label, by)
	})
}

// TestHacks: what policies try in place of a label is not positive by any rule.
func TestHacks(t *testing.T) {
	expect.True(t, len(hacks.Labels) >= 80, "only %d hacks", len(hacks.Labels))
	for _, response := range hacks.Labels {
		for _, rule := range []match{named, exact} {
			label, by := rule.find(response, []string{"negative", "positive"})
			expect.True(t, label != "positive", "%s: %q is taken for it by %s", rule, response, by)
		}
	}
}
