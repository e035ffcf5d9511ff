package answer

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

func TestPhrase(t *testing.T) {
	for _, test := range []struct {
		text, want string
		ok         bool
	}{
		{"So 9*2=18.\nThe answer is: 18", "18", true},
		{"The answer is: $18.", "18", true},
		{"the answer is 18", "18", true}, // the colon may be missing
		{"The answer is: 1,800", "1800", true},
		{"The answer is: 3 bolts.", "3 bolts", true},
		{`The answer is: \boxed{18}.`, "18", true},
		{"The answer is: 18<|eot_id|>", "18", true},
		{"The answer is: 3\nThe answer is: 4", "4", true},
		{"The answer is: 3\nand so on", "3\nand so on", true},
		{"#### 18", "", false},
		{"", "", false},
		{"THE ANSWER IS: 18", "18", true},
	} {
		if got, ok := Phrase(test.text); got != test.want || ok != test.ok {
			t.Errorf("Phrase(%q) = %q, %t, want %q, %t", test.text, got, ok, test.want, test.ok)
		}
	}
}

func TestFinal(t *testing.T) {
	for _, test := range []struct {
		text, want string
		tier       FoundBy
	}{
		{"The answer is: 18.", "18", ByPhrase},
		{"The answer is: **18**", "18", ByPhrase},
		{"The answer is: 3 bolts.\nThank you!", "3 bolts", ByPhrase},
		{`The answer is: $\boxed{\frac{1}{2}}$.`, `\frac{1}{2}`, ByPhrase},
		{"The answer is: 3<|eot_id|>", "3", ByPhrase},
		{"9*2=<<9*2=18>>18\n#### 1,018\n", "1018", ByHash},
		{`so $x = \boxed{\frac{3}{4}}$ as claimed`, `\frac{3}{4}`, ByBoxed},
		{"it is 17 or 18.", "18", ByLastNumber},
		{"the answer is:", "", NotFound},
		{"I do not know", "", NotFound},
	} {
		if got, tier := Final(test.text); got != test.want || tier != test.tier {
			t.Errorf("Final(%q) = %q, %s, want %q, %s", test.text, got, tier, test.want, test.tier)
		}
	}
}

func TestBoxed(t *testing.T) {
	for _, test := range []struct {
		text, want string
		ok         bool
	}{
		{`\boxed{18}`, "18", true},
		{`\boxed{1} then \boxed{2}`, "2", true},
		{`\boxed{\frac{1}{2}} done`, `\frac{1}{2}`, true},
		{`\boxed{a{b{c}}}}`, "a{b{c}}", true},
		{`\boxed{\{1,2\}}`, `\{1,2\}`, true},
		{`\fbox{7}`, "7", true},
		{`\boxed {7}`, "7", true},
		{`\boxed{7} and \boxed{8`, "7", true},
		{`\boxed{\boxed{5}}`, "5", true},
		{`\boxed{}`, "", true},
		{`\boxed 7`, "", false},
		{`boxed{7}`, "", false},
		{"", "", false},
	} {
		if got, ok := Boxed(test.text); got != test.want || ok != test.ok {
			t.Errorf("Boxed(%q) = %q, %t, want %q, %t", test.text, got, ok, test.want, test.ok)
		}
	}
}

func TestGSM8K(t *testing.T) {
	for _, test := range []struct {
		text, want string
		ok         bool
	}{
		{"a\n#### 18", "18", true},
		{"#### 1,800\nmore", "1800", true},
		{"#### 1 #### 2", "2", true},
		{"The answer is: 18", "", false},
	} {
		if got, ok := GSM8K(test.text); got != test.want || ok != test.ok {
			t.Errorf("GSM8K(%q) = %q, %t, want %q, %t", test.text, got, ok, test.want, test.ok)
		}
	}
}

func TestLastLine(t *testing.T) {
	for text, want := range map[string]string{"a\nb": "b", "a\nb\n \n": "b", "a": "a", "": "", " \n": ""} {
		expect.Same(t, want, LastLine(text), "LastLine(%q)", text)
	}
}

func FuzzFinal(f *testing.F) {
	for _, seed := range []string{"The answer is: $\\boxed{1}$.", "#### 1,234", "\\boxed{\\boxed{", "tHe AnSwEr Is<|eot_id|> 3", "\\fbox {\\}}"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		answer, tier := Final(text)
		expect.Require(t, tier != NotFound || answer == "", "Final(%q) = %q, %s", text, answer, tier)
		if strings.ContainsAny(answer, "\n") && tier != ByBoxed && tier != ByPhrase {
			t.Fatalf("Final(%q) = %q, %s: more than a line", text, answer, tier)
		}
		if inside, ok := Boxed(text); ok && strings.Count(inside, "{") != strings.Count(inside, "}") && !strings.Contains(inside, `\`) {
			t.Fatalf("Boxed(%q) = %q is not balanced", text, inside)
		}
		if answer, ok := Phrase(text); ok && strings.ContainsAny(answer, ",:$") {
			t.Fatalf("Phrase(%q) = %q", text, answer)
		}
	})
}

// The counts on a real model's answers are known. The file is not in the repository; an environment variable names its
// folder.
func TestGoldenCounts(t *testing.T) {
	folder := os.Getenv("RLTRAIN_TASK_DATA")
	if folder == "" {
		t.Skip("RLTRAIN_TASK_DATA does not name the folder with llm_rl_eval")
	}
	file := must.Get(os.Open(filepath.Join(folder, "llm_rl_eval", "l1b_ft_test.json")))(t)
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	n, whole, last, numeric, units := 0, 0, 0, 0, 0
	for lines.Scan() {
		var row struct {
			Solution  string `json:"solution"`
			Generated string `json:"generated_solution"`
		}
		must.Do(t, json.Unmarshal(lines.Bytes(), &row))
		n++
		gold, ok := Phrase(row.Solution)
		expect.Require(t, ok, "row %d has no answer", n)
		if got, ok := Phrase(row.Generated); ok && Exact.Same(got, gold) {
			whole++
		}
		if got, ok := Phrase(LastLine(row.Generated)); ok && Exact.Same(got, gold) {
			last++
		}
		got, _ := Final(row.Generated)
		if Numeric.Same(got, gold) {
			numeric++
		}
		if Units.Same(got, gold) {
			units++
		}
	}
	must.Do(t, lines.Err())
	t.Logf("%d rows: exact %d, on the last line %d, numeric %d, units %d", n, whole, last, numeric, units)
	expect.True(t, n == 1319 && whole == 230 && last == 230,
		"exact matches %d of %d, in the last line %d; want 230 of 1319 both ways", whole, n, last)
}
