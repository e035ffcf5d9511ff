package rollout

import (
	"errors"
	"path/filepath"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/options"
	"github.com/rltrain/rltrain/internal/registry"
	"github.com/rltrain/rltrain/rl"
)

// SourceDefinition makes a source of a language model's samples known by its name.
type SourceDefinition struct {
	Name, Help string
	// Replay says that the samples are those of earlier policies: algorithms whose Needs ask for a replay buffer learn from
	// such a source, and others from one that does not replay.
	Replay bool
	// Options returns a pointer to a new struct of the source's own options, fields with the tags of package
	// internal/options. A method Check() error, if there is one, checks them together. nil = there are none.
	Options func() any
	// New makes the source of a run.
	New func(Setup) (rl.StepSource, error)
}

// Setup is what a run tells a source.
type Setup struct {
	Options any          // what SourceDefinition.Options returned, with its values set
	Sampler Generator    // samples completions of the policy
	Task    envs.Task    // makes episodes; Part envs.Train is for training
	Rollout TokensConfig // of [NewTokens]: a source may play episodes by it
}

var sources registry.Registry[SourceDefinition]

// Names of the built-in sources.
const (
	Rollouts = "rollouts"
	Buffer   = "replay_buffer"
)

func init() {
	RegisterSource(SourceDefinition{Name: Rollouts, Help: "new completions in each step", New: func(s Setup) (rl.StepSource, error) {
		return NewTokens(s.Sampler, s.Task, s.Rollout)
	}})
	RegisterSource(SourceDefinition{
		Name: Buffer, Help: "turns from a replay buffer, which new completions fill", Replay: true, Options: func() any { return &ReplayOptions{} },
		New: func(s Setup) (rl.StepSource, error) {
			o, r := s.Options.(*ReplayOptions), s.Rollout
			c := ReplayConfig{ReplayOptions: *o, MaxNew: r.MaxNew, MaxThinking: r.MaxThinking, Rewards: r.Rewards, Seed: r.Seed, Now: r.Now, Group: r.Group}
			if o.LoadBuffer {
				c.Load = o.BufferCache
			}
			if o.CacheBuffer {
				c.Save = o.saved()
			}
			return NewReplay(s.Sampler, s.Task, c)
		},
	})
}

// saved is the file that the buffer is saved to: next to the file that it started with, which stays as it is.
func (o *ReplayOptions) saved() string {
	if !o.LoadBuffer {
		return o.BufferCache
	}
	ext := filepath.Ext(o.BufferCache)
	return strings.TrimSuffix(o.BufferCache, ext) + "_updated" + ext
}

// RegisterSource makes a source known, usually from an init function. It panics if the name is empty or taken, if help or
// New is missing, or if the options cannot be read.
func RegisterSource(d SourceDefinition) {
	sources.Add("rollout.RegisterSource: source", d.Name, d, d.check)
}

func (d SourceDefinition) check(earlier map[string]SourceDefinition) error {
	if _, taken := earlier[d.Name]; taken || d.Name == "" || d.Help == "" || d.New == nil {
		return errors.New("the name is empty or taken, or help or New is missing")
	}
	if d.Options == nil {
		return nil
	}
	_, err := options.Read(d.Options())
	return err
}

// Sources lists the registered sources by name.
func Sources() []SourceDefinition { return sources.All() }
