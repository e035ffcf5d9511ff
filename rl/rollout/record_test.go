package rollout

import (
	"strings"
	"testing"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
)

// TestRecordsOfTurns: the completions of a record are those of its turns, with text of the environment between them or
// none, and everything together is what was written.
func TestRecordsOfTurns(t *testing.T) {
	for between, task := range map[string]envs.Task{";": spelling, "": endless(func(envs.Part, int) envs.Env { return &silent{} })} {
		c := tokensConfig()
		c.MaxNew = 2
		step := must.Get(tokens(t, sampler(t, tiny(t), 8), task, c).Next(t.Context(), rl.At{}))(t)
		all, err := step.Records(-1)
		expect.Require(t, err == nil && len(all) == c.PromptsPerStep*c.SamplesPerPrompt, "%d records, %v", len(all), err)
		written := 0
		for _, r := range all {
			expect.True(t, len(r.Actions) == 3 && strings.Join(r.Actions, between) == strings.TrimSuffix(r.Written, between),
				"actions %q of %q", r.Actions, r.Written)
			written += len(r.Written)
		}
		expect.True(t, written >= len(all), "nothing was written")
	}
}
