package train

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/envs/digits"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/dist/disttest"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/run"
)

func TestMentioned(t *testing.T) {
	for _, test := range []struct {
		text    string
		want    []string
		without string
	}{
		{"rows.jsonl", []string{"rows.jsonl"}, ""},
		{"my rows.jsonl", []string{"my rows.jsonl"}, ""},
		{"a.jsonl,b.jsonl", []string{"a.jsonl", "b.jsonl"}, ""},
		{"cmd:python3 'my judge.py' --words=w.txt", []string{"my judge.py", "w.txt"}, ""},
		{"cmd:sh -c 'cd x; python3 judge.py < in.txt'", []string{"judge.py", "in.txt"}, ""},
		{"quality:cmd:/home/me/judge", []string{"/home/me/judge"}, ""},
		{"model:judges/a", []string{"judges/a"}, ""},
		{"cmd:/usr/bin/python3 judge.py", []string{"judge.py"}, "/usr/bin/python3"},
		{"cmd:make -C .", nil, "."},
		{"", nil, ""},
	} {
		got := mentioned(test.text)
		for _, name := range test.want {
			expect.True(t, slices.Contains(got, name), "%q: %q lacks %q", test.text, got, name)
		}
		expect.True(t, !slices.Contains(got, test.without), "%q: %q has %q", test.text, got, test.without)
	}
}

// What is trained on stands between marks.
func TestMarked(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tiny")
	must.Do(t, policy.TinyModel(dir, 1, 32, 1))
	p := must.Open(policy.ReadCausalLM(dir))(t)
	ids := must.Get(p.Tokenizer.EncodeRaw("abcde", false))(t)
	for _, c := range []struct {
		labels []bool
		want   string
	}{
		{[]bool{false, true, true, false, true}, "a<bc>d<e>"},
		{[]bool{false, false, false, false, false}, "abcde"},
		{[]bool{false, true, true, true, true}, "a<bcde>"},
	} {
		expect.Result(marked(p, policy.Sequence{IDs: ids, Labels: c.labels}, "<", ">"))(t, c.want, "marked")
	}
}

// TestPassTokens: a plan does not promise the memory of a full micro-batch to a step that has fewer tokens.
func TestPassTokens(t *testing.T) {
	for _, test := range []struct{ micro, samples, longest, want int }{
		{16384, 64, 50, 3200},
		{4096, 8, 1024, 4096},
		{4096, 1, 8000, 8000}, // a sample is not divided
		{4096, 8, 0, 4096},    // unknown
	} {
		expect.Same(t, test.want, passTokens(test.micro, test.samples, test.longest), "%+v", test)
	}
}

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
			expect.True(t, (err == nil) == (test.want == "") && (err == nil || strings.Contains(err.Error(), test.want)), "%s: rank %d: %v, want %q", name, rank, err, test.want)
		})
	}
}

func TestWandBOptionsOverrideVariables(t *testing.T) {
	environ := []string{"WANDB_PROJECT=pears", "WANDB_ENTITY=us", "WANDB_API_KEY=secret", "HOME=/root"}
	got := wandbVariables(environ, config.Saving{Project: "apples", RunName: "first"})
	expect.Equal(t, map[string]string{"WANDB_PROJECT": "apples", "WANDB_ENTITY": "us", "WANDB_NAME": "first"}, got)
}

func TestTaskOf(t *testing.T) {
	for row, want := range map[string]string{
		`{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]}`: "chat",
		`{"prompt":"q","completion":"a"}`:                                                 "chat",
		`{"prompt":"q","chosen":"a","rejected":"b"}`:                                      "preference",
		`{"prompt":"q","completion":"a","label":true}`:                                    "preference",
		`{"prompt":"q","answer":"4"}`:                                                     "prompts",
		`{"text":"q","label":"law"}`:                                                      "intent",
		`{"text":"q"}`:                                                                    "",
		`{"question":"q","answer":"4"}`:                                                   "",
	} {
		value := must.Get(dataset.Parse(row))(t)
		got, _ := taskOf(dataset.Record{File: "f", Line: 1, Fields: value.(dataset.Object)})
		expect.True(t, got == want, "%s is for task %q, want %q", row, got, want)
	}
}

// TestSolutionsStop: many are generated before the first step.
func TestSolutionsStop(t *testing.T) {
	task := must.Get(digits.New(digits.Sum, 1, digits.Defaults(digits.Sum)))(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	for _, err := range solutions(ctx, task, envs.Warmup, 100) {
		if n++; n == 3 {
			cancel()
		}
		expect.Same(t, n > 3, errors.Is(err, context.Canceled), "solution %d: %v", n, err)
	}
	expect.Same(t, 4, n, "%d solutions, want 3 and the error", n)
}
