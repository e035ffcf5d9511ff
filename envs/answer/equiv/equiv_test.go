package equiv

import (
	"math/big"
	"os"
	"strings"
	"testing"

	f "github.com/rltrain/rltrain/envs/answer/formula"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// pair is a line of testdata/pairs.txt.
type pair struct {
	rule, a, b string
	equal      bool
}

func pairs(t testing.TB) []pair {
	t.Helper()
	text := must.Get(os.ReadFile("testdata/pairs.txt"))(t)
	var out []pair
	rule := ""
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		sign, rest, _ := strings.Cut(line, " ")
		if sign == "#" {
			rule = rest
			continue
		}
		a, b, ok := strings.Cut(rest, " ;; ")
		expect.Require(t, ok && (sign == "=" || sign == "!"), "testdata/pairs.txt: %q", line)
		out = append(out, pair{rule, a, b, sign == "="})
	}
	return out
}

func TestPairs(t *testing.T) {
	equal, different := 0, 0
	for _, p := range pairs(t) {
		if p.equal {
			equal++
		} else {
			different++
		}
		v := Compare(p.a, p.b)
		expect.True(t, v.Equal == p.equal, "%s: %q and %q: %t by %s: %s, %s", p.rule, p.a, p.b, v.Equal, v.Rule, v.Gold, v.Answer)
		v = Compare(p.b, p.a)
		expect.True(t, v.Equal == p.equal, "%s: %q and %q: %t by %s: %s, %s", p.rule, p.b, p.a, v.Equal, v.Rule, v.Gold, v.Answer)
	}
	expect.True(t, equal+different >= 400 && different*9 >= equal*8, "%d pairs are equal, %d different: want 400, about half of them different", equal, different)
}

// Every answer equals itself, also with other spacing and with \left and \right.
func TestSpelling(t *testing.T) {
	grow := strings.NewReplacer("(", `\left(`, ")", `\right)`, "[", `\left[`, "]", `\right]`)
	for _, p := range pairs(t) {
		for _, s := range []string{p.a, p.b} {
			spellings := map[string]string{"itself": s, "space around": "  " + s + "\n", "dollars": "$" + s + "$", "box": `\boxed{` + s + "}", "display": `\[ ` + s + ` \]`}
			if !strings.ContainsAny(s, `$\`) || strings.Contains(s, "$") {
				delete(spellings, "dollars")
			}
			if !strings.Contains(s, "]") || !strings.HasPrefix(s, "]") {
				if !strings.Contains(s, "sqrt[") && !strings.Contains(s, "left") && !strings.Contains(s, "sqrt(") {
					spellings["growing brackets"] = grow.Replace(s)
				}
			}
			if n, err := f.Parse(s); err == nil && n.Kind != f.Text {
				spellings["thin spaces"] = `\,` + s + `\;`
				spellings["spaces around operators"] = strings.NewReplacer("+", " + ", "=", " = ", "<", " < ", ">", " > ", "< =", "<=", "> =", ">=").Replace(s)
			}
			for name, spelling := range spellings {
				if name == "spaces around operators" && (strings.ContainsAny(s, "'*") || strings.Contains(s, ">=") || strings.Contains(s, "<=") || strings.HasPrefix(s, "+")) {
					continue
				}
				v := Compare(s, spelling)
				expect.True(t, v.Equal, "%s: %q and %q differ by %s: %s, %s", name, s, spelling, v.Rule, v.Gold, v.Answer)
			}
		}
	}
}

// moved returns an exact number with a thousandth added.
func moved(s string) (string, bool) {
	n, err := f.Parse(s)
	if err != nil {
		return "", false
	}
	v, ok := exact(n)
	if !ok || v.Sign() == 0 || !small(v) {
		return "", false
	}
	return new(big.Rat).Mul(v, big.NewRat(1001, 1000)).RatString(), true
}

func TestThousandthIsSeen(t *testing.T) {
	checked := 0
	for _, p := range pairs(t) {
		for _, s := range []string{p.a, p.b} {
			other, ok := moved(s)
			if !ok {
				continue
			}
			checked++
			v := Compare(s, other)
			expect.True(t, !v.Equal, "%q and %q are equal by %s", s, other, v.Rule)
			r, _ := new(big.Rat).SetString(other)
			decimal := r.FloatString(12)
			expect.True(t, !Compare(s, decimal).Equal, "%q and %q are equal", s, decimal)
		}
	}
	for _, s := range []string{`\sqrt{2}`, `\pi`, `\frac{x}{7}`, `e^x`, `\sin x`, `(a+b)^3`, `\frac{1+\sqrt5}{2}`, `x^2+y^2`} {
		v := Compare(s, `\frac{1001}{1000}(`+s+")")
		expect.True(t, !v.Equal, "%q is equal to itself and a thousandth by %s", s, v.Rule)
		checked++
	}
	expect.True(t, checked >= 150, "only %d numbers", checked)
}

func FuzzCompare(f *testing.F) {
	for _, p := range pairs(f) {
		f.Add(p.a, p.b)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		v, w := Compare(a, b), Compare(b, a)
		expect.Require(t, v.Equal == w.Equal, "%q and %q: %t by %s, the other way round %t by %s", a, b, v.Equal, v.Rule, w.Equal, w.Rule)
		expect.Require(t, v.Rule != "", "%q and %q: no rule", a, b)
		for _, s := range []string{a, b} {
			expect.Require(t, strings.TrimSpace(s) == "" || Compare(s, s).Equal, "%q differs from itself", s)
		}
	})
}

// Adding to an exact number gives another number.
func FuzzAdded(f *testing.F) {
	for _, p := range pairs(f) {
		f.Add(p.a)
	}
	f.Fuzz(func(t *testing.T, a string) {
		if other, ok := moved(a); ok {
			v := Compare(a, other)
			expect.Require(t, !v.Equal, "%q and %q are equal by %s", a, other, v.Rule)
		}
	})
}
