package app

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/rl/run"
)

// problems writes n problems in GSM8K's format, numbered from first.
func (f folders) problems(t *testing.T, name string, first, n int) {
	t.Helper()
	f.rows(t, name, n, func(i int) string {
		i += first
		return fmt.Sprintf(`{"question": "%d+%d?", "answer": "<<%d+%d=%d>>%d\n#### %d"}`, i, i, i, i, 2*i, 2*i, 2*i)
	})
}

// school is a model folder, a judge and problems.
func school(t *testing.T) folders {
	t.Helper()
	f := tiny(t)
	must.Do(t, policy.TinyModel(f.expand("TMP/judge"), 1, 32, 8))
	f.write(t, "TMP/judge/chat_template.jinja", "{% for m in messages %}{{ m.content }}\n{% endfor %}")
	f.problems(t, "TMP/train.jsonl", 0, 20)
	f.problems(t, "TMP/test.jsonl", 50, 6)
	f.write(t, "TMP/system.txt", "Think first.\n")
	return f
}

// learn trains with the options and returns the step rows.
func (f folders) learn(t *testing.T, options ...string) []report.Row {
	t.Helper()
	f.must(t, "", options...)
	dir := f.expand(options[slices.Index(options, "--output-dir")+1])
	all := must.Get(report.ReadMetrics(filepath.Join(dir, "gsm8k_rl", "logs", "metrics.jsonl")))(t)
	for _, row := range all { // the rest depends on the clock
		maps.DeleteFunc(row, func(name string, _ any) bool { return strings.HasPrefix(name, "time/") })
	}
	return all
}

// short makes a gsm8k run take a fraction of a second; a judge scores it, because random weights never
// give a correct answer.
func short(more ...string) []string {
	return append([]string{
		"--task", "gsm8k", "--model", "MODEL", "--tuning", "full", "--dataset", "TMP/train.jsonl", "--few-shot", "1", "--judge", "TMP/judge",
		"--num-steps", "2", "--prompts-per-step", "3", "--max-line-tokens", "6", "--max-trajectory-steps", "2", "--max-new-tokens", "8",
		"--eval-samples", "3", "--eval-every", "1", "--num-update-steps", "6", "--rl-batch-size", "3", "--rl-learning-rate", "0.01",
		"--ref-update-every", "1",
	}, more...)
}

// drop removes options with a value.
func drop(options []string, names ...string) []string {
	options = slices.Clone(options)
	for _, name := range names {
		at := slices.Index(options, name)
		options = slices.Delete(options, at, at+2)
	}
	return options
}

// with changes or adds options; a switch has the value "".
func with(options []string, changed ...string) []string {
	options = slices.Clone(options)
	for i := 0; i < len(changed); i += 2 {
		if at := slices.Index(options, changed[i]); at >= 0 {
			options[at+1] = changed[i+1]
		} else if changed[i+1] == "" {
			options = append(options, changed[i])
		} else {
			options = append(options, changed[i:i+2]...)
		}
	}
	return options
}

// TestEveryOptionChangesWhatItShould changes one option at a time and names a metric that must change with it.
func TestEveryOptionChangesWhatItShould(t *testing.T) {
	f := school(t)
	replayed := f.learn(t, short("--output-dir", "TMP/base")...)
	whole := drop(short("--output-dir", "TMP/whole"),
		"--max-line-tokens", "--max-trajectory-steps", "--num-update-steps", "--rl-batch-size", "--ref-update-every")
	whole = with(whole, "--algorithm", "grpo", "--samples-per-prompt", "4")
	grouped := f.learn(t, whole...)
	for i, test := range []struct {
		figure  string
		changed []string
		dropped []string
	}{
		{"eval rows", []string{"--eval-every", "2"}, nil},
		{"num_tokens", []string{"--few-shot", "2"}, nil},
		{"num_tokens", []string{"--few-shot-dataset", "TMP/test.jsonl"}, nil},
		{"num_tokens", []string{"--system-prompt", "TMP/system.txt"}, nil},
		{"num_tokens", []string{"--annotate=false", ""}, nil},
		{"completions/max_length", []string{"--max-line-tokens", "3"}, nil},
		{"episode_length", []string{"--max-trajectory-steps", "1"}, nil},
		{"loss", []string{"--reinforce-loss", "reinforce"}, []string{"--ref-update-every"}},
		{"loss", []string{"--reinforce-loss", "distiller"}, nil},
		{"episode_length", []string{"--step-mode", "whole"}, []string{"--max-line-tokens", "--max-trajectory-steps"}},
		{"steps", []string{"--num-steps", "1"}, nil},
		{"buffer/size", []string{"--prompts-per-step", "2"}, nil},
		{"entropy", []string{"--temperature", "0.5"}, nil},
		{"loss", []string{"--kl-coef", "9"}, nil},
		{"kl/k1", []string{"--ref-update-every", "0"}, nil},
		{"kl/k1", []string{"--reference-model", "TMP/judge"}, []string{"--ref-update-every"}},
		{"updates", []string{"--rl-batch-size", "6"}, nil},
		{"updates", []string{"--num-update-steps", "3"}, nil},
		{"buffer/size", []string{"--buffer-size", "4"}, nil},
		{"loss", []string{"--return-max", "0.1"}, nil},
		{"loss", []string{"--return-min", "5"}, nil},
		{"loss", []string{"--gamma", "0"}, nil},
		{"learning_rate", []string{"--rl-learning-rate", "0.02"}, nil},
		{"learning_rate", []string{"--rl-lr-scheduler-type", "constant"}, nil},
		{"learning_rate", []string{"--rl-warmup-ratio", "0.5"}, nil},
		{"loss", []string{"--rl-max-grad-norm", "1e-9"}, nil},
		{"reward", []string{"--reward", "aspects"}, nil},
		{"reward", []string{"--reward", "score=0.5"}, nil},
		{"reward", []string{"--reward", "score,expr:'length'=0.1"}, nil},
		{"reward", []string{"--seed", "3"}, nil},
		{"none", []string{"--gradient-checkpointing", ""}, nil},
		{"none", []string{"--tokens-per-micro-batch", "100000"}, nil},
		{"none", []string{"--logging-steps", "1"}, nil},
	} {
		t.Run(strings.Join(test.changed, " "), func(t *testing.T) {
			options := drop(short("--output-dir", fmt.Sprintf("TMP/run%d", i)), test.dropped...)
			differs(t, test.figure, replayed, f.learn(t, with(options, test.changed...)...))
		})
	}
	for i, test := range []struct {
		figure  string
		changed []string
	}{
		{"loss", []string{"--algorithm", "rloo"}},
		{"loss", []string{"--algorithm", "ppo"}},
		{"baseline/mean", []string{"--algorithm", "reinforce", "--reinforce-loss", "on_policy"}},
		{"kl/k3", []string{"--kl-coef", "0.25"}},
		{"reward", []string{"--samples-per-prompt", "3"}},
		{"completions/max_length", []string{"--max-new-tokens", "5"}},
		{"completions/mean_length", []string{"--step-mode", "line", "--max-line-tokens", "5", "--max-trajectory-steps", "3"}},
		{"none", []string{"--num-generators", "1"}},
	} {
		t.Run(strings.Join(test.changed, " "), func(t *testing.T) {
			options := with(whole, append([]string{"--output-dir", fmt.Sprintf("TMP/whole%d", i)}, test.changed...)...)
			differs(t, test.figure, grouped, f.learn(t, options...))
		})
	}
}

func differs(t *testing.T, figure string, base, rows []report.Row) {
	t.Helper()
	switch figure {
	case "none":
		expect.Equal(t, base, rows, "rows")
		return
	case "steps", "eval rows":
		expect.True(t, len(rows) < len(base), "%d rows, %d before", len(rows), len(base))
		return
	}
	for i := range min(len(base), len(rows)) {
		if !cmp.Equal(base[i][figure], rows[i][figure]) {
			return
		}
	}
	t.Errorf("%s is the same in all rows: %v", figure, rows)
}

// TestProblemsEndToEnd trains both stages, starts from a replay buffer, and keeps the settings the run started with.
func TestProblemsEndToEnd(t *testing.T) {
	f := school(t)
	t.Setenv("WANDB_PROJECT", "apples")
	t.Setenv("WANDB_API_KEY", "secret")
	options := []string{
		"--task", "gsm8k", "--model", "tiny", "--tiny-layers", "1", "--tiny-hidden", "32", "--mode", "supervised_then_rl", "--dataset", "TMP/train.jsonl",
		"--eval-dataset", "TMP/test.jsonl", "--few-shot", "0", "--sym-calc", "--max-steps", "3", "--batch-size", "4", "--num-steps", "1",
		"--prompts-per-step", "4", "--max-line-tokens", "12", "--max-trajectory-steps", "3", "--max-new-tokens", "20", "--eval-samples", "6",
		"--eval-stepwise", "--eval-temperature", "0.6", "--num-update-steps", "4", "--rl-batch-size", "4",
		"--buffer-cache", "TMP/buffer.jsonl", "--cache-buffer", "--output-dir", "TMP/both",
	}
	f.must(t, "", options...)
	record := must.Into[run.Record](t, files.LoadJSON, f.expand("TMP/both/gsm8k_rl/run.json"))
	expect.Equal(t, map[string]string{"WANDB_PROJECT": "apples"}, record.Environment, "environment")
	scores := must.Into[struct{ Before, After, Last, Fresh *rl.AnswerScores }](t, files.LoadJSON, f.expand("TMP/both/gsm8k_rl/logs/eval_results.json"))
	expect.True(t, scores.Before.N == 6 && scores.After.N == 6 && scores.Last.N == 6 && scores.Fresh == nil, "%+v", scores)
	rows := f.learn(t, with(drop(options, "--model", "--tiny-layers", "--tiny-hidden", "--max-steps", "--batch-size"), "--mode", "rl_only",
		"--pretrained-model", "TMP/both/gsm8k_supervised", "--load-buffer", "", "--output-dir", "TMP/more")...)
	size := rows[1]["buffer/size"].(float64)
	expect.True(t, size > 4, "%v turns after a start with a buffer", size)
	must.Get(os.Stat(f.expand("TMP/buffer_updated.jsonl")))(t)
	f.problems(t, "TMP/overlap.jsonl", 15, 3)
	for _, test := range []struct {
		want    string
		changed []string
	}{
		{"share the problem", []string{"--eval-dataset", "TMP/overlap.jsonl"}},
		{"no such file", []string{"--dataset", "TMP/none.jsonl"}},
		{"--system-prompt", []string{"--system-prompt", "TMP/none.txt"}},
		{"--judge", []string{"--judge", "MODEL"}},
		{"few-shot examples", []string{"--few-shot", "900"}},
	} {
		f.refused(t, test.want, with(options, append([]string{"--output-dir", "TMP/wrong"}, test.changed...)...)...)
	}
	expect.Fails(os.Stat(f.expand("TMP/wrong/gsm8k_rl")))(t, "a run that failed to start left its folder")
}
