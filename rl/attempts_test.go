package rl_test

import (
	"math"
	"math/bits"
	"testing"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/rl"
)

// counted is PassAt by brute force: it counts all k-subsets of n attempts, the first c of which are right.
func counted(n, c, k int) float64 {
	hits, all := 0, 0
	for choice := range uint(1) << n {
		if bits.OnesCount(choice) != k {
			continue
		}
		all++
		if choice&(1<<c-1) != 0 {
			hits++
		}
	}
	return float64(hits) / float64(all)
}

func TestPassAtEqualsCounting(t *testing.T) {
	for n := 1; n <= 9; n++ {
		for c := 0; c <= n; c++ {
			for k := 1; k <= n; k++ {
				got, want := rl.PassAt(n, c, k), counted(n, c, k)
				expect.True(t, math.Abs(got-want) <= 1e-12, "%d of %d right, k = %d: %v, want %v", c, n, k, got, want)
			}
		}
	}
	if got := rl.PassAt(10000, 5000, 5000); got != 1 { // 1 - C(5000,5000)/C(10000,5000)
		t.Errorf("%v for many attempts", got)
	}
}

// tries are right for "r", missing for "", else wrong.
func tries(answers ...string) rl.Attempts {
	var all rl.Attempts
	for _, a := range answers {
		info := &envs.Info{Answer: a, FoundBy: "phrase", Correct: a == "r", FormatOK: a == "r", Kind: "easy"}
		switch a {
		case "":
			info.FoundBy = "none"
		case "nil":
			info = nil
		}
		all = append(all, info)
	}
	return all
}

func TestMajority(t *testing.T) {
	for _, test := range []struct {
		answers []string
		want    float64
	}{
		{[]string{"r", "r", "1"}, 1}, {[]string{"r", "1", "1"}, 0}, {[]string{"r", "1"}, 0.5}, {[]string{"r", "1", "2"}, 1.0 / 3},
		{[]string{"r", "r", "1/2", "0.5", "\\frac12"}, 0}, {[]string{"", "", "r"}, 1}, {[]string{"", "nil"}, 0}, {[]string{"r"}, 1}, {[]string{"a"}, 0},
	} {
		expect.Same(t, test.want, tries(test.answers...).Majority(), "%q", test.answers)
	}
}

func TestScoreAttempts(t *testing.T) {
	hard := tries("1", "2", "", "nil")
	for _, info := range hard[:3] {
		info.Kind = "hard"
	}
	all := []rl.Attempts{tries("r", "r", "r", "r"), tries("r", "1", "1", "2"), hard}
	s := rl.ScoreAttempts(all)
	expect.True(t, s.Problems == 3 && s.N == 4 && math.Abs(s.FormatRate-5.0/12) <= 1e-12 && s.Mean == s.Pass[0], "%+v", s)
	for k, want := range []float64{1.25 / 3, 1.5 / 3, 1.75 / 3, 2.0 / 3} {
		f := s.Pass[k]
		if math.Abs(f.Value-want) > 1e-12 || f.Interval[0] > f.Value || f.Interval[1] < f.Value || f.Interval[0] == f.Interval[1] {
			t.Errorf("pass@%d: %+v, want %v", k+1, f, want)
		}
	}
	expect.True(t, math.Abs(s.Majority.Value-1.0/3) <= 1e-12, "majority %+v", s.Majority)
	if len(s.Kinds) != 2 || s.Kinds[0].Kind != "easy" || s.Kinds[0].Problems != 2 || s.Kinds[0].Mean.Value != 0.625 || s.Kinds[1].PassN.Value != 0 {
		t.Errorf("kinds %+v", s.Kinds)
	}
	// A problem with too few attempts for one k still counts for smaller k.
	if s := rl.ScoreAttempts([]rl.Attempts{tries("r", "1", "1"), tries("r"), nil}); s.Problems != 2 || s.N != 3 || s.FormatRate != 0.5 || s.Mean.Value != 2.0/3 || math.Abs(s.Pass[1].Value-2.0/3) > 1e-12 || s.Pass[2].Value != 1 {
		t.Errorf("%+v", s)
	}
	none := rl.ScoreAttempts(nil)
	expect.True(t, none.Problems == 0 && none.Pass == nil, "%+v", none)
}

func TestCompareAttempts(t *testing.T) {
	var a, b []rl.Attempts
	for range 20 {
		a, b = append(a, tries("r", "1"), tries("1", "2")), append(b, tries("r", "r"), tries("1", "2"))
	}
	c := rl.CompareAttempts(a, b)
	expect.True(t, c.Mean.Difference == 0.25 && c.Pass[1].Difference == 0 && c.Pass[1].Interval == (rl.Interval{}), "%+v", c)
	expect.True(t, c.Mean.Interval[0] > 0 && c.Mean.Interval[1] < 0.5 && len(c.Kinds) == 1 && c.Kinds[0].Problems == 40, "%+v", c)
	c = rl.CompareAttempts([]rl.Attempts{tries("r", "1"), tries("1", "2"), nil}, []rl.Attempts{tries("1"), tries("r", "r"), tries("r")})
	expect.True(t, c.Problems == 2 && c.Mean.Difference == 0.25 && len(c.Pass) == 2 && c.Pass[1].Difference == 1, "%+v", c)
	same := rl.CompareAttempts(a, a)
	expect.True(t, same.Mean.Difference == 0 && same.Mean.Interval == (rl.Interval{}), "%+v", same)
}
