// Package agent is the task agent: a program of the user's plays each episode. It calls the policy over OpenAI's chat API, as it
// would call any model, and says at its end what reward it deserves.
//
// The program is started for each sample with the variables OPENAI_BASE_URL and OPENAI_API_KEY, whose key stands for the sample, and
// reads a line of JSON, {"seed":7,"part":"train"}. It sends one conversation: each call repeats the messages of the one before, with
// its answer, and adds to them. So the tokens that were sampled stay as they are, and the calls are one sample. Its last line of output
// is {"reward":1}, or it posts the same to OPENAI_BASE_URL/reward. All samples of an episode get the same seed.
package agent

import (
	_ "embed"
	"errors"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/tools"
	"github.com/rltrain/rltrain/internal/program"
	"github.com/rltrain/rltrain/internal/words"
)

//go:embed agent.yaml
var recipe string

//go:embed model.yaml
var modelRecipe string

func init() {
	envs.Register(envs.Definition{
		Name: "agent", Help: "RL of the model that an agent calls, a program of your own, over OpenAI's API", Recipe: recipe, ModelRecipe: modelRecipe,
		Options: func() any { return &options{} }, Forms: true,
	})
}

// options are the options of the task.
type options struct {
	Agent    string  `option:"agent" arg:"cmd:PROGRAM" common:"true" help:"agent that plays the episodes: a program that calls the model at OPENAI_BASE_URL"`
	Timeout  float64 `option:"agent_timeout" default:"300" range:"[0.001,86400]" arg:"SECONDS" incidental:"true" help:"seconds that the agent may take until its next call or its end; an episode that takes longer fails and is dropped"`
	MaxTurns int     `option:"max_turns" default:"16" range:"[1,1024]" help:"maximum calls per episode; further ones get status 429"`
}

const command = "cmd:"

// Check reports an agent that is no program.
func (o *options) Check() error {
	if o.Agent == "" {
		return nil // Task needs it
	}
	line, ok := strings.CutPrefix(o.Agent, command)
	if !ok {
		return envs.OptionErrorf("agent", "%s: want cmd:PROGRAM", words.Quote(o.Agent))
	}
	if _, err := program.Words(line); err != nil {
		return &envs.OptionError{Option: "agent", Err: err}
	}
	return nil
}

// Actions is the maximum number of actions per episode.
func (o *options) Actions() int { return o.MaxTurns }

// Task implements envs.EpisodeSource.
func (o *options) Task(s envs.Setup) (envs.Task, error) {
	switch {
	case o.Agent == "":
		return nil, &envs.OptionError{Option: "agent", Err: errors.New("is needed, as cmd:PROGRAM")}
	case s.Text:
		return nil, &envs.OptionError{Option: "agent", Err: errors.New("agents send messages, which need a chat template; pass --chat-template FILE, or use another model")}
	}
	if err := o.Check(); err != nil {
		return nil, err
	}
	program, err := program.Look(strings.TrimPrefix(o.Agent, command))
	if err != nil {
		return nil, &envs.OptionError{Option: "agent", Err: err}
	}
	t := &task{options: o, program: program, seed: s.Seed, server: &server{open: map[string]*episode{}}}
	if s.ToolTemplate != nil && *s.ToolTemplate != "" {
		t.format = tools.FormatOf(*s.ToolTemplate)
	}
	return t, nil
}
