package digits

import (
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/answer"
	"github.com/rltrain/rltrain/envs/answer/hacks"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

func newTask(t *testing.T, name string, seed uint64, change func(*Options)) *Task {
	t.Helper()
	o := Defaults(name)
	if change != nil {
		change(&o)
	}
	return must.Get(New(name, seed, o))(t)
}

func episode(t *testing.T, task *Task, part envs.Part, index int) *Episode {
	t.Helper()
	e := must.Get(task.Episode(part, index))(t)
	return e.(*Episode)
}

func TestAnswerAndSolution(t *testing.T) {
	for _, test := range []struct {
		task            string
		numbers         []int
		question        string
		solution, plain string
	}{
		{Sum, []int{12, 345, 67}, "What is the total digit sum of [12, 345, 67]?", "a707b613c518d422e325f227g128 [ANSWER] 28",
			"12: +1=1 +2=3. 345: +3=6 +4=10 +5=15. 67: +6=21 +7=28.\n[ANSWER] 28"},
		{Sum, []int{12, 345}, "What is the total digit sum of [12, 345]?", "a505b409c312d214e115 [ANSWER] 15",
			"12: +1=1 +2=3. 345: +3=6 +4=10 +5=15.\n[ANSWER] 15"},
		{Sum, []int{100, 10}, "What is the total digit sum of [100, 10]?", "a000b101c001d001e102 [ANSWER] 02",
			"100: +1=1 +0=1 +0=1. 10: +1=2 +0=2.\n[ANSWER] 2"},
		{Reverse, []int{1234}, "What is 1234 reversed?", "a1b2c3d4,d4c3b2a1 [ANSWER] 4321", "1, 2, 3, 4 backwards is 4, 3, 2, 1.\n[ANSWER] 4321"},
		{Reverse, []int{1230}, "What is 1230 reversed?", "a1b2c3d0,d0c3b2a1 [ANSWER] 0321", "1, 2, 3, 0 backwards is 0, 3, 2, 1.\n[ANSWER] 0321"},
	} {
		e := &Episode{task: test.task, numbers: test.numbers, options: Options{Short: true}}
		expect.Same(t, test.question, e.question(), "question")
		expect.Same(t, test.solution, e.Solution(), "solution of %v", test.numbers)
		shown := must.Get(e.Reset(t.Context()))(t)
		expect.True(t, shown.Text == e.short() && shown.Text != "" && shown.Messages == nil, "shown %+v", shown)
		e.options.Short = false
		got := e.Solution()
		expect.True(t, got == test.plain && (len(test.numbers) != 2 || test.numbers[0] != 12 || strings.HasSuffix(systemPrompt(test.task), got)), "in words: %q, want %q, also in the prompt", got, test.plain)
	}
}

// TestSlips: half of the demonstrations are wrong.
func TestSlips(t *testing.T) {
	for _, test := range []struct {
		name    string
		numbers []int
		want    string
	}{
		{Sum, []int{12, 345}, "a505b409c312d214e115 [ANSWER] 14"},
		{Reverse, []int{1230}, "a1b2c3d0,d0c3b2a1 [ANSWER] 1230"},
	} {
		expect.Same(t, test.want, (&Episode{task: test.name, numbers: test.numbers, slips: true, options: Options{Short: true}}).Solution(), "value")
		task := newTask(t, test.name, 1, func(o *Options) { o.Short, o.SlipShare = true, .5 })
		for part, most := range map[envs.Part]int{envs.Train: 560, envs.Warmup: 560, envs.Eval: 0} {
			wrong := 0
			for i := range 1000 {
				e := episode(t, task, part, i)
				step := must.Get(e.Step(t.Context(), envs.Action{Text: e.Solution(), Stop: envs.StopEnd}))(t)
				if !step.Info.Correct {
					wrong++
				}
			}
			expect.True(t, wrong <= most && (most <= 0 || wrong >= 400), "%s, %s: %d of 1,000 solutions are wrong", test.name, part, wrong)
		}
	}
}

func TestSolutionsAreCorrectAndUseTinyCharacters(t *testing.T) {
	for _, name := range []string{Sum, Reverse} {
		task := newTask(t, name, 1, func(o *Options) { o.Short, o.RequireTag = true, true })
		used := map[rune]bool{}
		for i := range 300 {
			e := episode(t, task, envs.Train, i)
			shown := must.Get(e.Reset(t.Context()))(t)
			text := e.Solution()
			for _, r := range shown.Text + text {
				used[r] = true
				expect.Require(t, r == '\n' || r >= ' ' && r <= '~', "the model tiny has no token %q", r)
			}
			step := must.Get(e.Step(t.Context(), envs.Action{Text: text, Stop: envs.StopEnd}))(t)
			expect.Require(t, step.Reward == 1 && step.Done && step.Info.FoundBy == string(answer.ByTag), "the solution %q of %v gets %+v", text, e.numbers, step)
		}
		expect.True(t, len(used) >= 20, "%s uses %d characters only", name, len(used))
	}
}

func TestStepVerifies(t *testing.T) {
	for _, test := range []struct {
		text       string
		requireTag bool
		reward     float64
		info       envs.Info
	}{
		{"[ANSWER] 28", true, 1, envs.Info{Correct: true, FormatOK: true, FoundBy: "tag", Answer: "28", Truth: "28", Kind: "3 numbers, short ones"}},
		{"The answer is 28", false, 1, envs.Info{Correct: true, FoundBy: "phrase", Answer: "28", Truth: "28", Kind: "3 numbers, short ones"}},
		{"The answer is 28", true, -1, envs.Info{Correct: true, FoundBy: "phrase", Answer: "28", Truth: "28", Kind: "3 numbers, short ones"}},
		{"[ANSWER] 27", false, -1, envs.Info{FormatOK: true, FoundBy: "tag", Answer: "27", Truth: "28", Kind: "3 numbers, short ones"}},
		{"[ANSWER] 028.0", true, 1, envs.Info{Correct: true, FormatOK: true, FoundBy: "tag", Answer: "028.0", Truth: "28", Kind: "3 numbers, short ones"}},
		{"", false, -1, envs.Info{FoundBy: "none", Truth: "28", Kind: "3 numbers, short ones"}},
	} {
		e := &Episode{task: Sum, numbers: []int{12, 345, 67}, options: Options{Count: 4, Max: 999, RequireTag: test.requireTag}}
		step := must.Get(e.Step(t.Context(), envs.Action{Text: test.text}))(t)
		expect.Equal(t, envs.Step{Keep: len(test.text), Reward: test.reward, Done: true, Info: &test.info}, step, test.text)
		expect.Fails(e.Step(t.Context(), envs.Action{}))(t, "a second answer is taken")
	}
}

func TestEpisodesAreAFunctionOfSeedPartAndIndex(t *testing.T) {
	task := newTask(t, Sum, 7, nil)
	for _, index := range []int{5, 0, 3, 5} {
		again := episode(t, newTask(t, Sum, 7, nil), envs.Train, index)
		expect.Equal(t, again.numbers, episode(t, task, envs.Train, index).numbers, fmt.Sprintf("episode %d", index))
	}
	expect.True(t, !cmp.Equal(episode(t, task, envs.Train, 1).numbers, episode(t, newTask(t, Sum, 8, nil), envs.Train, 1).numbers), "the seed changes nothing")
	for _, bad := range []struct {
		part  envs.Part
		index int
	}{{envs.Train, -1}, {"test", 0}} {
		expect.Fails(task.Episode(bad.part, bad.index))(t, "there is an episode %d of part %q", bad.index, bad.part)
	}
}

func TestDifficulty(t *testing.T) {
	for _, test := range []struct {
		name                string
		change              func(*Options)
		lengths             []int
		least, most, closer int
	}{
		{Sum, nil, []int{2, 3, 4}, 10, 999, 15},
		{Sum, func(o *Options) { o.Count, o.Max = 2, 99 }, []int{2}, 10, 99, 2},
		{Reverse, nil, []int{1}, 100000, 9999999, 200000},
		{Reverse, func(o *Options) { o.Max = 99 }, []int{1}, 10, 99, 4},
	} {
		for _, part := range []envs.Part{envs.Train, envs.Eval} {
			task := newTask(t, test.name, 3, test.change)
			lengths := map[int]bool{}
			least, most := 1<<60, 0
			for i := range 1000 {
				if n := task.Len(part); n > 0 && i >= n { // an endless part has none
					break
				}
				numbers := episode(t, task, part, i).numbers
				lengths[len(numbers)] = true
				least, most = min(least, slices.Min(numbers)), max(most, slices.Max(numbers))
			}
			what := fmt.Sprintf("%s %+v, %v", test.name, task.options, part)
			expect.Equal(t, test.lengths, slices.Sorted(maps.Keys(lengths)), what)
			expect.True(t, least >= test.least && least <= test.least+test.closer && most <= test.most && most >= test.most-test.closer,
				"%s: numbers from %d to %d, want close to %d and %d", what, least, most, test.least, test.most)
		}
	}
}

func TestShorterNumbersAreOftenTrainedOn(t *testing.T) {
	for _, test := range []struct {
		name        string
		long        int
		train, eval float64 // share of shorter numbers
	}{
		{Sum, 100, (90./990 + 1./2) / 2, 90. / 990},
		{Reverse, 1000000, 1. / 2, 900. / 9900},
	} {
		for part, want := range map[envs.Part]float64{envs.Train: test.train, envs.Eval: test.eval} {
			task := newTask(t, test.name, 3, nil)
			short, all := 0, 0
			for i := range 2000 {
				for _, n := range episode(t, task, part, i).numbers {
					all++
					if n < test.long {
						short++
					}
				}
			}
			got := float64(short) / float64(all)
			expect.True(t, got >= want-0.03 && got <= want+0.03, "%s: a share of %.3f of the numbers to %s are short, want %.3f", test.name, got, part, want)
		}
	}
}

func TestConversation(t *testing.T) {
	for _, name := range []string{Sum, Reverse} {
		e := episode(t, newTask(t, name, 1, nil), envs.Eval, 0)
		shown := must.Get(e.Reset(t.Context()))(t)
		expect.True(t, len(shown.Messages) == 2 && shown.Text == "" && shown.Messages[1].Content == e.question(), "%s shows %+v", name, shown)
		// The example in the instruction is correct and in the answer format.
		example := answer.Extract(shown.Messages[0].Content)
		want := map[string]int64{Sum: 15, Reverse: 4321}[name]
		expect.True(t, example.FoundBy == answer.ByTag && example.Value.Cmp(new(big.Rat).SetInt64(want)) == 0, "%s: the example's answer is %+v", name, example)
	}
}

func TestNewRefuses(t *testing.T) {
	for _, test := range []struct {
		name     string
		settings envs.Settings
		want     string
	}{
		{Sum, envs.Settings{"digits_count": "1"}, "digits_count: 1 is out of range"},
		{Sum, envs.Settings{"digits_max": "9"}, "digits_max: 9 is out of range"},
		{Sum, envs.Settings{"digits_count": "2", "digits_max": "10"}, "too few problems"},
		{Reverse, envs.Settings{"digits_count": "3"}, "digits_count: does not apply"},
	} {
		expect.Failure(envs.New(test.name, envs.Setup{Seed: 1}, test.settings))(t, test.want)
	}
	must.Get(envs.New(Sum, envs.Setup{Seed: 1, Text: true}, envs.Settings{"digits_count": "3", "digits_max": "99", "require_tag": "true"}))(t)
}

// TestHacks: what policies try in place of an answer is not taken for it, as it is and in the answer format. The verifier
// reads one number, so that "3 or 4" is one guess and gains nothing.
func TestHacks(t *testing.T) {
	for _, text := range hacks.Answers["4"] {
		for _, form := range []string{text, "[ANSWER] " + text, "The answer is " + text, text + " [ANSWER]"} {
			info := verify(answer.Extract(form), form, 4)
			info.CheckForm(answer.FinalForm)
			expect.True(t, !info.Correct || info.Answer == "4", "%q is taken for 4, found by %s as %q", form, info.FoundBy, info.Answer)
		}
	}
}

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
