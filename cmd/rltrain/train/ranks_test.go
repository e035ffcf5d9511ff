package train

import (
	"errors"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/dist/disttest"
	"github.com/rltrain/rltrain/rl/run"
)

func TestSeveralProcessesDoNotTrainOnAGPU(t *testing.T) {
	c := must.Get(config.Load([]string{"--task=sum_digits", "--device=cuda:1"}, nil))(t)
	environ := []string{"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1"}
	expect.Error(t, (&trainer{config: c}).ranks(t.Context(), environ), "--device: cuda:1 applies to one process alone")
}

// TestRanksCompareInputs: ranks with other rows, another commit of a model, or rows that cannot be read do not train together.
func TestRanksCompareInputs(t *testing.T) {
	c := must.Get(config.Load([]string{"--task=sum_digits"}, nil))(t)
	rows := run.Inputs{"dataset": {"rows.jsonl": "aa"}}
	for name, test := range map[string]struct {
		inputs run.Inputs
		err    error
		want   string
	}{
		"same":    {rows, nil, ""},
		"rows":    {run.Inputs{"dataset": {"rows.jsonl": "bb"}}, nil, "--dataset: rows.jsonl has different content on rank 1 (bb) and rank 0 (aa)"},
		"missing": {run.Inputs{}, nil, "--dataset: rows.jsonl has different content on rank 1 (nothing) and rank 0 (aa)"},
		"more":    {run.Inputs{"dataset": rows["dataset"], "model": {"org/name": "c0ffee"}}, nil, "--model: org/name has different content on rank 1 (c0ffee) and rank 0 (nothing)"},
		"error":   {rows, errors.New("rows.jsonl: permission denied"), "rows.jsonl: permission denied"},
	} {
		groups := disttest.Groups(t, 2)
		disttest.Each(2, func(rank int) {
			own, fault := rows, error(nil)
			if rank == 1 {
				own, fault = test.inputs, test.err
			}
			err := (&trainer{config: c, group: groups[rank]}).sameOnAllRanks(own, fault)
			expect.True(t, (err == nil) == (test.want == "") && (err == nil || strings.Contains(err.Error(), test.want)),
				"%s: rank %d: %v, want %q", name, rank, err, test.want)
		})
	}
}
