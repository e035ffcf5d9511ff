package train

import (
	"testing"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/internal/expect"
)

func TestWandBOptionsOverrideVariables(t *testing.T) {
	environ := []string{"WANDB_PROJECT=pears", "WANDB_ENTITY=us", "WANDB_API_KEY=secret", "HOME=/root"}
	got := wandbVariables(environ, config.Saving{Project: "apples", RunName: "first"})
	expect.Equal(t, map[string]string{"WANDB_PROJECT": "apples", "WANDB_ENTITY": "us", "WANDB_NAME": "first"}, got)
}
