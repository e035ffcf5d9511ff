package train_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/epochs"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/run"
	"github.com/rltrain/rltrain/rl/train"
)

// counting is an algorithm that counts the steps it prepared, across resumes.
type counting struct {
	algo.SFT
	steps int
}

func (a *counting) Prepare(step *rl.Step) error {
	a.steps++
	return a.SFT.Prepare(step)
}

// State and Restore are all that a checkpoint needs. Sources have them too.
func (a *counting) State() any { return a.steps }

func (a *counting) Restore(state json.RawMessage) error { return json.Unmarshal(state, &a.steps) }

// State that an algorithm keeps between steps is saved in checkpoints and restored on resume.
func ExampleTrain_checkpoint() {
	dir := get(os.MkdirTemp("", "example"))
	defer os.RemoveAll(dir)
	model, checkpoint := filepath.Join(dir, "tiny"), filepath.Join(dir, "checkpoint")
	check(policy.TinyModel(model, 1, 32, 1))
	check(os.Mkdir(checkpoint, 0o755))
	train := func(steps int, h run.Hooks) int {
		p := get(policy.NewCausalLM(policy.Config{Dir: model, Full: true}))
		defer p.Close()
		// The third token must follow the first two.
		source := get(epochs.New([]*rl.Sample{{Tokens: []int32{5, 6, 7}, Rows: []int{1}, Actions: []int32{7}}}, 1, 0, 1))
		a := &counting{}
		get(train.Run(context.Background(), p, source, a, train.Config{
			Steps: steps, Optimisation: train.Optimisation{LearningRate: 0.01, Schedule: "constant", MaxGradNorm: 1}, Seed: 1,
		}, h))
		return a.steps
	}
	fmt.Println(train(3, run.Hooks{Save: func(_ int, write func(dir string) error) error { return write(checkpoint) }}))
	fmt.Println(train(5, run.Hooks{Resume: checkpoint}))
	// Output:
	// 3
	// 5
}
