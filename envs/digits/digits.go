// Package digits has two tasks with unlimited, exactly checkable problems: sum_digits (add up all digits of a list of
// integers) and reverse_digits (write a number backwards).
//
// A problem has one question and one answer. Instruction-tuned models see a conversation with a few-shot example; small
// character models see a short form. Both forms come with a step-by-step demonstration.
//
// A hash of its numbers assigns each problem to warm-up, training or evaluation. The splits are disjoint for every seed,
// and no problem repeats within a pass over a split.
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

// Task names.
const (
	Sum     = "sum_digits"
	Reverse = "reverse_digits"
)

// Options set the difficulty and the prompt format.
type Options struct {
	Count      int  // sum_digits: longest list, at least 2; lists have 2 to Count integers
	Max        int  // largest integer, at least 10
	RequireTag bool // reward an answer only if the text has [ANSWER]
	Short      bool // short form instead of a conversation
	// SlipShare is the fraction of demonstrations that are wrong, in [0,1): see [Episode.Solution].
	SlipShare float64
}

// Defaults returns lists of 2 to 4 integers from 10 to 999 for sum_digits, and numbers from 100000 to 9999999 for
// reverse_digits.
func Defaults(name string) Options {
	if name == Reverse {
		return Options{Max: 9999999}
	}
	return Options{Count: 4, Max: 999}
}

// Task is sum_digits or reverse_digits.
type Task struct {
	name    string
	seed    uint64
	options Options
	parts   map[envs.Part]*sequence
}

// New checks the options and returns the named task.
func New(name string, seed uint64, o Options) (*Task, error) {
	if name != Sum && name != Reverse {
		return nil, fmt.Errorf("unknown task %q; choose %s or %s", name, Sum, Reverse)
	}
	if o.Max < 10 || o.Max > 1e15 {
		return nil, fmt.Errorf("digits_max %d is out of range; use 10 to 10^15", o.Max)
	}
	if name == Sum && (o.Count < 2 || o.Count > 1000) {
		return nil, fmt.Errorf("digits_count %d is out of range; use 2 to 1000", o.Count)
	}
	t := &Task{name: name, seed: seed, options: o, parts: map[envs.Part]*sequence{}}
	for _, part := range []envs.Part{envs.Train, envs.Warmup, envs.Eval} {
		t.parts[part] = t.sequence(part)
		if _, ok := t.parts[part].at(0); !ok {
			return nil, fmt.Errorf("digits_max %d gives too few problems for an evaluation split; raise it", o.Max)
		}
	}
	return t, nil
}

// Len returns the number of distinct problems in a split, or 0 if there are too many to count.
func (t *Task) Len(part envs.Part) int {
	s, ok := t.parts[part]
	if !ok {
		return 0
	}
	return s.size()
}

// Episode returns problem index of a split.
func (t *Task) Episode(part envs.Part, index int) (envs.Env, error) {
	s, ok := t.parts[part]
	if index < 0 || !ok {
		return nil, fmt.Errorf("no episode %d in split %q", index, part)
	}
	numbers, ok := s.at(index)
	if !ok {
		return nil, fmt.Errorf("episode %d is out of range: split %s has %d distinct problems", index, part, len(s.sampled))
	}
	e := &Episode{task: t.name, options: t.options, numbers: numbers}
	if part != envs.Eval && t.options.SlipShare > 0 {
		e.slips = rand.New(rand.NewPCG(t.seed, uint64(index))).Float64() < t.options.SlipShare
	}
	return e, nil
}

// sample makes one problem; below(n) is uniform on [0,n).
//
// Uniform sampling makes short numbers rare (one in ten), too rare to learn, and shows the last list positions least.
// The training splits therefore use short numbers half of the time (in every other list) and sample longer lists more
// often.
func (t *Task) sample(part envs.Part, below func(n int) int) []int {
	learn := part != envs.Eval
	if t.name == Reverse {
		return []int{sampleNumber(shorterMin(t.options.Max), t.options.Max, learn, below)}
	}
	count := 2 + below(t.options.Count-1)
	if learn {
		count = longer(t.options.Count-1, below)
	}
	numbers := make([]int, count)
	mixed := learn && below(2) == 0
	for i := range numbers {
		numbers[i] = sampleNumber(10, t.options.Max, mixed, below)
	}
	return numbers
}

// longer samples a list length from 2 to 1+lengths, weighted by length minus one. No length may be rare: when half of the
// lists had the maximum length, policies ran past the end of lists one shorter.
func longer(lengths int, below func(n int) int) int {
	at := below(lengths * (lengths + 1) / 2)
	more := 1
	for ; at >= more; more++ {
		at -= more
	}
	return 1 + more
}

// sampleNumber samples from low to high. If mixed, half of the samples have fewer digits than most numbers.
func sampleNumber(low, high int, mixed bool, below func(n int) int) int {
	if long := longMin(high); mixed && low < long && long <= high {
		if below(2) == 0 {
			high = long - 1
		} else {
			low = long
		}
	}
	return low + below(high-low+1)
}

// shorterMin is the smallest number with one digit fewer than most, and at least 10.
func shorterMin(most int) int {
	low := 1
	for low*100 <= most {
		low *= 10
	}
	return max(10, low)
}

// longMin is the smallest number with as many digits as most numbers up to most.
func longMin(most int) int { return 10 * shorterMin(most) }

// Episode is one problem.
type Episode struct {
	task    string
	options Options
	numbers []int
	slips   bool // the demonstration is wrong on purpose
	done    bool
}

// Reset returns the prompt.
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

// Step verifies the answer: reward +1 if correct, −1 if not. RequireTag also demands [ANSWER]. The first action ends the
// episode.
func (e *Episode) Step(_ context.Context, a envs.Action) (envs.Step, error) {
	if e.done {
		return envs.Step{}, errors.New("the episode has ended; call Reset")
	}
	e.done = true
	info := verify(answer.Extract(a.Text), a.Text, e.Answer())
	info.CheckForm(answer.FinalForm)
	info.Kind = e.kind()
	reward := -1.0
	if info.Correct && (info.FormatOK || !e.options.RequireTag) {
		reward = 1
	}
	return envs.Step{Keep: len(a.Text), Reward: reward, Done: true, Info: info}, nil
}

// kind is the number of integers, and whether some are short. Policies learn longer lists later, and short numbers shift
// everything after them.
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

// Answer returns the correct answer.
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

// list formats the numbers as a Python list.
func (e *Episode) list() string {
	texts := make([]string, len(e.numbers))
	for i, n := range e.numbers {
		texts[i] = strconv.Itoa(n)
	}
	return "[" + strings.Join(texts, ", ") + "]"
}
