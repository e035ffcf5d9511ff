package rl_test

import (
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/answer"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
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
		expect.True(t, math.Abs(f.Value-want) <= 1e-12 && f.Interval[0] <= f.Value && f.Interval[1] >= f.Value && f.Interval[0] != f.Interval[1], "pass@%d: %+v, want %v", k+1, f, want)
	}
	expect.True(t, math.Abs(s.Majority.Value-1.0/3) <= 1e-12, "majority %+v", s.Majority)
	expect.True(t, len(s.Kinds) == 2 && s.Kinds[0].Kind == "easy" && s.Kinds[0].Problems == 2 && s.Kinds[0].Mean.Value == 0.625 && s.Kinds[1].PassN.Value == 0, "kinds %+v", s.Kinds)
	// A problem with too few attempts for one k still counts for smaller k.
	if s := rl.ScoreAttempts([]rl.Attempts{tries("r", "1", "1"), tries("r"), nil}); s.Problems != 2 || s.N != 3 || s.FormatRate != 0.5 || s.Mean.Value != 2.0/3 || math.Abs(s.Pass[1].Value-2.0/3) > 1e-12 || s.Pass[2].Value != 1 {
		t.Errorf("%+v", s)
	}
	expect.Equal(t, rl.PassScores{}, rl.ScoreAttempts(nil))
	expect.True(t, rl.ScoreAttempts([]rl.Attempts{{nil, {FreeForm: true}, {}}}).FreeForm && !s.FreeForm, "an answer asks for no format")
}

func TestCompareAttempts(t *testing.T) {
	var a, b []rl.Attempts
	for range 20 {
		a, b = append(a, tries("r", "1"), tries("1", "2")), append(b, tries("r", "r"), tries("1", "2"))
	}
	c := rl.CompareAttempts(a, b)
	expect.True(t, c.Mean.Difference == 0.25 && c.Pass[1].Difference == 0 && c.Pass[1].Interval == (rl.Interval{}), "%+v", c)
	expect.True(t, c.Mean.Interval[0] > 0 && c.Mean.Interval[1] < 0.5 && len(c.Kinds) == 1 && c.Kinds[0].Problems == 40 && c.Kinds[0].Mean == c.Mean, "%+v", c)
	expect.Same(t, 1, rl.CompareAttempts(a[:1], b[:1]).Problems, "problems")
	c = rl.CompareAttempts([]rl.Attempts{tries("r", "1"), tries("1", "2"), nil}, []rl.Attempts{tries("1"), tries("r", "r"), tries("r")})
	expect.True(t, c.Problems == 2 && c.Mean.Difference == 0.25 && len(c.Pass) == 2 && c.Pass[1].Difference == 1, "%+v", c)
	same := rl.CompareAttempts(a, a)
	expect.True(t, same.Mean.Difference == 0 && same.Mean.Interval == (rl.Interval{}), "%+v", same)
}

// lastBits ignores the last bits of figures: on arm64 the compiler fuses multiplications with additions, or does not.
var lastBits = cmpopts.EquateApprox(0, 1e-12)

func TestScoreAnswers(t *testing.T) {
	got := rl.ScoreAnswers([]*envs.Info{
		{Correct: true, FormatOK: true, FoundBy: "tag", FreeForm: true}, {FormatOK: true, FoundBy: "tag"}, {Correct: true, FoundBy: "last_number"}, nil,
	})
	want := rl.AnswerScores{N: 4, Correct: 2, Accuracy: 0.5, Interval: rl.Wilson(2, 4), FormatRate: 0.5, FreeForm: true,
		FoundBy: map[string]float64{"tag": 0.5, "last_number": 0.25, "none": 0.25}}
	expect.Equal(t, want, got, lastBits)
	expect.Equal(t, rl.AnswerScores{FoundBy: map[string]float64{}}, rl.ScoreAnswers(nil))
	expect.Same(t, 0.5, got.Weakest(), "without kinds the weakest is %v, want the accuracy", got.Weakest())
	none := rl.ScoreAnswers([]*envs.Info{nil, {FoundBy: "none", Kind: "k"}})
	expect.True(t, got.Verified() && !none.Verified() && len(none.Kinds) == 1, "answers that were compared: %+v, %+v", got, none)
	got.Reward, got.RewardError = &got.Accuracy, 0.1
	low, high := got.RewardInterval()
	expect.Equal(t, [2]float64{0.5 - 0.196, 0.5 + 0.196}, [2]float64{low, high}, lastBits, "interval of the reward")
	expect.Equal(t, 0.5, rl.Interval{1, 1 + 1.959963984540054}.StandardError(), lastBits, "standard error")
}

func TestKindsAreScoredApart(t *testing.T) {
	got := rl.ScoreAnswers([]*envs.Info{
		{Correct: true, Kind: "2x1"}, {Correct: true, Kind: "2x1"}, {Kind: "4x3"}, {Correct: true, Kind: "4x3"}, {Kind: "4x3"}, nil,
	})
	expect.Equal(t, map[string]rl.KindScore{"2x1": {2, 2, 1, nil}, "4x3": {3, 1, 1. / 3, nil}}, got.Kinds)
	expect.True(t, got.Weakest() == 1./3 && got.Accuracy == 0.5, "the weakest %v of accuracy %v", got.Weakest(), got.Accuracy)
}

// TestForms: an unfinished answer counts only with AnyForm, and the line has both accuracies.
func TestForms(t *testing.T) {
	for _, form := range []answer.Form{answer.FinalForm, answer.AnyForm} {
		infos := []*envs.Info{{Correct: true, Answer: "74 - 70", Truth: "4"}, {Correct: true, Answer: "4", Truth: "4"}, {Answer: "5", Truth: "4"}, {Answer: "5 - 0", Truth: "4"}}
		for _, info := range infos {
			info.CheckForm(form)
		}
		s := rl.ScoreAnswers(infos)
		expect.Same(t, "--answer-form final: 1/4 = 25.0 % (95 % CI 4.6–69.9), any: 2/4 = 50.0 % (95 % CI 15.0–85.0)", s.Forms(), "%s", form)
		want := map[answer.Form]int{answer.FinalForm: 0, answer.AnyForm: 1}[form]
		expect.True(t, s.Doubted == want, "%s: %d doubted, want %d", form, s.Doubted, want)
	}
	expect.Same(t, "", rl.ScoreAnswers([]*envs.Info{{Correct: true}}).Forms(), "equal accuracies are both printed")
}

func TestRejectionThreshold(t *testing.T) {
	sure := func(right bool, ps ...float32) (rows []rl.Sureness) {
		for _, p := range ps {
			rows = append(rows, rl.Sureness{p, right})
		}
		return rows
	}
	for _, test := range []struct {
		name    string
		in, out []rl.Sureness
		want    float64
	}{
		{"apart", sure(true, 0.75, 1), sure(false, 0.25, 0.5), 0.625},
		{"the other way about: nothing is rejected", sure(true, 0.25, 0.5), sure(false, 0.75, 1), 0},
		{"equals stay together", sure(true, 0.5, 0.5, 0.5), sure(false, 0.5), 0},
		{"all may be rejected", sure(false, 0.5), sure(false, 0.75), 0.875},
	} {
		got, err := rl.RejectionThreshold(test.in, test.out)
		expect.True(t, err == nil && math.Abs(got-test.want) <= 1e-9, "%s: %v, %v, want %v", test.name, got, err, test.want)
	}
	for _, rows := range [][2][]rl.Sureness{{nil, sure(false, 1)}, {sure(true, 1), nil}} {
		expect.Failure(rl.RejectionThreshold(rows[0], rows[1]))(t, "rows in scope and rows out of scope")
		expect.Failure(rl.MeasureOutOfScope(0.5, rows[0], rows[1]))(t, "rows in scope and rows out of scope")
	}
}

// TestRejectionThresholdIsTheBest tries all thresholds.
func TestRejectionThresholdIsTheBest(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	draw := func(n int) (rows []rl.Sureness) {
		for range n {
			rows = append(rows, rl.Sureness{float32(rng.IntN(12)) / 11, rng.IntN(3) > 0})
		}
		return rows
	}
	for range 200 {
		in, out := draw(1+rng.IntN(20)), draw(1+rng.IntN(20))
		value := func(threshold float64) float64 {
			o := must.Get(rl.MeasureOutOfScope(threshold, in, out))(t)
			return o.Accuracy + o.Recall
		}
		chosen := must.Get(rl.RejectionThreshold(in, out))(t)
		for i := range 41 { // a threshold is a probability
			other := float64(i) / 40
			expect.Require(t, value(other) <= value(chosen)+1e-9, "%v is worth %v, the chosen %v %v", other, value(other), chosen, value(chosen))
		}
	}
}

func TestMeasureOutOfScope(t *testing.T) {
	in := []rl.Sureness{{0.9, true}, {0.8, false}, {0.4, true}, {0.5, true}}
	out := []rl.Sureness{{0.3, false}, {0.5, false}, {0.85, false}}
	got := must.Get(rl.MeasureOutOfScope(0.5, in, out))(t)
	// Pairs in which the in-scope row has the higher confidence: 3 for .9, 2 for .8, 1 for .4, 1.5 for .5; of 12.
	want := rl.OutOfScope{Threshold: 0.5, N: 3, InScope: 4, Recall: 1.0 / 3, FalseAlarms: 0.25, Accuracy: 0.5, AUROC: 7.5 / 12,
		Intervals: [2]rl.Interval{rl.Wilson(1, 3), rl.Wilson(1, 4)}}
	expect.Equal(t, want, got, lastBits)
}

func TestSelective(t *testing.T) {
	rows := rl.SurenessOf([]int{-1, 0, 1, 1}, [][]float32{{0.4, 0.6}, {0.9, 0.1}, {0.2, 0.8}, {0.7, 0.3}})
	expect.Equal(t, []rl.Sureness{{0.6, false}, {0.9, true}, {0.8, true}, {0.7, false}}, rows, "sureness")
	expect.Equal(t, []rl.Covered{{1, float64(float32(0.6)), 4, 0.5}, {0.75, float64(float32(0.7)), 3, 2.0 / 3}, {0.5, float64(float32(0.8)), 2, 1}}, rl.Selective(rows))
	for n := 1; n <= 2; n++ {
		all := rl.Selective([]rl.Sureness{{0.5, true}, {0.5, false}}[:n])
		expect.True(t, len(all) == 1 && all[0].N == n, "equally confident rows are separated: %v", all)
	}
}

func TestCountRewarded(t *testing.T) {
	const sum = "What is 74 - 70?"
	many := func(text string, truth func(i int) string, n int) (all []rl.Outcome) {
		for i := range n {
			all = append(all, rl.Outcome{Prompt: fmt.Sprintf("Question %d?", i), Text: text, Truth: truth(i), Reward: 1})
		}
		return all
	}
	number := func(i int) string { return fmt.Sprint(i) }
	for _, test := range []struct {
		name string
		all  []rl.Outcome
		want rl.Rewarded
	}{
		{"an echo where no answer is known", []rl.Outcome{{Prompt: "Say: one, two three four.", Text: "one, two three four", Reward: 1}}, rl.Rewarded{N: 1, Echoes: 1, Echo: "one, two three four"}},
		{"none", nil, rl.Rewarded{}},
		{"a copied question", []rl.Outcome{{Prompt: sum, Text: " 74-70.", Truth: "4", Reward: 1}}, rl.Rewarded{N: 1, Echoes: 1, Echo: "74-70."}},
		{"a copied question behind a phrase", []rl.Outcome{{Prompt: sum, Text: "The answer is 74 - 70", Answer: "74 - 70", Truth: "4", Reward: 1}}, rl.Rewarded{N: 1, Echoes: 1, Echo: "74 - 70"}},
		{"a copy without reward", []rl.Outcome{{Prompt: sum, Text: "74 - 70", Truth: "4", Reward: -1}, {Prompt: sum, Text: "4", Truth: "4", Reward: 1}}, rl.Rewarded{N: 1}},
		{"all without reward", []rl.Outcome{{Prompt: sum, Text: "74 - 70", Truth: "4", Reward: 0}, {Prompt: sum, Text: "4", Truth: "4", Reward: 0}}, rl.Rewarded{}},
		{"the answer", []rl.Outcome{{Prompt: sum, Text: "4", Truth: "4", Reward: 1}}, rl.Rewarded{N: 1}},
		{"the answer worked out", []rl.Outcome{{Prompt: sum, Text: "74 - 70 = 4", Truth: "4", Reward: 1}}, rl.Rewarded{N: 1}},
		{"an option of the prompt", []rl.Outcome{{Prompt: "A) a cat or B) a dog?", Text: "B) a dog", Truth: "B", Reward: 1}}, rl.Rewarded{N: 1}},
		{"the answer after a word that contains it", []rl.Outcome{{Prompt: "Cats or a cat?", Text: "Cats or a cat", Truth: " Cat ", Reward: 1}}, rl.Rewarded{N: 1}},
		{"a copy as long as the answer", []rl.Outcome{{Prompt: sum, Text: "74", Truth: "44", Reward: 1}}, rl.Rewarded{N: 1}},
		{"a name in the prompt", []rl.Outcome{{Prompt: "Ann met Bob. Who met Bob?", Text: "Ann", Truth: "Ann", Reward: 1}}, rl.Rewarded{N: 1}},
		{"a label without a reference", []rl.Outcome{{Prompt: "positive or negative?", Text: "positive", Reward: 1}}, rl.Rewarded{N: 1}},
		{"a copy without a reference", []rl.Outcome{{Prompt: "Say something about the sea.", Text: "about the sea", Reward: 1}}, rl.Rewarded{N: 1, Echoes: 1, Echo: "about the sea"}},
		{"one text for many", many("correct answer: see above", number, 4), rl.Rewarded{N: 4, Same: 4, Repeats: "correct answer: see above"}},
		{"two texts for as many", append(many("b: see above for it", number, 4), many("a: see above for it", number, 4)...), rl.Rewarded{N: 8, Same: 4, Repeats: "a: see above for it"}},
		{"one text for few", many("correct answer: see above", number, 3), rl.Rewarded{N: 3}},
		{"one text that answers", many("yes", func(int) string { return "yes" }, 9), rl.Rewarded{N: 9}},
		{"one list for many", many("0 1 2 3 4 5", number, 6), rl.Rewarded{N: 6, Same: 6, Repeats: "0 1 2 3 4 5"}},
		{"one label for many without a reference", many("positive", func(int) string { return "" }, 9), rl.Rewarded{N: 9}},
		{"one text for many without a reference", many("I love this very much!", func(int) string { return "" }, 9), rl.Rewarded{N: 9, Same: 9, Repeats: "I love this very much!"}},
		{"rewards at the mean, but for rounding", []rl.Outcome{{Text: "x", Reward: 1}, {Text: "y", Reward: 1 + 2e-9}}, rl.Rewarded{N: 2}},
		{"negative rewards", []rl.Outcome{{Prompt: sum, Text: "74 - 70", Truth: "4", Reward: -1}, {Prompt: sum, Text: "I do not know", Truth: "4", Reward: -2}}, rl.Rewarded{N: 1, Echoes: 1, Echo: "74 - 70"}},
	} {
		expect.Equal(t, test.want, rl.CountRewarded(test.all), test.name)
	}
}
