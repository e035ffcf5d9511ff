package rollout

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
)

// RecordedFile is the name of the file of recorded sessions in its folder.
const RecordedFile = "sessions.jsonl"

// Recorded is a session that a server has recorded, a line of RecordedFile.
type Recorded struct {
	Session     string        `json:"session"`
	Group       string        `json:"group,omitempty"` // sessions of a group are compared; "" = of no group
	Model       string        `json:"model"`
	Temperature float64       `json:"temperature"`
	Reward      *float64      `json:"reward"` // null if the session was closed without
	Trajectory  rl.Trajectory `json:"trajectory"`
}

// recordedOptions are the options of the source of recorded sessions.
type recordedOptions struct {
	Recorded string `option:"recorded" arg:"DIR" help:"folder of rltrain serve --record, or a file of recorded sessions"`
}

func init() {
	RegisterSource(SourceDefinition{
		Name: "recorded", Help: "sessions that rltrain serve --record has kept; the task's episodes are for evaluation", Options: func() any { return &recordedOptions{} },
		New: func(s Setup) (rl.StepSource, error) {
			path := s.Options.(*recordedOptions).Recorded
			if path == "" {
				return nil, &envs.OptionError{Option: "recorded", Err: errors.New("is needed, the folder of rltrain serve --record")}
			}
			t, err := NewRecorded(s.Sampler, s.Task, s.Rollout, path)
			if err != nil {
				return nil, &envs.OptionError{Option: "recorded", Err: err}
			}
			return t, nil
		},
	})
}

// NewRecorded makes a source of the sessions in a file, or in RecordedFile of a folder, up to SamplesPerPrompt of each group. Their
// log-probabilities give importance weights. The caller keeps owning the sampler.
func NewRecorded(sampler Generator, task envs.Task, c TokensConfig, path string) (*Tokens, error) {
	if c.Async || c.Greedy || c.ByDifficulty {
		return nil, errors.New("async, difficulty_pools and baseline greedy do not apply to recorded sessions")
	}
	if c.Context.Used() {
		return nil, envs.OptionErrorf("teacher_context", "does not apply to recorded sessions, whose prompts are tokens alone")
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, RecordedFile)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	t, err := NewTokens(sampler, task, c)
	if err != nil {
		return nil, err
	}
	places := map[string]int{} // of groups
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		var one Recorded
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, number, err)
		}
		if one.Reward == nil {
			continue
		}
		if err := one.check(sampler.Policy(), c.Temperature); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, number, err)
		}
		key := cmp.Or(one.Group, "\x00"+one.Session)
		at, known := places[key]
		if !known {
			at = len(t.recorded)
			places[key], t.recorded = at, append(t.recorded, nil)
		}
		if n := len(t.recorded[at]); n < c.SamplesPerPrompt {
			x := &one.Trajectory
			x.Prompt, x.Index = at, n
			x.Turns[len(x.Turns)-1].Reward += *one.Reward
			x.Info = &envs.Info{Correct: *one.Reward > 0, FreeForm: true, FoundBy: "agent"}
			t.recorded[at] = append(t.recorded[at], x)
		}
	}
	if t.recorded == nil {
		return nil, fmt.Errorf("%s: no session with a reward", path)
	}
	return t, nil
}

// check returns what is wrong with a session for a policy.
func (r *Recorded) check(p *policy.CausalLM, temperature float64) error {
	x := &r.Trajectory
	if err := x.Validate(); err != nil {
		return err
	}
	switch {
	case len(x.Turns) == 0 || x.Len() == 0:
		return errors.New("the session has no sampled token")
	case r.Temperature != temperature:
		return fmt.Errorf("the session was sampled at temperature %g; pass --temperature %g", r.Temperature, r.Temperature)
	}
	for _, s := range rl.WithEarlier([]*rl.Sample{x.Sample(1)}) {
		if len(s.Tokens) > p.MaxLength() {
			return fmt.Errorf("the session has %d tokens in a row, the model has %d positions", len(s.Tokens), p.MaxLength())
		}
	}
	if i := unknownToken(p, x.Tokens); i >= 0 {
		return fmt.Errorf("token %d is not one of the model's %d: another model sampled the session", x.Tokens[i], p.VocabSize())
	}
	return nil
}

// replayed are recorded groups, the same ones in another order in each pass over them.
func (t *Tokens) replayed(ctx context.Context, indices []int) (Played, error) {
	var p Played
	for _, i := range indices {
		n := len(t.recorded)
		order := rl.Stream(t.config.Seed, rl.StreamRollout, uint64(i/n)).Perm(n)
		p.Groups = append(p.Groups, t.recorded[order[i%n]])
	}
	if t.config.Teacher == nil {
		return p, nil
	}
	scored := func(x *rl.Trajectory) bool { return x.Teacher != nil } // in an earlier pass
	return p, t.config.Teacher(ctx, slices.DeleteFunc(slices.Concat(p.Groups...), scored))
}
