package train

import (
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/rl/algo"
)

func TestAlgorithmsAreFoundByName(t *testing.T) {
	fits := map[string][2]bool{}
	for _, d := range algo.Definitions() {
		fits[d.Name] = [2]bool{d.Fits(tinyLabel(t)), d.Fits(newTable(t, 1))}
		if again, err := algo.Find(d.Name); err != nil || again.Name != d.Name {
			t.Errorf("%s is found as %s: %v", d.Name, again.Name, err)
		}
		needsMore := d.Name == "distill" // a teacher
		if err := d.New().Check(4); d.Help == "" || (err != nil) != needsMore {
			t.Errorf("%s: help %q; with its defaults: %v", d.Name, d.Help, err)
		}
	}
	want := map[string][2]bool{
		"a2c": {true, true}, "distill": {false, true}, "dpo": {false, true}, "dqn": {true, false}, "grpo": {true, true}, "ppo": {true, true}, "reinforce": {true, true},
		"reinforce_pp": {false, true}, "reinforce_replay": {false, true}, "reinforce_replay_kl": {false, true}, "reinforce_replay_nll": {false, true}, "rloo": {true, true},
	}
	expect.Equal(t, want, fits, "algorithms for labels and tokens, an example's among them")
	_, err := algo.Find("gprpo")
	if want := `algorithm "gprpo" is unknown: choose a2c, distill, dpo, dqn, grpo, ppo, reinforce, reinforce_pp, reinforce_replay, reinforce_replay_kl, reinforce_replay_nll, rloo; did you mean grpo?`; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	for _, d := range []algo.Definition{{Name: "grpo", New: newGRPO}, {Name: "empty"}, {New: newGRPO}} {
		expect.Panic(t, func() { algo.Register(d) }, d.Name)
	}
}
