package algo

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAlgorithmsAreFoundByName(t *testing.T) {
	var names []string
	for _, a := range Algorithms() {
		names = append(names, a.Name)
	}
	if diff := cmp.Diff([]string{GRPO, TokenPPO, Reinforce, "reinforce_pp", RLOO}, names); diff != "" {
		t.Errorf("algorithms, an example's among them (-want +got):\n%s", diff)
	}
	grpo, err := findAlgorithm(GRPO)
	if err != nil {
		t.Fatal(err)
	}
	lossless, nameless := grpo, grpo
	lossless.Name, lossless.Loss, nameless.Name = "lossless", nil, ""
	for _, a := range []Algorithm{grpo, lossless, nameless} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("algorithm %q is registered", a.Name)
				}
			}()
			Register(a)
		}()
	}
}
