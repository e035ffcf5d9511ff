package rl_test

import (
	"fmt"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/rl"
)

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
		{"none", nil, rl.Rewarded{}},
		{"a copied question", []rl.Outcome{{Prompt: sum, Text: " 74-70.", Truth: "4", Reward: 1}}, rl.Rewarded{N: 1, Echoes: 1, Echo: "74-70."}},
		{"a copied question behind a phrase", []rl.Outcome{{Prompt: sum, Text: "The answer is 74 - 70", Answer: "74 - 70", Truth: "4", Reward: 1}}, rl.Rewarded{N: 1, Echoes: 1, Echo: "74 - 70"}},
		{"a copy without reward", []rl.Outcome{{Prompt: sum, Text: "74 - 70", Truth: "4", Reward: -1}, {Prompt: sum, Text: "4", Truth: "4", Reward: 1}}, rl.Rewarded{N: 1}},
		{"all without reward", []rl.Outcome{{Prompt: sum, Text: "74 - 70", Truth: "4", Reward: 0}, {Prompt: sum, Text: "4", Truth: "4", Reward: 0}}, rl.Rewarded{}},
		{"the answer", []rl.Outcome{{Prompt: sum, Text: "4", Truth: "4", Reward: 1}}, rl.Rewarded{N: 1}},
		{"the answer worked out", []rl.Outcome{{Prompt: sum, Text: "74 - 70 = 4", Truth: "4", Reward: 1}}, rl.Rewarded{N: 1}},
		{"an option of the prompt", []rl.Outcome{{Prompt: "A) a cat or B) a dog?", Text: "B) a dog", Truth: "B", Reward: 1}}, rl.Rewarded{N: 1}},
		{"a name in the prompt", []rl.Outcome{{Prompt: "Ann met Bob. Who met Bob?", Text: "Ann", Truth: "Ann", Reward: 1}}, rl.Rewarded{N: 1}},
		{"a label without a reference", []rl.Outcome{{Prompt: "positive or negative?", Text: "positive", Reward: 1}}, rl.Rewarded{N: 1}},
		{"a copy without a reference", []rl.Outcome{{Prompt: "Say something about the sea.", Text: "about the sea", Reward: 1}}, rl.Rewarded{N: 1, Echoes: 1, Echo: "about the sea"}},
		{"one text for many", many("correct answer: see above", number, 4), rl.Rewarded{N: 4, Same: 4, Repeats: "correct answer: see above"}},
		{"one text for few", many("correct answer: see above", number, 3), rl.Rewarded{N: 3}},
		{"one text that answers", many("yes", func(int) string { return "yes" }, 9), rl.Rewarded{N: 9}},
		{"one list for many", many("0 1 2 3 4 5", number, 6), rl.Rewarded{N: 6, Same: 6, Repeats: "0 1 2 3 4 5"}},
		{"one label for many without a reference", many("positive", func(int) string { return "" }, 9), rl.Rewarded{N: 9}},
		{"one text for many without a reference", many("I love this very much!", func(int) string { return "" }, 9), rl.Rewarded{N: 9, Same: 9, Repeats: "I love this very much!"}},
		{"negative rewards", []rl.Outcome{{Prompt: sum, Text: "74 - 70", Truth: "4", Reward: -1}, {Prompt: sum, Text: "I do not know", Truth: "4", Reward: -2}}, rl.Rewarded{N: 1, Echoes: 1, Echo: "74 - 70"}},
	} {
		expect.Equal(t, test.want, rl.CountRewarded(test.all), test.name)
	}
}

// TestRoundedMean: rewards that differ from the mean by no more than rounding count as the mean.
func TestRoundedMean(t *testing.T) {
	if r := rl.CountRewarded([]rl.Outcome{{Text: "x", Reward: 1}, {Text: "y", Reward: 1 + 2e-9}}); r.N != 2 {
		t.Errorf("%d of 2 rewards are at the mean", r.N)
	}
}
