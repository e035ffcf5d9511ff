package prompts

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// With splits, a run trains on the training split and evaluates on the validation split; the eval command uses the test
// split.
func TestPartsOfADataSet(t *testing.T) {
	file := func(name string, n int) []string {
		var rows strings.Builder
		for i := range n {
			fmt.Fprintf(&rows, `{"prompt": "%s %d", "answer": 1}`+"\n", name, i)
		}
		return []string{write(t, name+".jsonl", rows.String())}
	}
	train := dataset.Part{Split: dataset.Train, Files: append(file("train", 4), file("more", 3)...)}
	validation, test := dataset.Part{Split: "validation", Files: file("validation", 2)}, dataset.Part{Split: dataset.Test, Files: file("test", 1)}
	sets := map[string][]dataset.Part{"all": {train, validation, test}, "train": {train}, "tested": {train, test}, "testonly": {test}}
	for _, c := range []struct {
		dataset, eval string
		judging       bool
		train, judged int
		wantErr       string
	}{
		{"all", "", false, 7, 2, ""},
		{"all", "", true, 0, 1, ""},
		{"train", "", false, 5, 2, ""},
		{"train", "", true, 0, 7, ""},
		{"tested", "", false, 5, 2, ""},
		{"train", "tested", false, 7, 1, ""},
		{"train", "testonly", false, 7, 1, ""},
		{"testonly", "", false, 0, 0, `dataset: the data set has no split "train"; choose from "test"`},
		{"none", "", false, 0, 0, "dataset: there is no none"},
		{"all", "none", false, 0, 0, "eval_dataset: there is no none"},
	} {
		setup := envs.Setup{HeldOut: 2, EvalOnly: c.judging, Context: t.Context(), Find: func(ctx context.Context, name, config string, splits ...string) ([]dataset.Part, error) {
			expect.True(t, ctx == t.Context() && (config == "" || name == c.dataset),
				"%s: looked up with configuration %q", name, config)
			if sets[name] == nil {
				return nil, errors.New("there is no " + name)
			}
			return sets[name], nil
		}}
		settings := envs.Settings{"dataset": c.dataset, "dataset_config": "c"}
		if c.eval != "" {
			settings["eval_dataset"] = c.eval
		}
		task, err := envs.New("prompts", setup, settings)
		if c.wantErr != "" {
			expect.Error(t, err, c.wantErr)
			continue
		}
		must.Do(t, err)
		expect.Same(t, c.train, task.Len(envs.Train), "%+v: training prompts", c)
		expect.Same(t, c.judged, task.Len(envs.Eval), "%+v: evaluation prompts", c)
	}
}
