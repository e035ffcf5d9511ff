package bank_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/bank"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

func self(s string) string { return s }

func source(path, all string) bank.Source[string] {
	return bank.Source[string]{Path: path, All: strings.Fields(all)}
}

func TestDivide(t *testing.T) {
	for _, test := range []struct {
		name                string
		train, eval         bank.Source[string]
		examples            string
		holdOut             int
		wantTrain, wantEval string
		wantErr             string
	}{
		{"held back", source("t", "a b c d e"), bank.Source[string]{}, "", 2, "a b c", "d e", ""},
		{"the same twice", source("t", "a e c d e"), bank.Source[string]{}, "", 2, "a c", "d e", ""},
		{"two files", source("t", "a b"), source("e", "c d"), "", 9, "a b", "c d", ""},
		{"examples", source("t", "a b"), source("e", "c d"), "a", 0, "b", "c d", ""},
		{"evaluated examples", source("t", "a b"), source("e", "c d"), "b d", 0, "", "", `e: the thing "d" is a few-shot example too`},
		{"evaluation only", bank.Source[string]{}, source("e", "c d"), "a", 0, "", "c d", ""},
		{"in both", source("t", "a b"), source("e", "b"), "", 0, "", "", `t and e share the thing "b"`},
		{"too few", source("t", "a b"), bank.Source[string]{}, "", 2, "", "", "t: 2 things are too few to hold out 2"},
		{"all the same", source("t", "a a"), bank.Source[string]{}, "", 1, "", "", "t: every thing duplicates one of the last 1"},
		{"all examples", source("t", "a b"), source("e", "c"), "a b", 0, "", "", "t: no thing is left after 2 few-shot examples"},
	} {
		b, err := bank.Divide(1, "thing", test.train, test.eval, strings.Fields(test.examples), test.holdOut, self)
		if test.wantErr != "" {
			expect.Error(t, err, test.wantErr)
			continue
		}
		expect.True(t, err == nil && strings.Join(b.Train, " ") == test.wantTrain && strings.Join(b.Eval, " ") == test.wantEval, "%s: %+v, %v", test.name, b, err)
	}
}

func TestOrder(t *testing.T) {
	b := must.Get(bank.Divide(1, "thing", source("t", "a b c d e f g"), source("e", "x y"), nil, 0, self))(t)
	round := func(from int) (all []string) {
		for i := range 7 {
			e := must.Get(b.At(envs.Train, from+i))(t)
			all = append(all, e)
		}
		return all
	}
	first, second := round(0), round(7)
	expect.True(t, !slices.Equal(first, second) && slices.Equal(slices.Sorted(slices.Values(second)), b.Train), "rounds %v and %v", first, second)
	expect.Equal(t, first, round(0), "second epoch")
	for i, want := range []string{"x", "y"} {
		e, err := b.At(envs.Eval, i)
		expect.True(t, e == want && err == nil, "problem %d is %q, %v", i, e, err)
	}
	for _, at := range []int{-1, 2} {
		expect.Fails(b.At(envs.Eval, at))(t, "there is an problem %d of 2", at)
	}
	dropped, err := b.FilterPrompts(func(e string) (bool, error) { return e > "c", nil })
	expect.True(t, dropped == 3 && err == nil && b.Len(envs.Train) == 4 && b.Len(envs.Eval) == 2, "%d dropped, %v", dropped, err)
	must.Get(b.At(envs.Train, 6))(t)
}

func TestAdd(t *testing.T) {
	b := must.Get(bank.Divide(1, "thing", source("t", "a b"), source("e", "x y"), nil, 0, self))(t)
	b.Add(strings.Fields("a c x d"), []string{"d"}, self)
	expect.Equal(t, []string{"a", "b", "a", "c"}, b.Train, "without the example d and the evaluation problem x")
}

// TestRank: every pass is in ascending order, with equal ones in another order each time.
func TestRank(t *testing.T) {
	b := must.Get(bank.Divide(1, "thing", source("t", "aa b cc d eee f gg h i"), source("e", "x y"), nil, 0, self))(t)
	b.Rank = func(s string) float64 { return float64(len(s)) }
	var passes []string
	for epoch := range 3 {
		var lengths []int
		all := ""
		for i := range 9 {
			e := must.Get(b.At(envs.Train, 9*epoch+i))(t)
			lengths, all = append(lengths, len(e)), all+e+" "
		}
		expect.Equal(t, []int{1, 1, 1, 1, 1, 2, 2, 2, 3}, lengths)
		passes = append(passes, all)
	}
	expect.True(t, passes[0] != passes[1] && passes[1] != passes[2], "passes %q have one order", passes)
}
