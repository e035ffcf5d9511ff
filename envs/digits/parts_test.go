package digits

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
)

// smallest has so few problems that all can be listed.
func smallest(name string) func(*Options) {
	return func(o *Options) {
		o.Max = 99
		if name == Sum {
			o.Count = 2
		}
	}
}

var allParts = []envs.Part{envs.Warmup, envs.Train, envs.Eval}

func TestPartsAreDisjointWhateverTheSeed(t *testing.T) {
	for _, name := range []string{Sum, Reverse} {
		owner := map[uint64]envs.Part{}
		count := map[envs.Part]int{}
		for seed := range uint64(2) {
			task := newTask(t, name, seed, smallest(name))
			for _, part := range allParts {
				for i := range task.Len(part) {
					key := keyOf(name, episode(t, task, part, i).numbers)
					other, ok := owner[key]
					expect.Require(t, !ok || other == part, "%s: problem %x is in %s and in %s", name, key, other, part)
					owner[key] = part
				}
				count[part] = task.Len(part)
			}
		}
		want := map[string]int{Sum: 90 * 91 / 2, Reverse: 90}[name]
		expect.True(t, count[envs.Warmup]+count[envs.Train]+count[envs.Eval] == want && len(owner) == want,
			"%s: the splits have %v problems, %d different ones, want %d", name, count, len(owner), want)
		expect.True(t, count[envs.Eval]*2 <= count[envs.Train] && count[envs.Eval] >= want/20, "%s: the splits have %v problems", name, count)
	}
}

func TestProblemsDoNotRepeatWithinAPass(t *testing.T) {
	for _, name := range []string{Sum, Reverse} {
		for _, part := range allParts {
			few := newTask(t, name, 4, smallest(name))
			n := few.Len(part)
			for title, test := range map[string]struct {
				task *Task
				n    int
			}{"few": {few, n}, "many": {newTask(t, name, 4, nil), 3000}} {
				seen := map[uint64]bool{}
				for i := range test.n {
					seen[keyOf(name, episode(t, test.task, part, i).numbers)] = true
				}
				expect.Same(t, test.n, len(seen), "%s, %s, %s: %d different problems among the first %d", name, title, part, len(seen), test.n)
			}
			if part == envs.Eval {
				expect.Fails(few.Episode(part, n))(t, "%s: problem %d of the %d to be verified by", name, n, n)
				continue
			}
			first, again := map[uint64]bool{}, map[uint64]bool{}
			same := true
			for i := range n {
				a, b := keyOf(name, episode(t, few, part, i).numbers), keyOf(name, episode(t, few, part, n+i).numbers)
				first[a], again[b] = true, true
				same = same && a == b
			}
			diff := cmp.Diff(first, again)
			expect.True(t, diff == "" && !same, "%s, %s: the second round (in the same order: %t; -first +second):\n%s", name, part, same, diff)
		}
	}
}

func TestLen(t *testing.T) {
	for _, test := range []struct {
		name       string
		count, max int
		few        bool
	}{{Sum, 4, 999, false}, {Sum, 2, 999, false}, {Sum, 2, 99, true}, {Sum, 3, 30, true}, {Reverse, 0, 9999999, false}, {Reverse, 0, 999, true}} {
		task := newTask(t, test.name, 1, func(o *Options) { o.Count, o.Max = test.count, test.max })
		n := task.Len(envs.Eval)
		expect.True(t, (n > 0) == test.few, "%s, %d numbers to %d: %d problems to be verified by", test.name, test.count, test.max, n)
	}
}

func TestKind(t *testing.T) {
	for _, test := range []struct {
		name    string
		max     int
		numbers []int
		want    string
	}{
		{Sum, 999, []int{100, 999}, "2 numbers"},
		{Sum, 999, []int{100, 99, 500}, "3 numbers, short ones"},
		{Sum, 99, []int{10, 99}, "2 numbers"},
		{Reverse, 9999999, []int{1000000}, "long"},
		{Reverse, 9999999, []int{999999}, "short"},
		{Reverse, 99, []int{10}, "long"},
	} {
		e := &Episode{task: test.name, options: Options{Count: 4, Max: test.max}, numbers: test.numbers}
		expect.Same(t, test.want, e.kind(), "%s to %d, %v: kind", test.name, test.max, test.numbers)
	}
}

// Training splits sample a list in proportion to its length minus one, so no length is rare.
func TestLongListsAreOftenTrainedOn(t *testing.T) {
	learn, all := map[int]float64{2: 1. / 6, 3: 2. / 6, 4: 3. / 6}, map[int]float64{2: 1. / 3, 3: 1. / 3, 4: 1. / 3}
	for part, want := range map[envs.Part]map[int]float64{envs.Warmup: learn, envs.Train: learn, envs.Eval: all} {
		task := newTask(t, Sum, 3, nil)
		got := map[int]float64{}
		for i := range 2000 {
			got[len(episode(t, task, part, i).numbers)] += 1. / 2000
		}
		expect.Equal(t, want, got, cmpopts.EquateApprox(0, 0.04), fmt.Sprintf("shares of lists of %s by their numbers", part))
	}
}
