package main

import (
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/rollout"
)

func init() {
	rollout.RegisterSource(rollout.SourceDefinition{
		Name: "repeated", Help: "new completions to prompts that come several times",
		Options: func() any { return &repeated{} },
		New: func(s rollout.Setup) (rl.StepSource, error) {
			o := s.Options.(*repeated)
			return rollout.NewTokens(s.Sampler, again{s.Task, o.Times, s.Rollout.PromptsPerStep}, s.Rollout)
		},
	})
}

// repeated has the options of the source.
type repeated struct {
	Times int `option:"prompt_steps" default:"2" range:"[1,1000]" help:"steps in a row that have the same prompts"`
}

// again is a task whose training prompts come several times.
type again struct {
	envs.Task
	times, prompts int
}

// Episode returns the same training episodes in several steps.
func (t again) Episode(part envs.Part, i int) (envs.Env, error) {
	if part == envs.Train {
		step := i / t.prompts
		i = step/t.times*t.prompts + i%t.prompts
	}
	return t.Task.Episode(part, i)
}
