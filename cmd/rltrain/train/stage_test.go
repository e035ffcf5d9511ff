package train

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
)

func TestWandBOptionsOverrideVariables(t *testing.T) {
	environ := []string{"WANDB_PROJECT=pears", "WANDB_ENTITY=us", "WANDB_API_KEY=secret", "HOME=/root"}
	got := wandbVariables(environ, config.Saving{Project: "apples", RunName: "first"})
	if diff := cmp.Diff(map[string]string{"WANDB_PROJECT": "apples", "WANDB_ENTITY": "us", "WANDB_NAME": "first"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
