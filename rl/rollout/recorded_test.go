package rollout

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
)

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
	must.Do(t, os.WriteFile(path, []byte(none), 0o600))
	expect.Failure(NewRecorded(m, letters, c, path))(t, "no session with a reward")
	for _, d := range Sources() {
		if d.Name == "recorded" {
			_, err := d.New(Setup{Options: d.Options(), Sampler: m, Task: letters, Rollout: c})
			expect.True(t, expect.Names(err, "is needed"), "%v", err)
		}
	}
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
				if row < 0 || row+1 >= len(s.Tokens) || s.Tokens[row+1] != s.Actions[i] {
					t.Fatalf("action %d of %+v is not after its row", i, s)
				}
			}
		}
	})
}
