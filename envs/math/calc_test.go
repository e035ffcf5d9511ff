package math

import (
	"math/big"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
)

func TestEvaluate(t *testing.T) {
	for _, test := range []struct{ expression, want string }{
		{"100-50-30-15", "5"},
		{"2+3*4", "14"},
		{"(2+3)*4", "20"},
		{"1/3", "1/3"},
		{"8/4/2", "1"},
		{"2^3^2", "512"},
		{"2**10", "1024"},
		{"-2^2", "-4"},
		{"(-2)^2", "4"},
		{"2^-2", "1/4"},
		{"--5", "5"},
		{"3*-2", "-6"},
		{"-7%3", "2"},
		{"7%(-3)", "-2"},
		{"100%-20%", "4/5"},
		{" 1 + ( 2 * 3 ) ", "7"},
		{"7.5%2", "3/2"},
		{"20%*50", "10"},
		{"50*20%", "10"},
		{"10%(3)", "1"},
		{"(10+10)%", "1/5"},
		{"100-20%", "499/5"},
		{"1,234+1", "1235"},
		{"1,234,567.25", "4938269/4"},
		{"$5 x 3", "15"},
		{"6 × 2 ÷ 4", "3"},
		{"5−3", "2"},
		{".5*4", "2"},
		{"(1,000)", "1000"},
	} {
		got, err := Evaluate(test.expression)
		want, _ := new(big.Rat).SetString(test.want)
		expect.True(t, err == nil && got.Cmp(want) == 0, "Evaluate(%q) = %v, %v, want %s", test.expression, got, err, test.want)
	}
}

func TestEvaluateRefuses(t *testing.T) {
	for expression, want := range map[string]string{
		"":                        "not a number",
		"2+":                      "not a number",
		"(2":                      "unclosed",
		"2)":                      `")"`,
		"1/0":                     "division by zero",
		"5%0":                     "division by zero",
		"0^-1":                    "division by zero",
		"1,23":                    "not a number",
		"1.2.3":                   "not a number",
		".":                       "not a number",
		"2a":                      `"a"`,
		"2^0.5":                   "exponent",
		"9^65":                    "exponent",
		"9^9^9":                   "exponent",
		"((9^64)^64)^64":          "too large",
		strings.Repeat("(", 60):   "nested deeper",
		strings.Repeat("-", 60):   "nested deeper",
		strings.Repeat("9^", 60):  "nested deeper",
		strings.Repeat("1+", 150): "300 bytes",
		"2 2":                     `"2"`,
	} {
		expect.Failure(Evaluate(expression))(t, want)
	}
}

func TestFormat(t *testing.T) {
	for value, want := range map[string]string{"24": "24", "1/2": "0.5", "1/3": "0.33", "2/3": "0.67", "1/8": "0.13", "-1/8": "-0.13", "-5/4": "-1.25", "100": "100", "-1/1000": "0", "0": "0", "1/1000": "0"} {
		rat, _ := new(big.Rat).SetString(value)
		expect.Same(t, want, Format(rat), "Format(%s)", value)
	}
}

func FuzzEvaluate(f *testing.F) {
	for _, seed := range []string{"48/2", "(1,234.5-.5)^-2%7", "((9^64)^64)", "20%*-3", "÷×−", "1e9"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, expression string) {
		value, err := Evaluate(expression)
		if err != nil {
			expect.Require(t, !strings.Contains(err.Error(), "\n"), "error %q", err)
			return
		}
		again, err := Evaluate("(" + value.Num().String() + ")/" + value.Denom().String())
		expect.Require(t, len(value.String()) >= maxExpression-3 || err == nil && again.Cmp(value) == 0, "%q is %s, which reads as %v, %v", expression, value, again, err)
		Format(value)
	})
}
