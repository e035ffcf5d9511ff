package policy

import (
	"os"
	"os/exec"
	"testing"

	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch/hub"
)

// TestGenerationRoundsAsTraining: in bfloat16, log-probabilities while generating are those of the training graph, for dense models,
// experts and sinks alike. Where this processor has no products of bfloat16, it runs again with those of loops.
func TestGenerationRoundsAsTraining(t *testing.T) {
	const variable = "RLTRAIN_KERNELS"
	if os.Getenv(variable) == "" {
		again := exec.CommandContext(t.Context(), must.Get(os.Executable())(t), "-test.run=^TestGenerationRoundsAsTraining$")
		again.Env = append(os.Environ(), variable+"=amx_loops")
		if out, err := again.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	for _, model := range []string{"llama", "mixture", "woven"} {
		t.Run(model, func(t *testing.T) {
			p := must.Open(LoadCausalLM(t.Context(), &hub.Client{}, adapterBase(t, model), "", "bf16", false))(t)
			sampler := must.Open(p.NewSampler(2))(t)
			for first := range int32(6) {
				generatesAsItScores(t, p, sampler, []int32{7 + first, 41, 12, 88, 3, 60, 23, 98, 5, 71}, 1e-5)
			}
		})
	}
}
