package algo

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAlgorithmsAreFoundByName(t *testing.T) {
	fits := map[string][2]bool{}
	for _, d := range Definitions() {
		fits[d.Name] = [2]bool{d.Fits(tinyLabel(t)), d.Fits(newTable(t, 1))}
		if again, err := Find(d.Name); err != nil || again.Name != d.Name {
			t.Errorf("%s is found as %s: %v", d.Name, again.Name, err)
		}
		needsMore := d.Name == "distill" // a teacher
		if err := d.New().Check(4); d.Help == "" || (err != nil) != needsMore {
			t.Errorf("%s: help %q; with its defaults: %v", d.Name, d.Help, err)
		}
	}
	want := map[string][2]bool{
		"a2c": {true, true}, "distill": {false, true}, "dpo": {false, true}, "dqn": {true, false}, "grpo": {true, true}, "ppo": {true, true}, "reinforce": {true, true},
		"reinforce_pp": {false, true}, "rloo": {true, true},
	}
	if diff := cmp.Diff(want, fits); diff != "" {
		t.Errorf("algorithms for labels and tokens, an example's among them (-want +got):\n%s", diff)
	}
	_, err := Find("gprpo")
	if want := `algorithm "gprpo" is unknown (did you mean grpo?): choose a2c, distill, dpo, dqn, grpo, ppo, reinforce, reinforce_pp, rloo`; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	for _, d := range []Definition{{Name: "grpo", New: newGRPO}, {Name: "empty"}, {New: newGRPO}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%q is registered", d.Name)
				}
			}()
			Register(d)
		}()
	}
}

func TestWeight(t *testing.T) {
	for reduction, want := range map[string][3]float64{
		ReduceToken: {1. / 16, 1. / 16, 1. / 16}, ReduceSequence: {1. / 15, 1. / 3, 1. / 30}, ReduceDrGRPO: {1. / 60, 1. / 60, 1. / 60},
	} {
		for i, n := range []int{5, 1, 10} {
			if got := weight(reduction, n, 3, 16, 20); got != want[i] {
				t.Errorf("%s: a token of %d weighs %v, want %v", reduction, n, got, want[i])
			}
		}
	}
}
