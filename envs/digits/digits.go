// Package digits has two tasks with endless, exactly checkable exercises: sum_digits
// (add up all digits of a list of integers) and reverse_digits (write a number
// backwards).
//
// An exercise is one question and one answer. It is shown as a conversation with a
// worked example, for instruction-tuned models, or in a short form for a small model
// over single characters; both know a worked solution that goes digit by digit.
//
// An exercise belongs to the warm-up, to training or to evaluation by a hash of its numbers:
// whatever the seed, no exercise of one is ever an exercise of another. Those of a part come
// without repetition.
package digits

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/answer"
)

// Names of the tasks.
const (
	Sum     = "sum_digits"
	Reverse = "reverse_digits"
)

// Options are the difficulty of the exercises and their form.
type Options struct {
	Count      int  // sum_digits: the most integers in a list, at least 2; a list has 2 to Count
	Max        int  // the largest integer, at least 10
	RequireTag bool // pay only an answer whose text has [ANSWER]
	Short      bool // the short form instead of the conversation
	// SlipShare is the share of solutions to imitate that are wrong, in [0,1): see [Episode.Solution].
	SlipShare float64
}

// Defaults are lists of 2 to 4 integers from 10 to 999, and numbers from 100000 to
// 9999999 to reverse.
func Defaults(name string) Options {
	if name == Reverse {
		return Options{Max: 9999999}
	}
	return Options{Count: 4, Max: 999}
}

// Task is one of the two tasks.
type Task struct {
	name    string
	seed    uint64
	options Options
	parts   map[envs.Part]*sequence
}

// New checks the options and returns the task of that name.
func New(name string, seed uint64, o Options) (*Task, error) {
	if name != Sum && name != Reverse {
		return nil, fmt.Errorf("task %q is not one of %s and %s", name, Sum, Reverse)
	}
	if o.Max < 10 || o.Max > 1e15 {
		return nil, fmt.Errorf("digits_max is %d: choose from 10 to 10^15", o.Max)
	}
	if name == Sum && (o.Count < 2 || o.Count > 1000) {
		return nil, fmt.Errorf("digits_count is %d: choose from 2 to 1000", o.Count)
	}
	t := &Task{name: name, seed: seed, options: o, parts: map[envs.Part]*sequence{}}
	for _, part := range []envs.Part{envs.Train, envs.Warmup, envs.Eval} {
		t.parts[part] = t.sequence(part)
		if _, ok := t.parts[part].at(0); !ok {
			return nil, fmt.Errorf("digits_max %d leaves too few exercises to keep some for evaluation: raise it", o.Max)
		}
	}
	return t, nil
}

// Len is the number of different exercises of a part where they are few, else 0.
func (t *Task) Len(part envs.Part) int {
	s, ok := t.parts[part]
	if !ok {
		return 0
	}
	return s.size()
}

// Episode returns exercise index of a part.
func (t *Task) Episode(part envs.Part, index int) (envs.Env, error) {
	s, ok := t.parts[part]
	if index < 0 || !ok {
		return nil, fmt.Errorf("there is no episode %d of part %q", index, part)
	}
	numbers, ok := s.at(index)
	if !ok {
		return nil, fmt.Errorf("there is no episode %d of %s: all %d different exercises of that part come before it", index, part, len(s.drawn))
	}
	e := &Episode{task: t.name, options: t.options, numbers: numbers}
	if part != envs.Eval && t.options.SlipShare > 0 {
		e.slips = rand.New(rand.NewPCG(t.seed, uint64(index))).Float64() < t.options.SlipShare
	}
	return e, nil
}

// draw makes one exercise; below(n) is uniform on [0,n). Numbers with fewer digits than most are rare, one in ten,
// too rare to be learned by the time the others are; and of the places of a list the last are seen least. Where they
// are to be learnt, half of the numbers to reverse are short, and half of those of every other list, and longer lists
// are drawn more often.
func (t *Task) draw(part envs.Part, below func(n int) int) []int {
	learn := part != envs.Eval
	if t.name == Reverse {
		return []int{drawNumber(shorterMin(t.options.Max), t.options.Max, learn, below)}
	}
	count := 2 + below(t.options.Count-1)
	if learn {
		count = longer(t.options.Count-1, below)
	}
	numbers := make([]int, count)
	mixed := learn && below(2) == 0
	for i := range numbers {
		numbers[i] = drawNumber(10, t.options.Max, mixed, below)
	}
	return numbers
}

// longer draws a list's length of 2 to 1+lengths, of which each is as likely as it has numbers but one. None may be rare:
// where half of all lists were as long as lists get, policies went on past the end of those with one number less.
func longer(lengths int, below func(n int) int) int {
	at := below(lengths * (lengths + 1) / 2)
	more := 1
	for ; at >= more; more++ {
		at -= more
	}
	return 1 + more
}

// drawNumber draws from low to high, mixed one time in two from those with fewer digits than most.
func drawNumber(low, high int, mixed bool, below func(n int) int) int {
	if long := longMin(high); mixed && low < long && long <= high {
		if below(2) == 0 {
			high = long - 1
		} else {
			low = long
		}
	}
	return low + below(high-low+1)
}

// shorterMin is the least number with one digit fewer than most, and at least 10.
func shorterMin(most int) int {
	low := 1
	for low*100 <= most {
		low *= 10
	}
	return max(10, low)
}

// longMin is the least number with as many digits as most numbers up to most.
func longMin(most int) int { return 10 * shorterMin(most) }

// Episode is one exercise.
type Episode struct {
	task    string
	options Options
	numbers []int
	slips   bool // its solution is wrong
	done    bool
}

// Reset shows the exercise.
func (e *Episode) Reset(context.Context) (envs.Observation, error) {
	e.done = false
	if e.options.Short {
		return envs.Observation{Text: e.short()}, nil
	}
	return envs.Observation{Messages: []envs.Message{
		{Role: envs.RoleSystem, Content: systemPrompt(e.task)},
		{Role: envs.RoleUser, Content: e.question()},
	}}, nil
}

// Step judges the answer: +1 where it is right, −1 where not. With RequireTag it has to
// contain [ANSWER] as well. Every exercise ends with its first action.
func (e *Episode) Step(_ context.Context, a envs.Action) (envs.Step, error) {
	if e.done {
		return envs.Step{}, errors.New("the exercise has been answered: Reset starts it over")
	}
	e.done = true
	info := judge(answer.Extract(a.Text), a.Text, e.Answer())
	info.Kind = e.kind()
	reward := -1.0
	if info.Correct && (info.FormatOK || !e.options.RequireTag) {
		reward = 1
	}
	return envs.Step{Keep: len(a.Text), Reward: reward, Done: true, Info: info}, nil
}

// kind is how many numbers the exercise has, and whether all have as many digits as most: longer lists are learnt
// later, and short numbers shift what stands behind them.
func (e *Episode) kind() string {
	name := "long"
	if e.task == Sum {
		name = fmt.Sprintf("%d numbers", len(e.numbers))
	}
	long := longMin(e.options.Max)
	switch {
	case long > e.options.Max || slices.Min(e.numbers) >= long:
		return name
	case e.task == Reverse:
		return "short"
	default:
		return name + ", short ones"
	}
}

// Answer is the right answer.
func (e *Episode) Answer() int64 {
	result := int64(0)
	if e.task == Reverse {
		for n := e.numbers[0]; n > 0; n /= 10 {
			result = result*10 + int64(n%10)
		}
		return result
	}
	for _, n := range e.numbers {
		for ; n > 0; n /= 10 {
			result += int64(n % 10)
		}
	}
	return result
}

// list is the exercise's numbers as Python prints a list.
func (e *Episode) list() string {
	texts := make([]string, len(e.numbers))
	for i, n := range e.numbers {
		texts[i] = strconv.Itoa(n)
	}
	return "[" + strings.Join(texts, ", ") + "]"
}
