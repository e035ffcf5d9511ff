// Package play is the task env: a language model plays against an environment, which is a program of the user's.
//
// The program reads questions and writes answers, a line of JSON each, flushed at once:
//
//	{"id":1,"reset":{"seed":7,"part":"train"}}     {"id":1,"observation":"Guess a number."}
//	{"id":2,"step":{"text":"5"}}                   {"id":2,"observation":"Higher.","reward":0,"done":false}
//	{"id":3,"step":{"text":"7"}}                   {"id":3,"reward":1,"done":true,"correct":true}
//
// A process plays one episode at a time, and the next one after another reset. All samples of an episode get the same seed.
package play

import (
	_ "embed"
	"errors"
	"strings"
	"time"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/program"
	"github.com/rltrain/rltrain/internal/words"
)

//go:embed env.yaml
var recipe string

//go:embed model.yaml
var modelRecipe string

func init() {
	envs.Register(envs.Definition{
		Name: "env", Help: "RL against an environment, a program of your own", Recipe: recipe, ModelRecipe: modelRecipe,
		Options: func() any { return &options{} }, Forms: true,
	})
}

// command is what an environment that is a program begins with.
const command = "cmd:"

// options are the options of the task.
type options struct {
	Env      string  `option:"env" arg:"cmd:PROGRAM" common:"true" help:"environment to play: a program that reads and writes lines of JSON"`
	Timeout  float64 `option:"env_timeout" default:"60" range:"[0.001,86400]" arg:"SECONDS" incidental:"true" help:"seconds that the environment may take for one answer; an episode without one fails and is dropped"`
	MaxTurns int     `option:"max_turns" default:"16" range:"[1,1024]" help:"maximum model turns per episode"`
}

// Check reports conflicting options.
func (o *options) Check() error {
	line, ok := strings.CutPrefix(o.Env, command)
	switch {
	case o.Env == "":
		return nil // Task needs it
	case !ok:
		return envs.OptionErrorf("env", "%s: want cmd:PROGRAM", words.Quote(o.Env))
	}
	if _, err := program.Words(line); err != nil {
		return &envs.OptionError{Option: "env", Err: err}
	}
	return nil
}

// Actions is the maximum number of actions per episode.
func (o *options) Actions() int { return o.MaxTurns }

// Task implements envs.EpisodeSource.
func (o *options) Task(s envs.Setup) (envs.Task, error) {
	if o.Env == "" {
		return nil, &envs.OptionError{Option: "env", Err: errors.New("is needed, as cmd:PROGRAM")}
	}
	if err := o.Check(); err != nil {
		return nil, err
	}
	t := &task{options: o, seed: s.Seed, asText: s.Text, line: strings.TrimPrefix(o.Env, command), timeout: time.Duration(o.Timeout * float64(time.Second))}
	if _, err := program.NewSession(t.line, t.timeout, false); err != nil {
		return nil, &envs.OptionError{Option: "env", Err: err}
	}
	return t, nil
}
