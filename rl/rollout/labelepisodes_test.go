package rollout

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
)

// counting pays its turn for each classification; an episode has 2 of them, of odd numbers 3.
type counting struct{ fails, silent, endless, messages bool }

func (counting) Len(envs.Part) int { return 0 }
func (c counting) Episode(_ envs.Part, index int) (envs.Env, error) {
	return &countingEpisode{counting: c, index: index}, nil
}

type countingEpisode struct {
	counting
	index, turn int
}

func (e *countingEpisode) Reset(context.Context) (envs.Observation, error) {
	if e.messages {
		return envs.Observation{Messages: []envs.Message{{Role: envs.RoleUser, Content: "?"}}}, nil
	}
	return envs.Observation{Text: "the"}, nil
}

func (e *countingEpisode) Step(context.Context, envs.Action) (envs.Step, error) {
	e.turn++
	step := envs.Step{Reward: float64(e.turn), Append: fmt.Sprint("law ", strings.Repeat("a ", e.turn)), Done: e.turn == 2+e.index%2 && !e.endless}
	if e.fails && e.index == 1 {
		step.Reward = math.NaN()
	}
	if e.silent {
		step.Append = ""
	}
	return step, nil
}

func countingSource(t *testing.T, task counting, c LabelEpisodesConfig) *LabelEpisodes {
	t.Helper()
	p := classifier(t)
	encode := func(text string) ([]int32, error) { return []int32{1, int32(len(text))}, nil }
	c.Episodes, c.Seed = 2, 3
	src, err := NewLabelEpisodes(p, p.Labels, encode, task, c)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

func TestEpisodesOfLabels(t *testing.T) {
	type played struct {
		Prompt, Index, Episode int
		Reward                 float64
	}
	of := func(step *rl.Step) (all []played) {
		for _, x := range step.Samples {
			all = append(all, played{x.Prompt, x.Index, x.Episode, x.Reward()})
		}
		return all
	}
	ctx := t.Context()
	values := countingSource(t, counting{}, LabelEpisodesConfig{Samples: 2, Values: true})
	step, err := values.Next(ctx, rl.At{})
	if err != nil {
		t.Fatal(err)
	}
	want := []played{{0, 0, 0, 1}, {0, 0, 0, 2}, {0, 1, 1, 1}, {0, 1, 1, 2}, {1, 0, 2, 1}, {1, 0, 2, 2}, {1, 0, 2, 3}, {1, 1, 3, 1}, {1, 1, 3, 2}, {1, 1, 3, 3}}
	if diff := cmp.Diff(want, of(step)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := step.Figures.Get("reward"); got != 4.5 || step.Figures.Get("episode_length") != 2.5 || len(step.Groups) != 5 {
		t.Errorf("reward %v, %v long, %d groups", got, step.Figures.Get("episode_length"), len(step.Groups))
	}
	state, _ := json.Marshal(values.State())
	if string(state) != "2" {
		t.Errorf("state %s: the next episode is the third", state)
	}
	returns := countingSource(t, counting{fails: true}, LabelEpisodesConfig{})
	if step, err = returns.Next(ctx, rl.At{}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]played{{0, 0, 0, 3}, {0, 0, 0, 2}}, of(step)); diff != "" || len(step.Notes) != 1 {
		t.Errorf("returns to go, without the episode that failed (-want +got):\n%s%v", diff, step.Notes)
	}
	for want, task := range map[string]counting{
		"shows no text to classify": {silent: true}, "goes on after 5 classifications": {endless: true}, "shows messages": {messages: true},
	} {
		if _, err := countingSource(t, task, LabelEpisodesConfig{MaxTurns: 5}).Next(ctx, rl.At{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

func TestLabelReplay(t *testing.T) {
	o := LabelReplayOptions{Capacity: 20, Updates: 3, EpsilonStart: 0.9, EpsilonEnd: 0.1, EpsilonDecay: 0.5, Gamma: 0.5, NSteps: 2}
	src, err := NewLabelReplay(countingSource(t, counting{}, LabelEpisodesConfig{Epsilon: true}), LabelReplayConfig{LabelReplayOptions: o, BatchSize: 4, Steps: 8, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	for at, epsilon := range []float64{0.9, 0.7, 0.5, 0.3, 0.1, 0.1} {
		step, err := src.Next(t.Context(), rl.At{Step: at, Version: uint64(at)})
		if err != nil {
			t.Fatal(err)
		}
		if got := step.Figures.Get("epsilon"); math.Abs(got-epsilon) > 1e-12 || len(step.Samples) != 12 || step.Figures.Get("buffer/size") != float64(min(20, 5*(at+1))) {
			t.Errorf("step %d: epsilon %v, %d samples, a buffer of %v", at, got, len(step.Samples), step.Figures.Get("buffer/size"))
		}
		for _, x := range step.Samples {
			if r := x.Reward(); x.Next != nil && (r != 2 || x.Discount != 0.25) || x.Next == nil && r != 2 && r != 3 && r != 3.5 {
				t.Errorf("step %d: %+v", at, x)
			}
		}
	}
	for _, change := range []func(o *LabelReplayOptions){
		func(o *LabelReplayOptions) { o.EpsilonEnd = 0.95 }, func(o *LabelReplayOptions) { o.NSteps = 0 },
		func(o *LabelReplayOptions) { o.EpsilonDecay = 0 }, func(o *LabelReplayOptions) { o.Gamma = 1.1 },
	} {
		bad := o
		change(&bad)
		if _, err := NewLabelReplay(src.player, LabelReplayConfig{LabelReplayOptions: bad, BatchSize: 4, Steps: 8}); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}

func TestExplore(t *testing.T) {
	count := map[int]int{}
	for i := range 4000 {
		count[explore([]float32{0.2, 0.5, 0.3}, rl.Stream(1, uint64(i)), 0.3)]++
	}
	for k, want := range []float64{0.1, 0.8, 0.1} {
		if got := float64(count[k]) / 4000; math.Abs(got-want) > 0.025 {
			t.Errorf("label %d in %.3f of the draws, want %.2f", k, got, want)
		}
	}
}
