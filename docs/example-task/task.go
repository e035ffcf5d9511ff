package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/envs"
)

func init() {
	envs.Register(envs.Definition{
		Name: "count_letters", Help: "count a letter in a word", Demonstrations: true,
		Options: func() any { return &countLetters{} },
		Recipe:  "tiny_layers: 2\nmax_steps: 400\nwarmup_until: 0.6\nmax_new_tokens: 24\neval_samples: 50\n",
		Rewards: []envs.NamedReward{{
			Name: "brief", Help: "1 for an answer of one word, less for each further one",
			New: func(any, envs.Scorer) envs.Reward { return brief },
		}},
	})
}

// countLetters has the options of the task as fields, and is the task as well.
type countLetters struct {
	Letters string `option:"letters" default:"abc" help:"those that words are made of"`
	Length  int    `option:"word_length" default:"6" range:"[1,20]" common:"true" help:"letters of a word at most"`

	seed uint64
}

// Check refuses what no single value shows to be wrong.
func (t *countLetters) Check() error {
	if len(t.Letters) < 2 {
		return &envs.OptionError{Option: "letters", Err: fmt.Errorf("%q: give two letters at least", t.Letters)}
	}
	return nil
}

// Task makes countLetters an envs.EpisodeSource.
func (t *countLetters) Task(s envs.Setup) (envs.Task, error) {
	t.seed = s.Seed
	return t, nil
}

// Len is 0: the exercises do not end.
func (*countLetters) Len(envs.Part) int { return 0 }

// Episode draws a word. Words are few, so training and evaluation share some.
func (t *countLetters) Episode(part envs.Part, index int) (envs.Env, error) {
	stream := uint64(0)
	for _, c := range string(part) {
		stream = stream*31 + uint64(c)
	}
	rng := rand.New(rand.NewPCG(t.seed, stream+uint64(index)<<20))
	word := make([]byte, 1+rng.IntN(t.Length))
	for i := range word {
		word[i] = t.Letters[rng.IntN(len(t.Letters))]
	}
	return &count{word: string(word), letter: t.Letters[rng.IntN(len(t.Letters))]}, nil
}

// count is one exercise.
type count struct {
	word   string
	letter byte
}

func (c *count) answer() string { return strconv.Itoa(strings.Count(c.word, string(c.letter))) }

func (c *count) Reset(context.Context) (envs.Observation, error) {
	return envs.Observation{Text: fmt.Sprintf("%c in %s\n", c.letter, c.word)}, nil
}

// Solution is what the warm-up imitates.
func (c *count) Solution() string { return c.answer() }

func (c *count) Step(_ context.Context, a envs.Action) (envs.Step, error) {
	found := strings.TrimSpace(a.Text)
	info := &envs.Info{Answer: found, Truth: c.answer(), FormatOK: a.Stop == envs.StopEnd, FoundBy: "text"}
	info.Correct = info.Answer == info.Truth
	step := envs.Step{Keep: len(a.Text), Done: true, Info: info}
	if info.Correct {
		step.Reward = 1
	}
	return step, nil
}

// brief pays short answers.
func brief(_ context.Context, c envs.Completion) (float64, error) {
	return 1 / float64(max(1, len(strings.Fields(c.Action.Text)))), nil
}
