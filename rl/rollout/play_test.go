package rollout

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/digits"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/torch"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// TestSamplesDoNotDependOnBatch plays the same episodes together and one by one, in few slots and many.
func TestSamplesDoNotDependOnBatch(t *testing.T) {
	p := tiny(t)
	for name, task := range map[string]envs.Task{"letters": letters, "dialogues": dialogues(3)} {
		together := played(t, sampler(t, p, 2), task, []int{4, 11, 5}, sampled).Groups
		m := sampler(t, p, 16)
		var alone []rl.Group
		for _, index := range []int{4, 11, 5} {
			alone = append(alone, played(t, m, task, []int{index}, sampled).Groups...)
		}
		expect.Equal(t, together, alone, name)
		for _, g := range together {
			for _, x := range g {
				expect.NoError(t, x.Validate(), "Validate")
			}
		}
		other := sampled
		other.Step++
		again := played(t, m, task, []int{4}, other).Groups
		expect.True(t, !cmp.Equal(again[0][0].Tokens, together[0][0].Tokens) || !cmp.Equal(again[0][1].Tokens, together[0][1].Tokens), "%s: another step plays the same", name)
	}
}

func TestTurnsOfAnEpisode(t *testing.T) {
	p := tiny(t)
	groups := played(t, sampler(t, p, 4), dialogues(3), []int{0}, sampled).Groups
	mark := must.Get(p.Tokenizer.EncodeRaw("<>", false))(t)
	for _, x := range groups[0] {
		expect.True(t, len(x.Turns) == 2 && x.Turns[0].Reward == 2 && x.Turns[1].Reward == 3 && x.Turns[1].End == len(x.Tokens), "turns %+v of %d tokens", x.Turns, len(x.Tokens))
		marks, run := 0, 0
		for i, source := range x.Source {
			if source == rl.Sampled {
				run++
				expect.True(t, run <= 2, "%d tokens stand of an action", run)
				// At temperature 1 the two come from the same distribution, summed in different orders.
				expect.True(t, x.BehaviorLogProbs[i] < 0 && math.Abs(float64(x.LogProbs[i]-x.BehaviorLogProbs[i])) <= 1e-5,
					"log-probabilities %v and %v", x.BehaviorLogProbs[i], x.LogProbs[i])
				continue
			}
			run = 0
			if i >= 2 && slices.Equal(x.Tokens[i:min(i+2, len(x.Tokens))], mark) {
				marks++
			}
		}
		expect.Same(t, 3, marks, "the environment wrote %d times", marks)
	}
}

// TestOutOfPositionsIsTruncation plays episodes until the context is full, in the middle or at the end of a turn.
// Earlier rewards stay, the current turn gets none, and the sample is truncated.
func TestOutOfPositionsIsTruncation(t *testing.T) {
	m := sampler(t, tiny(t), 1)
	long := strings.Repeat("x", 600)
	for name, test := range map[string]struct {
		step  envs.Step
		turns []float64
	}{
		"inside a turn": {envs.Step{Append: long, Continues: true, Reward: 5}, []float64{0}},
		"after a turn":  {envs.Step{Append: long, Reward: 5}, []float64{5, 5}},
	} {
		for _, whole := range []bool{false, true} {
			c := sampled
			c.Samples, c.MaxNew = 1, 900
			c.Sampling.TopK = 1 // it repeats itself and does not end soon
			steps := slices.Repeat([]envs.Step{test.step}, 9)
			x := played(t, m, script(scripted{steps: steps, whole: whole}), []int{0}, c).Groups[0][0]
			expect.NoError(t, x.Validate(), "%s", name)
			rewards, want := x.Rewards(), test.turns
			if whole && name == "after a turn" {
				want = want[:len(rewards)] // an action takes positions too
			}
			diff := cmp.Diff(want, rewards)
			expect.True(t, diff == "" && x.Stop == envs.StopLength && len(rewards) != 0, "%s: stop %q, rewards (-want +got):\n%s", name, x.Stop, diff)
			s := x.Sample(1)
			expect.True(t, s.Truncated && (s.Len() <= 0 || s.HasReward()), "%s: truncated %t, reward %v", name, s.Truncated, s.Reward())
		}
	}
}

// TestActionsOfATurnShareItsLimit has an environment that interrupts a turn five times, in both of two turns: the first action
// uses up the turn's tokens.
func TestActionsOfATurnShareItsLimit(t *testing.T) {
	m := sampler(t, tiny(t), 1)
	c := sampled
	c.Samples, c.MaxNew = 1, 4
	c.Sampling.TopK = 1 // it repeats itself and does not end soon
	turn := append(slices.Repeat([]envs.Step{{Append: ";", Continues: true}}, 5), envs.Step{Append: "!"})
	steps := slices.Concat(turn, turn)
	steps[len(steps)-1].Done = true
	x := played(t, m, script(scripted{steps: steps, whole: true}), []int{0}, c).Groups[0][0]
	var actions []int
	for i, source := range x.Source {
		switch {
		case source != rl.Sampled:
		case x.Source[i-1] == rl.Sampled:
			actions[len(actions)-1]++
		default:
			actions = append(actions, 1)
		}
	}
	expect.Equal(t, []int{4, 1, 1, 1, 1, 1, 4, 1, 1, 1, 1, 1}, actions, "tokens of the actions")
}

// TestDroppedActions has environments that drop an action and end, in the first or second turn.
func TestDroppedActions(t *testing.T) {
	m := sampler(t, tiny(t), 2)
	done := envs.Step{Done: true, Reward: 0.5}
	for name, test := range map[string]struct {
		steps []envs.Step
		want  []float64 // rewards of turns
	}{
		"first turn":           {[]envs.Step{done}, []float64{0.5}},
		"second turn":          {[]envs.Step{{Append: ";", Reward: 1}, done}, []float64{1.5}},
		"after half a turn":    {[]envs.Step{{Append: ";", Continues: true, Reward: 1}, done}, []float64{0.5}},
		"second, not judged":   {[]envs.Step{{Append: ";", Reward: 1}, {Done: true, Reward: math.NaN()}}, []float64{math.NaN()}},
		"done and continues":   {[]envs.Step{{Append: ";", Reward: 1}, {Append: ".", Done: true, Continues: true, Reward: 2}}, []float64{1, 2}},
		"with something added": {[]envs.Step{{Append: ";", Reward: 1}, {Append: ".", Done: true, Reward: 2}}, []float64{1, 2}},
	} {
		for _, x := range played(t, m, script(scripted{steps: test.steps}), []int{0}, sampled).Groups[0] {
			diff := cmp.Diff(test.want, x.Rewards(), cmpopts.EquateNaNs())
			expect.True(t, diff == "" && x.Validate() == nil, "%s: %v, rewards (-want +got):\n%s", name, x.Validate(), diff)
		}
	}
}

// sampledAs compares the samples' log-probabilities with the trainer's forward pass at a temperature.
func sampledAs(t *testing.T, p *policy.CausalLM, samples []*rl.Sample, temperature float64) {
	t.Helper()
	var logProbs []float32
	torchtest.Do(t, torch.NoGrad, func(s *torch.Scope) {
		logProbs = s.Read(p.Forward(s, rl.NewBatch(samples), policy.Pass{Temperature: temperature}).LogProbs)
	})
	for _, x := range samples {
		for i, drawn := range x.BehaviorLogProbs {
			expect.True(t, math.Abs(float64(drawn-logProbs[i])) <= 1e-4, "temperature %v: sampler's log π %v, trainer's %v", temperature, drawn, logProbs[i])
		}
		logProbs = logProbs[x.Len():]
	}
}

func TestStepsThatMeanNothing(t *testing.T) {
	m := sampler(t, tiny(t), 2)
	for want, step := range map[string]envs.Step{
		"would never end":               {},
		"keeps -1 bytes of an action":   {Keep: -1},
		"keeps 9999 bytes of an action": {Keep: 9999, Done: true},
		"the reward +Inf":               {Reward: math.Inf(1), Done: true},
	} {
		expect.Failure(Play(t.Context(), m, script(scripted{steps: []envs.Step{step}}), envs.Train, []int{6}, sampled))(t, want, "episode 6, sample 0")
	}
}

// TestTurnsEndedByStopStrings cancels turns in the engine at their stop string, which ends the text; late tokens must not reach the
// next turn.
func TestTurnsEndedByStopStrings(t *testing.T) {
	p := tiny(t)
	c := Config{Samples: 2, MaxNew: 12, Sampling: torch.Sampling{Temperature: 1}, Seed: 4}
	stopped := 0
	for _, x := range slices.Concat(played(t, sampler(t, p, 3), lines, []int{0, 1, 2, 3, 4, 5, 6}, c).Groups...) {
		expect.Same(t, 3, len(x.Turns), "%d turns", len(x.Turns))
		for turn := range x.Turns {
			text := turnText(t, p, x, turn)
			at := strings.IndexAny(text, "abcdefghijklmnopqrstuvwxyz")
			expect.True(t, at < 0 || at == len(text)-1, "turn %q goes on after its stop string", text)
			expect.True(t, turn < 2 || (x.Stop == envs.StopString) == (at >= 0), "turn %q stops by %q", text, x.Stop)
		}
		if x.Stop == envs.StopString {
			stopped++
		}
	}
	expect.True(t, stopped >= 7, "%d of 14 ended at a letter", stopped)
}

func TestEvaluateGreedily(t *testing.T) {
	task := must.Get(digits.New(digits.Sum, 1, digits.Options{Count: 2, Max: 99, Short: true}))(t)
	m := sampler(t, tiny(t), 4)
	evaluate := func(c Config, from, n int) rl.AnswerScores {
		t.Helper()
		return must.Get(Evaluate(t.Context(), m, task, from, n, c))(t)
	}
	first := evaluate(sampled.Greedy(), 0, 5)
	other := sampled.Greedy()
	other.Seed = 77
	diff := cmp.Diff(first, evaluate(other, 0, 5))
	expect.True(t, diff == "" && first.N == 5, "%d episodes; seeds differ (-one +other):\n%s", first.N, diff)
	g := (Config{Sampling: torch.Sampling{Temperature: 2, TopK: 3, TopP: 0.5, MinP: 0.1, RepetitionPenalty: 1.5}}).Greedy()
	expect.True(t, g.Sampling == (torch.Sampling{RepetitionPenalty: 1.5}), "greedy is %+v", g.Sampling)
}

// short has ten held-out episodes, each with the parity of its index.
type short struct {
	envs.Task
	rewarded bool
}

func (s short) MeanReward() bool { return s.rewarded }

func (short) Len(part envs.Part) int {
	if part == envs.Eval {
		return 10
	}
	return 0
}

func (short) Episode(part envs.Part, index int) (envs.Env, error) {
	if part != envs.Eval || index >= 10 {
		return nil, errors.New("no such episode")
	}
	return &scripted{whole: true, steps: []envs.Step{{Done: true, Info: &envs.Info{Correct: index%2 == 0, FoundBy: "tag"}}}}, nil
}

// TestEvaluateFiniteParts evaluates a finite part from the requested episode to its end.
func TestEvaluateFiniteParts(t *testing.T) {
	m := sampler(t, tiny(t), 4)
	for _, test := range []struct{ from, n, count, correct int }{{0, 4, 4, 2}, {1, 4, 4, 2}, {1, 3, 3, 1}, {8, 100, 2, 1}, {10, 5, 0, 0}, {99, 5, 0, 0}} {
		scores, err := Evaluate(t.Context(), m, short{rewarded: test.count > 0}, test.from, test.n, sampled)
		expect.True(t, err == nil && scores.N == test.count && scores.Correct == test.correct, "%+v: %d of %d, %v", test, scores.Correct, scores.N, err)
		expect.True(t, test.count == 0 || scores.Accepted != nil && *scores.Accepted == 0, "%+v: the reward, 0 each time, accepts %v", test, scores.Accepted)
	}
}

// TestPlayStops while it starts episodes: many take long.
func TestPlayStops(t *testing.T) {
	m := sampler(t, tiny(t), 2)
	ctx, cancel := context.WithCancel(t.Context())
	begun := 0
	_, err := Play(ctx, m, counted{letters, &begun, cancel}, envs.Train, make([]int, 100), sampled)
	expect.True(t, errors.Is(err, context.Canceled) && begun == 3, "%d episodes begun, error %v", begun, err)
}

// counted cancels the context when its third episode starts.
type counted struct {
	envs.Task
	begun *int
	stop  func()
}

func (c counted) Episode(part envs.Part, index int) (envs.Env, error) {
	if *c.begun++; *c.begun == 3 {
		c.stop()
	}
	return c.Task.Episode(part, index)
}

// TestEpisodesOfTheLongestLength go on; one token more cuts them off.
func TestEpisodesOfTheLongestLength(t *testing.T) {
	fits, long := &episode{}, &episode{}
	fits.AppendGiven(1, 2, 3)
	long.AppendGiven(1, 2, 3, 4)
	left := unfinished([]*episode{fits, long}, 3)
	expect.True(t, len(left) == 1 && left[0] == fits && long.Stop == envs.StopLength, "%d go on, the longer one stops by %q", len(left), long.Stop)
}

// places is a task of which few episodes run at the same time. Each of an episode's samples shows another text if varied.
type places struct {
	envs.Task
	free   *atomic.Int64
	varied bool
	waits  bool // episodes begin together
	shown  *atomic.Int64
}

func (places) Replies() []string { return nil }
func (p places) Waits() bool     { return p.waits }

func (p places) Episode(part envs.Part, index int) (envs.Env, error) {
	e, err := p.Task.Episode(part, index)
	return &placed{Env: e, places: p}, err
}

type placed struct {
	envs.Env
	places
	held bool
}

func (p *placed) Reset(ctx context.Context) (envs.Observation, error) {
	if p.free.Add(-1) < 0 {
		p.free.Add(1)
		return envs.Observation{}, envs.ErrFull
	}
	p.held = true
	o, err := p.Env.Reset(ctx)
	if p.varied {
		o.Text = fmt.Sprintf("%s %d", o.Text, p.shown.Add(1))
	}
	return o, err
}

func (p *placed) Close() error {
	if p.held {
		p.free.Add(1)
	}
	p.held = false
	return nil
}

// TestPlaces: an environment with few places plays all episodes, some after others. If whole groups fit, the samples are those of
// an environment with many places.
func TestPlaces(t *testing.T) {
	p, indices := tiny(t), []int{4, 11, 5}
	m := sampler(t, p, 4)
	want := played(t, m, dialogues(3), indices, sampled).Groups
	for _, c := range []struct {
		places        int64
		varied, waits bool
	}{
		{1, false, false}, {2, false, false}, {3, false, false}, {4, false, false}, {6, false, false}, {9, false, false}, {100, true, false}, {2, true, false},
		{1, false, true}, {2, false, true}, {3, false, true}, {4, false, true}, {6, false, true}, {9, false, true}, {2, true, true},
	} {
		task := places{Task: dialogues(3), free: &atomic.Int64{}, varied: c.varied, waits: c.waits, shown: &atomic.Int64{}}
		task.free.Store(c.places)
		groups := played(t, m, task, indices, sampled).Groups
		expect.Same(t, c.places, task.free.Load(), "free places at the end")
		if c.places%3 == 0 {
			expect.Equal(t, want, groups)
		}
		var samples []*rl.Sample
		texts := map[string]bool{}
		for i, g := range groups {
			expect.Same(t, sampled.Samples, len(g), "samples")
			for sample, x := range g {
				expect.True(t, x.Prompt == indices[i] && x.Index == sample && len(x.Turns) == 2 && x.Validate() == nil, "%+v", x)
				texts[fmt.Sprint(x.Tokens[:12])] = true
				samples = append(samples, x.Sample(1))
			}
		}
		sampledAs(t, p, samples, 1)
		expect.True(t, len(texts) > 3, "%d places: the samples are alike", c.places)
	}
}

// together is a task whose episodes begin once n of them do.
type together struct {
	places
	all *sync.WaitGroup
}

func (g together) Episode(part envs.Part, index int) (envs.Env, error) {
	e, err := g.Task.Episode(part, index)
	return &meeting{Env: e, all: g.all}, err
}

type meeting struct {
	envs.Env
	all *sync.WaitGroup
}

func (m *meeting) Reset(ctx context.Context) (envs.Observation, error) {
	m.all.Done()
	m.all.Wait()
	return m.Env.Reset(ctx)
}

// TestBeginTogether: the episodes of programs and servers do not wait for the start of others.
func TestBeginTogether(t *testing.T) {
	m := sampler(t, tiny(t), 4)
	task := together{places{Task: dialogues(3), waits: true}, &sync.WaitGroup{}}
	task.all.Add(9)
	c := sampled
	c.Timeout = 5 * time.Second
	expect.Equal(t, played(t, m, dialogues(3), []int{4, 11, 5}, c).Groups, played(t, m, task, []int{4, 11, 5}, c).Groups)
}

// TestNoPlace: asynchronous rollouts need a place for each episode.
func TestNoPlace(t *testing.T) {
	task := places{Task: dialogues(3), free: &atomic.Int64{}}
	task.free.Store(2)
	c := tokensConfig()
	c.Async, c.MaxStaleness = true, 1
	expect.Failure(tokens(t, sampler(t, tiny(t), 4), task, c).Next(t.Context(), rl.At{}))(t, "asynchronous rollouts", "after 2 of")
	task.free.Store(0)
	expect.Failure(Play(t.Context(), sampler(t, tiny(t), 4), task, envs.Train, []int{0}, sampled))(t, "no more episodes can run")
}
