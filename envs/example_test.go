package envs_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/envs"
)

// guess is a game of several turns: find a number from 1 to 100; after each guess the
// game says whether the number is higher or lower.
type guess struct {
	number, guesses, left int
}

func (g *guess) Reset(context.Context) (envs.Observation, error) {
	g.left = g.guesses
	return envs.Observation{Text: "Find the number from 1 to 100.\n> ", Stop: []string{"\n"}}, nil
}

func (g *guess) Step(_ context.Context, a envs.Action) (envs.Step, error) {
	step := envs.Step{Keep: len(a.Text)}
	g.left--
	n, err := strconv.Atoi(strings.TrimSpace(a.Text))
	switch {
	case err == nil && n == g.number:
		step.Reward, step.Done = 1, true
	case g.left == 0:
		step.Done = true
	case err != nil:
		step.Append = "Write a number.\n> "
	case n < g.number:
		step.Append = "Higher.\n> "
	default:
		step.Append = "Lower.\n> "
	}
	if step.Done {
		step.Info = &envs.Info{Correct: step.Reward == 1, FormatOK: err == nil, Answer: a.Text, Truth: strconv.Itoa(g.number)}
	}
	return step, nil
}

// guessing counts through the numbers; those that end in 0 are kept for evaluation. Its fields are its options, so it is
// what Definition.Options returns, and the task as well.
type guessing struct {
	Guesses int `option:"guesses" default:"7" range:"[1,100]" help:"guesses that a game allows"`
}

func (o *guessing) Task(envs.Setup) (envs.Task, error) { return o, nil }

func (*guessing) Len(part envs.Part) int {
	if part == envs.Eval {
		return 10
	}
	return 0
}

func (o *guessing) Episode(part envs.Part, index int) (envs.Env, error) {
	if part == envs.Eval {
		return &guess{number: 10 * (index + 1), guesses: o.Guesses}, nil
	}
	index += index / 9 // leave the tens out
	return &guess{number: 1 + index%100, guesses: o.Guesses}, nil
}

// A custom task is registered by name; its episodes may have several turns.
func Example() {
	envs.Register(envs.Definition{
		Name: "guess", Help: "find a number by halving", Options: func() any { return &guessing{} },
	})

	task, err := envs.New("guess", envs.Setup{Seed: 1}, envs.Settings{"guesses": "6"})
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	episode, err := task.Episode(envs.Train, 41)
	if err != nil {
		panic(err)
	}
	shown, err := episode.Reset(ctx)
	if err != nil {
		panic(err)
	}
	fmt.Print(shown.Text)
	for low, high := 1, 100; ; { // a player that bisects the interval
		middle := (low + high) / 2
		action := fmt.Sprintf("%d\n", middle)
		step, err := episode.Step(ctx, envs.Action{Text: action, Stop: envs.StopString})
		if err != nil {
			panic(err)
		}
		fmt.Print(action, step.Append)
		if step.Done {
			fmt.Println("reward", step.Reward)
			return
		}
		if strings.HasPrefix(step.Append, "Higher") {
			low = middle + 1
		} else {
			high = middle - 1
		}
	}
	// Output:
	// Find the number from 1 to 100.
	// > 50
	// Lower.
	// > 25
	// Higher.
	// > 37
	// Higher.
	// > 43
	// Higher.
	// > 46
	// reward 1
}
