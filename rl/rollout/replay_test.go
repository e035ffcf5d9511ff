package rollout

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/reward"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/dist"
	"github.com/rltrain/rltrain/rl/policy"
)

func replayOptions() ReplayOptions {
	return ReplayOptions{PromptsPerStep: 8, NumUpdateSteps: 32, BatchSize: 8, BufferSize: 48, Temperature: 1, Gamma: 0.5}
}

func replayConfig() ReplayConfig {
	return ReplayConfig{ReplayOptions: replayOptions(), MaxNew: 2, Seed: 1}
}

func replay(t *testing.T, m *policy.Sampler, task envs.Task, c ReplayConfig) *Replay {
	t.Helper()
	return must.Get(NewReplay(m, task, c))(t)
}

// TestReplayGivesTurnsWithTheirReturns compares sampled turns with those played.
func TestReplayGivesTurnsWithTheirReturns(t *testing.T) {
	p := tiny(t)
	m := sampler(t, p, 8)
	c := replayConfig()
	src := replay(t, m, spelling, c)
	versions := map[uint64]bool{}
	var before []int
	for i := range 4 {
		step := next(t, src, i)
		learn(t, p, i)
		f := step.Figures
		expect.True(t, f.Get("buffer/size") == float64(min(48, 24*(i+1))) && src.Len() == min(48, 24*(i+1)) && f.Get("buffer/added") == 24 && f.Get("buffer/skipped") == 0 && f.Get("episode_length") == 3, "step %d: %v", i+1, f)
		if want := min(32, src.Len()); len(step.Samples) != want || len(step.Groups) != 0 || step.Prefetched {
			t.Errorf("step %d: %d samples, want %d", i+1, len(step.Samples), want)
		}
		oldest, age := uint64(i), 0.0
		var drawn []int // capacity of the buffer
		for _, x := range step.Samples {
			oldest = min(oldest, x.Version)
			age += float64(uint64(i)-x.Version) / float64(len(step.Samples))
			versions[x.Version] = true
			expect.Same(t, x.Version, uint64(x.Prompt/8), "step %d: episode %d is of version %d", i+1, x.Prompt, x.Version)
			held, place := false, 0
			for _, e := range src.buffer.State().Entries {
				for k, turn := range e.Turns {
					same := e.Trajectory.TurnSample(turn, 1)
					if e.Trajectory.Prompt == x.Prompt && e.Trajectory.Version == x.Version && cmp.Equal(same.Tokens, x.Tokens) && cmp.Equal(same.Rows, x.Rows) {
						rewards := e.Trajectory.Rewards()[turn:]
						want := 0.0
						for n, r := range rewards {
							want += math.Pow(0.5, float64(n)) * r
						}
						held = held || e.Returns[k] == want && x.Reward() == want && x.Rewards[x.Len()-1] == want && cmp.Equal(same.BehaviorLogProbs, x.BehaviorLogProbs)
						drawn = append(drawn, place)
					}
					place++
				}
			}
			expect.True(t, held, "step %d: sample %+v is of no turn in the buffer", i+1, x)
		}
		expect.True(t, !cmp.Equal(before, drawn), "step %d samples the same entries as the step before", i+1)
		before = drawn
		expect.True(t, oldest+2 >= uint64(i) && math.Abs(f.Get("buffer/staleness")-age) <= 1e-9,
			"step %d: the oldest sample is of version %d, mean age %v, want %v", i+1, oldest, f.Get("buffer/staleness"), age)
		expect.True(t, strings.Contains(step.Line(f), "buffer="), "line %q", step.Line(f))
	}
	expect.Same(t, 4, len(versions), "samples of the versions %v only", versions)
}

// TestReplaySkips unscored turns and all turns before them in the episode, and turns without sampled tokens.
// Episodes that are too long are counted.
func TestReplaySkips(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	for name, test := range map[string]struct {
		task                           envs.Task
		added, skipped, failed, reward float64
	}{
		"a failed reward":       {script(scripted{whole: true, steps: []envs.Step{{Append: ";", Reward: 1}, {Append: ";", Reward: math.NaN()}, {Done: true, Reward: 4}}}), 8, 16, 0, 0},
		"a turn without tokens": {script(scripted{steps: []envs.Step{{Append: ";", Reward: 1}, {Append: ";", Done: true, Reward: 4}}}), 0, 16, 0, 5},
		"a prompt too long":     {wordy(func(index int) bool { return index == 3 }), 7, 0, 1, math.NaN()},
	} {
		c := replayConfig()
		c.NumUpdateSteps = 200
		step := next(t, replay(t, m, test.task, c), 0)
		f := step.Figures
		expect.True(t, f.Get("buffer/added") == test.added && f.Get("buffer/skipped") == test.skipped && f.Get("failed_episodes") == test.failed && len(step.Samples) == int(test.added), "%s: %d samples, %v", name, len(step.Samples), f)
		expect.True(t, math.IsNaN(test.reward) || f.Get("reward") == test.reward, "%s: reward %v", name, f.Get("reward"))
		expect.Same(t, test.failed > 0, len(step.Notes) > 0, "%s: notes %q", name, step.Notes)
		// There are no groups whose equal rewards an alarm could be about.
		expect.Same(t, 0, step.Health.ZeroStd, "%s: the alarms receive equal rewards of %v of the prompts", name, step.Health.ZeroStd)
		for _, x := range step.Samples {
			expect.True(t, x.HasReward() && x.Len() != 0, "%s: sample %+v", name, x)
		}
	}
	all := replay(t, m, wordy(func(int) bool { return true }), replayConfig())
	expect.Failure(all.Next(t.Context(), rl.At{}))(t, "no prompt of step 1 fits the model")
}

// TestReplayBuffer starts a source with another one's file.
func TestReplayBuffer(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	dir := t.TempDir()
	path := filepath.Join(dir, "buffer.jsonl")
	c := replayConfig()
	c.Save = path
	first := replay(t, m, spelling, c)
	next(t, first, 0)
	next(t, first, 1)
	before := must.Get(os.ReadFile(path))(t)
	c.Load, c.Save, c.BufferSize = path, "", 1000
	second := replay(t, m, spelling, c)
	expect.Same(t, 48, second.Len(), "the buffer starts with %d turns", second.Len())
	step := next(t, second, 0)
	expect.True(t, step.Figures.Get("buffer/size") == 48+24, "%v turns", step.Figures.Get("buffer/size"))
	after, err := os.ReadFile(path)
	expect.True(t, err == nil && string(before) == string(after), "the file that the buffer was read from has changed, %v", err)
}

func TestReplayRefusesForeignBuffers(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	dir := t.TempDir()
	write := func(name string, tokens []int32, given int) string {
		t.Helper()
		buffer := must.Get(rl.NewReplay(10))(t)
		x := &rl.Trajectory{}
		x.AppendGiven(tokens[:given]...)
		for _, token := range tokens[given:] {
			x.AppendSampled(token, -1, -1)
		}
		x.EndTurn(1)
		buffer.Add(x, []float64{1})
		path := filepath.Join(dir, name)
		must.Do(t, buffer.Save(path))
		return path
	}
	pickle := filepath.Join(dir, "buffer.pkl")
	must.Do(t, os.WriteFile(pickle, []byte("\x80\x04]\x94."), 0o600))
	for path, want := range map[string]string{
		write("foreign", []int32{5, 100_000}, 1):          "token 100000 is not",
		write("negative", []int32{-1, 5}, 1):              "token -1 is not",
		write("long", slices.Repeat([]int32{5}, 2049), 1): "2049 tokens",
		write("silent", []int32{5, 6}, 2):                 "a turn has no sampled token",
		pickle:                                            "Python pickle",
		filepath.Join(dir, "is not here"):                 "no such file",
	} {
		c := replayConfig()
		c.Load = path
		expect.Failure(NewReplay(m, spelling, c))(t, want, path)
	}
}

// TestSources makes each source from its options. A buffer that is loaded is saved to a file next to its own.
func TestSources(t *testing.T) {
	m := sampler(t, tiny(t), 8)
	path := filepath.Join(t.TempDir(), "buffer.jsonl")
	must.Do(t, must.Get(rl.NewReplay(10))(t).Save(path))
	r := tokensConfig()
	r.MaxThinking, r.Rewards, r.Now = 2, must.Get(reward.ParseText("expr:'1'", nil, reward.Options{}))(t), time.Now
	kinds := map[string]SourceDefinition{}
	for _, d := range Sources() {
		kinds[d.Name] = d
	}
	for _, test := range []struct {
		load, cache  bool
		loaded, save string
	}{{false, false, "", ""}, {true, false, path, ""}, {false, true, "", path}, {true, true, path, strings.TrimSuffix(path, ".jsonl") + "_updated.jsonl"}} {
		o := kinds[Buffer].Options().(*ReplayOptions)
		*o = replayOptions()
		o.BufferCache, o.LoadBuffer, o.CacheBuffer = path, test.load, test.cache
		got := must.Get(kinds[Buffer].New(Setup{Options: o, Sampler: m, Task: spelling, Rollout: r}))(t).(*Replay)
		expect.True(t, got.config.Now != nil && got.config.Rewards == r.Rewards && got.player.config.Rewards == r.Rewards, "without the rewards or the clock")
		got.config.Now, got.config.Rewards = nil, nil
		expect.Equal(t, ReplayConfig{ReplayOptions: *o, MaxNew: 3, MaxThinking: 2, Seed: 1, Load: test.loaded, Save: test.save}, got.config, cmpopts.IgnoreTypes(&dist.Group{}))
	}
	plain := must.Get(kinds[Rollouts].New(Setup{Sampler: m, Task: spelling, Rollout: r}))(t).(*Tokens)
	expect.Same(t, r.MaxThinking, plain.config.MaxThinking, "the limit of thinking")
	for name, change := range map[string]func(*SourceDefinition){
		"taken": func(d *SourceDefinition) { d.Name = Buffer }, "no name": func(d *SourceDefinition) { d.Name = "" }, "no help": func(d *SourceDefinition) { d.Help = "" },
		"no New": func(d *SourceDefinition) { d.New = nil }, "no options": func(d *SourceDefinition) { d.Options = func() any { return 1 } },
	} {
		d := kinds[Buffer]
		d.Name = "another"
		change(&d)
		expect.Panic(t, func() { RegisterSource(d) }, name)
	}
}

func TestReplayRefuses(t *testing.T) {
	for _, test := range []struct {
		want   string
		change func(c *ReplayConfig)
	}{
		{"num_update_steps 0", func(c *ReplayConfig) { c.NumUpdateSteps = 0 }},
		{"0 prompts per step", func(c *ReplayConfig) { c.PromptsPerStep = 0 }},
		{"0 new tokens", func(c *ReplayConfig) { c.MaxNew = 0 }},
		{"temperature 0", func(c *ReplayConfig) { c.Temperature = 0 }},
		{"gamma 2", func(c *ReplayConfig) { c.Gamma = 2 }},
		{"gamma NaN", func(c *ReplayConfig) { c.Gamma = math.NaN() }},
		{"capacity 0", func(c *ReplayConfig) { c.BufferSize = 0 }},
	} {
		c := replayConfig()
		test.change(&c)
		expect.Failure(NewReplay(nil, spelling, c))(t, test.want)
	}
}

// session is a line of a file of recorded sessions.
func session(t *testing.T, change func(*Recorded)) string {
	t.Helper()
	reward := 1.0
	r := Recorded{Session: "s", Model: "m", Temperature: 1, Reward: &reward}
	x := &r.Trajectory
	x.AppendGiven(5, 6)
	x.AppendSampled(7, -1, -1)
	x.EndTurn(0)
	x.BeginSegment(5)
	x.AppendSampled(8, -2, -2)
	x.EndTurn(0)
	change(&r)
	return string(must.Get(json.Marshal(r))(t)) + "\n"
}

// TestRecorded: sessions are samples of their groups with the session's reward, each pass has all groups once, and what another model
// or other settings have sampled is an error that names the line.
func TestRecorded(t *testing.T) {
	m := sampler(t, tiny(t), 1)
	path := filepath.Join(t.TempDir(), RecordedFile)
	c := tokensConfig()
	c.PromptsPerStep, c.SamplesPerPrompt = 1, 2
	named := func(name, group string, reward float64) string {
		return session(t, func(r *Recorded) { r.Session, r.Group, r.Reward = name, group, &reward })
	}
	none := session(t, func(r *Recorded) { r.Session, r.Reward = "x", nil })
	must.Do(t, os.WriteFile(path, []byte(named("a", "g", 1)+none+named("b", "", 2)+named("c", "g", 3)+named("d", "g", 4)), 0o600))
	src := must.Get(NewRecorded(m, letters, c, filepath.Dir(path)))(t)
	rewards := map[float64]int{}
	for i := range 4 {
		step := must.Get(src.Next(t.Context(), rl.At{Step: i}))(t)
		expect.True(t, step.Prefetched && len(step.Groups) == 1, "%+v", step)
		for _, x := range step.Samples {
			rewards[x.Reward()]++
			expect.True(t, len(x.Earlier) == 1 && x.Earlier[0].Actions[0] == 7 && x.Actions[0] == 8 && x.BehaviorLogProbs[0] == -2, "%+v", x)
		}
	}
	expect.Equal(t, map[float64]int{1: 2, 3: 2, 2: 2}, rewards)

	for want, line := range map[string]string{
		"2: token 99999 is not one":           session(t, func(r *Recorded) { r.Trajectory.Tokens[0] = 99999 }),
		"2: the session was sampled at":       session(t, func(r *Recorded) { r.Temperature = 0.5 }),
		"2: trajectory of 5 tokens":           session(t, func(r *Recorded) { r.Trajectory.Segments[0] = 9 }),
		"2: invalid character":                "x\n",
		"2: the session has no sampled token": session(t, func(r *Recorded) { r.Trajectory.Source[2], r.Trajectory.Source[4] = 0, 0 }),
		"2: the session has 4000 tokens in a row": session(t, func(r *Recorded) {
			r.Trajectory = rl.Trajectory{}
			r.Trajectory.AppendGiven(make([]int32, 3999)...)
			r.Trajectory.AppendSampled(1, -1, -1)
			r.Trajectory.EndTurn(0)
		}),
	} {
		must.Do(t, os.WriteFile(path, []byte(named("a", "g", 1)+line), 0o600))
		expect.Failure(NewRecorded(m, letters, c, path))(t, want)
	}
	recorded := Sources()[slices.IndexFunc(Sources(), func(d SourceDefinition) bool { return d.Name == "recorded" })]
	for from, want := range map[string]string{"": "recorded … is needed", path + "x": "recorded … " + path + "x", path: "recorded … no session with a reward"} {
		must.Do(t, os.WriteFile(path, []byte(none), 0o600))
		expect.Failure(recorded.New(Setup{Options: &recordedOptions{from}, Sampler: m, Task: letters, Rollout: c}))(t, want)
	}
	// The longest that the model reads. A teacher scores each session once.
	must.Do(t, os.WriteFile(path, []byte(session(t, func(r *Recorded) {
		r.Trajectory = rl.Trajectory{}
		r.Trajectory.AppendGiven(make([]int32, 2047)...)
		r.Trajectory.AppendSampled(1, -1, -1)
		r.Trajectory.EndTurn(0)
	})), 0o600))
	scored := 0
	c.Teacher = func(_ context.Context, all []*rl.Trajectory) error {
		for _, x := range all {
			x.Teacher = make([]float32, len(x.Tokens))
			scored++
		}
		return nil
	}
	long := must.Get(recorded.New(Setup{Options: &recordedOptions{path}, Sampler: m, Task: letters, Rollout: c}))(t).(*Tokens)
	next(t, long, 0)
	next(t, long, 1)
	expect.Same(t, 1, scored, "sessions that the teacher scored")
	for _, change := range []func(*TokensConfig){func(c *TokensConfig) { c.Async = true }, func(c *TokensConfig) { c.Greedy = true }, func(c *TokensConfig) { c.ByDifficulty = true }} {
		other := c
		change(&other)
		expect.Failure(NewRecorded(m, letters, other, path))(t, "do not apply to recorded sessions")
	}
	c.MaxNew = 0
	expect.Failure(NewRecorded(m, letters, c, path))(t, "0 new tokens")
}

// FuzzRecorded: no line of a file makes a policy read beyond its tokens or its positions.
func FuzzRecorded(f *testing.F) {
	f.Add(`{"session":"s","temperature":1,"reward":1,"trajectory":{"tokens":[1,2],"source":[0,1],"behavior_logprobs":[0,-1],"logprobs":[0,-1],"turns":[{"End":2,"Reward":0}]}}`)
	f.Fuzz(func(t *testing.T, line string) {
		var one Recorded
		if json.Unmarshal([]byte(strings.TrimSpace(line)), &one) != nil || one.Trajectory.Validate() != nil {
			return
		}
		for _, s := range rl.WithEarlier([]*rl.Sample{one.Trajectory.Sample(1)}) {
			for i, row := range s.Rows {
				expect.Require(t, row >= 0 && row+1 < len(s.Tokens) && s.Tokens[row+1] == s.Actions[i], "action %d of %+v is not after its row", i, s)
			}
		}
	})
}
