package doctor

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/must"
)

// TestEveryOperatorHasAPath: each operator of the core has its row, which gradients share.
func TestEveryOperatorHasAPath(t *testing.T) {
	schema := must.Get(os.ReadFile("../../../csrc/ops/schema.cc"))(t)
	gradient := regexp.MustCompile(`^(.*?)(_backward|_(input|weight|hidden)_grad|_grads)$`)
	var want, got []string
	for _, found := range regexp.MustCompile(`m\.def\(\s*"([a-z_]+)\(`).FindAllStringSubmatch(string(schema), -1) {
		name := gradient.ReplaceAllString(found[1], "$1")
		if name == "lora" {
			name = "lora_linear"
		}
		want = append(want, name)
	}
	for _, p := range paths {
		for _, name := range strings.Split(p.what, ", ") {
			if name != "AdamW" && name != "generation" { // these are not operators
				got = append(got, name)
			}
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(slices.Compact(want), got); diff != "" {
		t.Errorf("operators (-of the core +described):\n%s", diff)
	}
}
