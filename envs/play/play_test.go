package play_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rltrain/rltrain/envs"
	_ "github.com/rltrain/rltrain/envs/play"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// counting notes its starts in $1. An episode asks for its seed's last digit; each turn shows how many there were.
const counting = `echo start >> "$1"
while IFS= read -r line; do
id=${line#*:}; id=${id%%,*}
case $line in
*'"reset"'*) n=0; seed=${line#*seed\":}; seed=${seed%%,*}; echo "{\"id\":$id,\"observation\":\"seed $seed\"}" ;;
*'"text":"end"'*) echo "{\"id\":$id,\"reward\":0.5,\"done\":true,\"correct\":false}" ;;
*'"text":"nothing"'*) echo "{\"id\":$id,\"done\":true}" ;;
*'"text":"good"'*) echo "{\"id\":$id,\"reward\":2,\"done\":true}" ;;
*'"text":"die"'*) echo oops >&2; exit 3 ;;
*'"text":"hang"'*) sleep 1000 ;;
*'"text":"odd"'*) echo hello ;;
*'"text":"mute"'*) echo "{\"id\":$id}" ;;
*'"text":"tool"'*) echo "{\"id\":$id,\"observation\":[{\"role\":\"tool\",\"content\":\"x\"}]}" ;;
*'"text":"own"'*) echo "{\"id\":$id,\"error\":\"no board\"}" ;;
*'"text":"flood"'*) yes | tr -d '\n' ;;
*) n=$((n+1)); echo "{\"id\":$id,\"observation\":\"turn $n\",\"reward\":0.25}" ;; esac
done
`

// opened is the environment, and how often its program was started.
func opened(t *testing.T, setup envs.Setup, settings envs.Settings) (task envs.Task, starts func() int) {
	t.Helper()
	dir := t.TempDir()
	script, log := filepath.Join(dir, "env.sh"), filepath.Join(dir, "starts")
	must.Do(t, writeCounting(script))
	all := envs.Settings{"env": "cmd:sh " + script + " " + log, "env_timeout": "20"}
	for name, value := range settings {
		all[name] = value
	}
	task = must.Get(envs.New("env", setup, all))(t)
	t.Cleanup(func() { must.Do(t, task.(io.Closer).Close()) })
	return task, func() int {
		text, _ := os.ReadFile(log)
		return strings.Count(string(text), "start")
	}
}

func writeCounting(path string) error { return os.WriteFile(path, []byte(counting), 0o600) }

func say(text string) envs.Action {
	a, _, _ := envs.NewAction(text, envs.StopEnd, false)
	return a
}

func TestEpisodes(t *testing.T) {
	task, starts := opened(t, envs.Setup{Seed: 3}, nil)
	for i := range 3 { // one after another, by one process
		e, shown, err := envs.Begin(t.Context(), task, envs.Train, 5)
		must.Do(t, err)
		_, same, err := envs.Begin(t.Context(), task, envs.Train, 5)
		must.Do(t, err)
		expect.Equal(t, shown, same, "the same episode")
		step := must.Get(e.Step(t.Context(), say("x")))(t)
		expect.True(t, step.Keep == 1 && step.Reply == "turn 1" && step.Reward == 0.25 && !step.Done && !step.Continues, "%+v", step)
		step = must.Get(e.Step(t.Context(), say("end")))(t)
		expect.True(t, step.Done && step.Reward == 0.5 && step.Info != nil && !step.Info.Correct && len(step.Said) == 4, "%+v", step)
		expect.Failure(e.Step(t.Context(), say("x")))(t, "has ended")
		must.Do(t, e.(io.Closer).Close())
		expect.Same(t, 2+i, starts(), "starts: the second episode of a round has a process of its own, and keeps it")
	}
	e, _, err := envs.Begin(t.Context(), task, envs.Train, 5)
	must.Do(t, err)
	expect.True(t, !must.Get(e.Step(t.Context(), say("nothing")))(t).Info.Correct, "no reward is no success")
	seeds := map[string]bool{}
	for _, part := range []envs.Part{envs.Train, envs.Eval} {
		for index := range 4 {
			e, shown, err := envs.Begin(t.Context(), task, part, index)
			must.Do(t, err)
			seeds[shown.Messages[0].Content] = true
			step := must.Get(e.Step(t.Context(), say("good")))(t)
			expect.True(t, step.Done && step.Info.Correct, "rewards above 0 are a success: %+v", step)
		}
	}
	expect.True(t, len(seeds) == 8, "seeds %v", seeds)
}

func TestEndsOfEpisodes(t *testing.T) {
	task, _ := opened(t, envs.Setup{Text: true}, envs.Settings{"max_turns": "2"})
	for _, actions := range [][]envs.Action{{say("a"), say("b")}, {{Text: "cut", Stop: envs.StopLength}, say("end")}} {
		e, shown, err := envs.Begin(t.Context(), task, envs.Eval, 0)
		must.Do(t, err)
		expect.True(t, strings.HasPrefix(shown.Text, "seed ") && shown.Messages == nil, "%+v", shown)
		for i, a := range actions {
			step := must.Get(e.Step(t.Context(), a))(t)
			expect.True(t, step.Done == (i == len(actions)-1) && (step.Done || step.Append == "\nturn 1\n"), "%+v", step)
		}
		must.Do(t, e.(io.Closer).Close())
	}
}

// TestFailures: an environment that fails costs its episode alone.
func TestFailures(t *testing.T) {
	for text, want := range map[string]string{
		"die": "exit status 3 … oops", "hang": "timeout", "odd": `invalid line "hello"`, "mute": "no observation", "tool": "only the user's", "own": `"no board"`, "flood": "longer than",
	} {
		task, _ := opened(t, envs.Setup{}, envs.Settings{"env_timeout": "1"})
		e, _, err := envs.Begin(t.Context(), task, envs.Train, 0)
		must.Do(t, err)
		_, err = e.Step(t.Context(), say(text))
		expect.True(t, expect.Names(err, "environment: … "+want) || expect.Names(err, want), "%s: %v, want %s", text, err, want)
		must.Do(t, e.(io.Closer).Close())
		_, _, err = envs.Begin(t.Context(), task, envs.Train, 0)
		expect.NoError(t, err, "after %s", text)
	}
	task, _ := opened(t, envs.Setup{}, nil)
	e, _, err := envs.Begin(t.Context(), task, envs.Train, 0)
	must.Do(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = e.Step(ctx, say("hang"))
	expect.True(t, err != nil && ctx.Err() != nil, "%v", err)
}

func TestRefuses(t *testing.T) {
	for env, want := range map[string]string{"": "env: is needed", "ws://x": `env: "ws://x": want cmd:PROGRAM or openenv:`, "cmd:": "env: the command is empty", "cmd:./none": "env: … none"} {
		_, err := envs.New("env", envs.Setup{}, envs.Settings{"env": env})
		expect.True(t, expect.Names(err, want), "%q: %v, want %s", env, err, want)
	}
}

func FuzzAnswers(f *testing.F) {
	for _, line := range []string{`"observation":"x"`, `"observation":[{"role":"user","content":"x"}]`, `"reward":1e308,"done":true`, `"observation":{"role":"user"}`, `"correct":null`} {
		f.Add(line)
	}
	dir := f.TempDir()
	script, said := filepath.Join(dir, "env.sh"), filepath.Join(dir, "line")
	must.Do(f, os.WriteFile(script, []byte(`while IFS= read -r line; do id=${line#*:}; cat "$1" | sed "s/^/{\"id\":${id%%,*},/"; done`), 0o600))
	f.Fuzz(func(t *testing.T, fields string) {
		if strings.ContainsAny(fields, "\n\x00") || !json.Valid([]byte("{"+fields+"}")) || fields == "" {
			return
		}
		must.Do(t, os.WriteFile(said, []byte(fields+"}\n"), 0o600))
		task := must.Get(envs.New("env", envs.Setup{}, envs.Settings{"env": fmt.Sprintf("cmd:sh %s %s", script, said)}))(t)
		defer task.(io.Closer).Close()
		e, shown, err := envs.Begin(t.Context(), task, envs.Train, 0)
		if err == nil {
			expect.True(t, len(shown.Messages) > 0, "%q shows nothing", fields)
			must.Do(t, e.(io.Closer).Close())
		}
	})
}
