package train

import (
	"strings"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/rl/algo"
)

func TestAlgorithmsAreFoundByName(t *testing.T) {
	fits := map[string][2]bool{}
	for _, d := range algo.Definitions() {
		fits[d.Name] = [2]bool{d.Fits(tinyLabel(t)), d.Fits(newTable(t, 1))}
		again, err := algo.Find(d.Name)
		expect.True(t, err == nil && again.Name == d.Name, "%s is found as %s: %v", d.Name, again.Name, err)
		needsMore := d.Name == "distill" // a teacher
		err = d.New().Check(4)
		expect.True(t, d.Help != "" && (err != nil) == needsMore, "%s: help %q; with its defaults: %v", d.Name, d.Help, err)
	}
	want := map[string][2]bool{"dqn": {true, false}}
	for _, both := range []string{"a2c", "grpo", "ppo", "reinforce", "rloo"} {
		want[both] = [2]bool{true, true}
	}
	for _, tokens := range []string{"cispo", "distill", "dpo", "dppo", "gmpo", "gpg", "gspo", "reinforce++", "reinforce_pp", "reinforce_replay", "reinforce_replay_kl", "reinforce_replay_nll", "sapo", "vespo"} {
		want[tokens] = [2]bool{false, true}
	}
	expect.Equal(t, want, fits, "algorithms for labels and tokens, an example's among them")
	_, err := algo.Find("gprpo")
	expect.True(t, err != nil && strings.Contains(err.Error(), `"gprpo"`) && strings.HasSuffix(err.Error(), "did you mean grpo?"),
		"error %v, want the name and the nearest known one", err)
	for _, d := range []algo.Definition{{Name: "grpo", New: newGRPO}, {Name: "empty"}, {New: newGRPO}} {
		expect.Panic(t, func() { algo.Register(d) }, d.Name)
	}
}
