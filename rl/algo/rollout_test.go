package algo

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"rltrain/envs"
	"rltrain/envs/digits"
	"rltrain/rl"
	"rltrain/torch"
)

var sampled = RolloutConfig{Samples: 3, MaxNew: 4, Sampling: torch.Sampling{Temperature: 1}, Seed: 9, Step: 2}

func sampler(t *testing.T, p *TokenPolicy, slots int) *Sampler {
	t.Helper()
	m, err := p.NewSampler(slots)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// TestSamplesDependOnThemselvesAlone plays the same episodes together and alone, in few slots and many.
func TestSamplesDependOnThemselvesAlone(t *testing.T) {
	p := tiny(t, 0)
	for _, task := range []envs.Task{letters{}, dialogues{turns: 3}} {
		together, err := sampler(t, p, 2).Rollout(t.Context(), task, envs.Train, []int{4, 11, 5}, sampled)
		if err != nil {
			t.Fatal(err)
		}
		m := sampler(t, p, 16)
		var alone []rl.Group
		for _, index := range []int{4, 11, 5} {
			groups, err := m.Rollout(t.Context(), task, envs.Train, []int{index}, sampled)
			if err != nil {
				t.Fatal(err)
			}
			alone = append(alone, groups...)
		}
		if diff := cmp.Diff(together, alone); diff != "" {
			t.Errorf("%T: (-together +alone):\n%s", task, diff)
		}
		for _, g := range together {
			for _, x := range g {
				if err := x.Validate(); err != nil {
					t.Error(err)
				}
			}
		}
		other := sampled
		other.Step++
		again, err := m.Rollout(t.Context(), task, envs.Train, []int{4}, other)
		if err != nil {
			t.Fatal(err)
		}
		if cmp.Equal(again[0][0].Tokens, together[0][0].Tokens) && cmp.Equal(again[0][1].Tokens, together[0][1].Tokens) {
			t.Errorf("%T: another step plays the same", task)
		}
	}
}

// dialogues keep two bytes of each action and answer with a mark; the first of two actions is half a turn.
type dialogues struct{ turns int }

func (dialogues) Len(envs.Part) int { return 0 }
func (d dialogues) Episode(envs.Part, int) (envs.Env, error) {
	return &dialogue{turns: d.turns}, nil
}

type dialogue struct {
	turns, step int
	heard       []string
}

func (d *dialogue) Reset(context.Context) (envs.Observation, error) {
	return envs.Observation{Text: "go"}, nil
}

func (d *dialogue) Step(_ context.Context, a envs.Action) (envs.Step, error) {
	d.step++
	d.heard = append(d.heard, a.Text)
	return envs.Step{
		Keep: min(2, len(a.Text)), Append: "<>", Continues: d.step%2 == 1 && d.step < d.turns, Reward: float64(d.step), Done: d.step == d.turns,
	}, nil
}

func TestTurnsOfAnEpisode(t *testing.T) {
	p := tiny(t, 0)
	groups, err := sampler(t, p, 4).Rollout(t.Context(), dialogues{turns: 3}, envs.Train, []int{0}, sampled)
	if err != nil {
		t.Fatal(err)
	}
	mark, err := p.Tokenizer.EncodeRaw("<>", false)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range groups[0] {
		if len(x.Turns) != 2 || x.Turns[0].Reward != 2 || x.Turns[1].Reward != 3 || x.Turns[1].End != len(x.Tokens) {
			t.Errorf("turns %+v of %d tokens", x.Turns, len(x.Tokens))
		}
		marks, run := 0, 0
		for i, source := range x.Source {
			if source == rl.Sampled {
				if run++; run > 2 {
					t.Errorf("%d tokens stand of an action", run)
				}
				if x.LogProb[i] >= 0 || x.Raw[i] != x.LogProb[i] {
					t.Errorf("log-probabilities %v and %v", x.LogProb[i], x.Raw[i])
				}
				continue
			}
			run = 0
			if i >= 2 && slices.Equal(x.Tokens[i:min(i+2, len(x.Tokens))], mark) {
				marks++
			}
		}
		if marks != 3 {
			t.Errorf("the environment wrote %d times", marks)
		}
	}
}

// TestEpisodePastThePositionsIsGivenUp lets a dialogue run until there is no room for an action.
func TestEpisodePastThePositionsIsGivenUp(t *testing.T) {
	p := tiny(t, 0)
	c := sampled
	c.Samples, c.MaxNew = 1, 900
	groups, err := sampler(t, p, 1).Rollout(t.Context(), longTask{}, envs.Train, []int{0}, c)
	if err != nil {
		t.Fatal(err)
	}
	x := groups[0][0]
	if x.Stop != envs.StopCancelled || !math.IsNaN(x.Reward()) || x.Validate() != nil {
		t.Errorf("stop %q, reward %v, %v", x.Stop, x.Reward(), x.Validate())
	}
}

// longTask appends to a turn without end.
type longTask struct{}

func (longTask) Len(envs.Part) int                        { return 0 }
func (longTask) Episode(envs.Part, int) (envs.Env, error) { return longTask{}, nil }
func (longTask) Reset(context.Context) (envs.Observation, error) {
	return envs.Observation{Text: "go"}, nil
}

func (longTask) Step(context.Context, envs.Action) (envs.Step, error) {
	return envs.Step{Keep: 0, Append: strings.Repeat("x", 1500), Continues: true}, nil
}

// stopTask ends an action at most characters and remembers what it was told.
type stopTask struct{ heard *[]envs.Action }

func (stopTask) Len(envs.Part) int                          { return 0 }
func (s stopTask) Episode(envs.Part, int) (envs.Env, error) { return s, nil }
func (stopTask) Reset(context.Context) (envs.Observation, error) {
	stop := []string{"nope"}
	for c := ' '; c < 'p'; c++ {
		stop = append(stop, string(c))
	}
	return envs.Observation{Text: "go", Stop: stop}, nil
}

func (s stopTask) Step(_ context.Context, a envs.Action) (envs.Step, error) {
	*s.heard = append(*s.heard, a)
	return envs.Step{Keep: len(a.Text), Reward: math.NaN(), Done: true}, nil
}

func TestStopStringsEndActions(t *testing.T) {
	p := tiny(t, 0)
	var heard []envs.Action
	c := sampled
	c.Samples = 20
	groups, err := sampler(t, p, 8).Rollout(t.Context(), stopTask{&heard}, envs.Train, []int{0}, c)
	if err != nil {
		t.Fatal(err)
	}
	stopped := 0
	for i, a := range heard {
		if a.Stop != envs.StopString {
			continue
		}
		stopped++
		if last := a.Text[len(a.Text)-1]; last < ' ' || last >= 'p' {
			t.Errorf("action %q ended at a stop string", a.Text)
		}
		if x := groups[0][i]; x.Stop != envs.StopString || x.Length() < len(a.Text) || !math.IsNaN(x.Reward()) {
			t.Errorf("action %q: stop %q, %d tokens, reward %v", a.Text, x.Stop, x.Length(), x.Reward())
		}
	}
	if stopped < 10 {
		t.Errorf("%d of %d actions ended at a stop string", stopped, len(heard))
	}
}

func TestEvaluateTaskIsGreedy(t *testing.T) {
	p := tiny(t, 0)
	task, err := digits.New(digits.Sum, 1, digits.Options{Count: 2, Max: 99, Short: true})
	if err != nil {
		t.Fatal(err)
	}
	m := sampler(t, p, 4)
	first, err := p.EvaluateTask(t.Context(), m, task, 0, 5, sampled)
	if err != nil {
		t.Fatal(err)
	}
	other := sampled
	other.Seed = 77
	second, err := p.EvaluateTask(t.Context(), m, task, 0, 5, other)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, second); diff != "" || first.N != 5 {
		t.Errorf("%d episodes; seeds differ (-one +other):\n%s", first.N, diff)
	}
}

func TestRolloutStops(t *testing.T) {
	p := tiny(t, 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := sampler(t, p, 2).Rollout(ctx, letters{}, envs.Train, []int{0}, sampled); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestObservationsBecomeTokens(t *testing.T) {
	dir := t.TempDir() + "/tiny"
	if err := TinyModel(dir, 1, 32, 3); err != nil {
		t.Fatal(err)
	}
	load := func() *TokenPolicy {
		p, err := NewTokenPolicy(TokenPolicyConfig{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		return p
	}
	user, opened := envs.Message{Role: envs.RoleUser, Content: "two"}, envs.Message{Role: envs.RoleAssistant, Content: "so: "}
	if _, err := load().observe(envs.Observation{Messages: []envs.Message{user}}); err == nil || !strings.Contains(err.Error(), "chat template") {
		t.Errorf("error %v", err)
	}
	const template = "{% for m in messages %}{{ m.role }}:{{ m.content }} {% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
	if err := os.WriteFile(dir+"/chat_template.jinja", []byte(template), 0o644); err != nil {
		t.Fatal(err)
	}
	p := load()
	for _, test := range []struct {
		shown envs.Observation
		want  string
	}{
		{envs.Observation{Text: "as it is"}, "as it is"},
		{envs.Observation{Messages: []envs.Message{user}}, "user:two assistant:"},
		{envs.Observation{Messages: []envs.Message{user, opened}}, "user:two assistant:so: "},
	} {
		ids, err := p.observe(test.shown)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := p.Tokenizer.Decode(ids, false); err != nil || got != test.want {
			t.Errorf("%q, %v; want %q", got, err, test.want)
		}
	}
}

// lines has episodes of several turns that end at stop strings.
type lines struct{ letters }

func (lines) Episode(part envs.Part, index int) (envs.Env, error) {
	return &lineEpisode{spellingEpisode{shown: fmt.Sprintf("%s %d:", part, index)}}, nil
}

type lineEpisode struct{ spellingEpisode }

func (e *lineEpisode) Reset(context.Context) (envs.Observation, error) {
	return envs.Observation{Text: e.shown, Stop: strings.Split("abcdefghijklmnopqrstuvwxyz", "")}, nil
}

// TestTurnsEndedByStopStrings plays turns that are cancelled in the engine when their stop string is there: what
// the engine says of them later is not for the next turn.
func TestTurnsEndedByStopStrings(t *testing.T) {
	p := tiny(t, 0)
	sampler, err := p.NewSampler(3)
	if err != nil {
		t.Fatal(err)
	}
	defer sampler.Close()
	c := RolloutConfig{Samples: 2, MaxNew: 12, Sampling: torch.Sampling{Temperature: 1}, Seed: 4}
	groups, err := sampler.Rollout(t.Context(), lines{}, envs.Train, []int{0, 1, 2, 3, 4, 5, 6}, c)
	if err != nil {
		t.Fatal(err)
	}
	stopped := 0
	for _, g := range groups {
		for _, x := range g {
			if len(x.Turns) != 3 {
				t.Errorf("%d turns", len(x.Turns))
			}
			if x.Stop == envs.StopString {
				stopped++
			}
		}
	}
	if stopped < 7 {
		t.Errorf("%d of 14 ended at a letter", stopped)
	}
}
