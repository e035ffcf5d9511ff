// Package play is the task env: a language model plays against environments, which are programs of the user's or servers of OpenEnv.
//
// A program reads questions and writes answers, a line of JSON each, flushed at once:
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

	"github.com/rltrain/rltrain/envs"
)

//go:embed env.yaml
var recipe string

//go:embed model.yaml
var modelRecipe string

func init() {
	envs.Register(envs.Definition{
		Name: "env", Help: "RL against an environment: a program of your own, or an OpenEnv server", Recipe: recipe, ModelRecipe: modelRecipe,
		Options: func() any { return &options{} }, Forms: true,
	})
}

// options are the options of the task.
type options struct {
	Env          string   `option:"env" arg:"cmd:PROGRAM|openenv:URL" common:"true" help:"environment to play: a program that reads and writes lines of JSON, or an OpenEnv server such as openenv:ws://127.0.0.1:8000"`
	Mix          []string `option:"env_mix" arg:"ENV=WEIGHT,..." needs:"env" help:"more environments to play, each WEIGHT times as often as --env"`
	Timeout      float64  `option:"env_timeout" default:"60" range:"[0.001,86400]" arg:"SECONDS" incidental:"true" help:"seconds that the environment may take for one answer; an episode without one fails and is dropped"`
	MaxTurns     int      `option:"max_turns" default:"16" range:"[1,1024]" help:"maximum model turns per episode"`
	SystemPrompt string   `option:"system_prompt" arg:"FILE|TEXT" help:"system prompt: a text file, or the text itself if it has several words"`
}

// Check reports conflicting options.
func (o *options) Check() error {
	if o.Env == "" {
		return nil // Task needs it
	}
	_, err := o.worlds()
	return err
}

// Actions is the maximum number of actions per episode.
func (o *options) Actions() int { return o.MaxTurns }

// Task implements envs.EpisodeSource.
func (o *options) Task(s envs.Setup) (envs.Task, error) {
	if o.Env == "" {
		return nil, &envs.OptionError{Option: "env", Err: errors.New("is needed, as cmd:PROGRAM or openenv:URL")}
	}
	all, err := o.worlds()
	if err != nil {
		return nil, err
	}
	t := &task{seed: s.Seed, worlds: all}
	for _, w := range all {
		if err := w.open(s); err != nil {
			return nil, &envs.OptionError{Option: w.option, Err: err}
		}
	}
	return t, nil
}
