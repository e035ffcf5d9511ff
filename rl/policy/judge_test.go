package policy

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/torch/torchtest"
)

// tinyJudge returns a judge with random weights over characters, and its folder.
func tinyJudge(t *testing.T) (*Judge, string) {
	t.Helper()
	torchtest.NoLeaks(t)
	dir := filepath.Join(t.TempDir(), "judge")
	must.Do(t, TinyModel(dir, 2, 32, 9))
	_, err := NewJudge(dir, "", time.Time{})
	expect.Require(t, err != nil && strings.Contains(err.Error(), "no chat template"), "a judge without a template: error %v", err)
	text := "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
	must.Do(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(text), 0o600))
	j := must.Open(NewJudge(dir, "", time.Time{}))(t)
	return j, dir
}

func question(begin string) envs.Observation {
	return envs.Observation{Messages: []envs.Message{
		{Role: envs.RoleSystem, Content: "You judge."}, {Role: envs.RoleUser, Content: "2+2=4"}, {Role: envs.RoleAssistant, Content: begin},
	}}
}

// TestJudgeChoosesByProbability compares a judge with the same model scoring each choice as a completion.
func TestJudgeChoosesByProbability(t *testing.T) {
	j, _ := tinyJudge(t)
	prompt := must.Get(j.policy.EncodeObservation(question("Answer:")))(t)
	expect.Result(j.policy.Tokenizer.Decode(prompt, false))(t, "[system] You judge.\n[user] 2+2=4\n[assistant] Answer:", "the judge reads")
	for _, choices := range [][]string{{"No", "Yes"}, {"1", "2", "10", "100"}} {
		var prompts, completions [][]int32
		for _, choice := range choices {
			ids := must.Get(j.policy.Tokenizer.EncodeRaw(" "+choice, false))(t)
			prompts, completions = append(prompts, prompt), append(completions, ids)
		}
		scored := must.Get(j.policy.Score(t.Context(), prompts, completions, 1))(t)
		mass, want, sum := make([]float64, len(choices)), make([]float64, len(choices)), 0.0
		for i, s := range scored {
			for _, l := range s.LogProbs {
				mass[i] += float64(l)
			}
			mass[i] = math.Exp(mass[i])
			want[i] = mass[i]
		}
		if len(choices) == 4 {
			want[0] -= mass[2] // 1 and not 10
			want[2] -= mass[3] // 10 and not 100
		}
		for _, w := range want {
			sum += w
		}
		for i := range want {
			want[i] /= sum
		}
		got := must.Get(j.Choose(t.Context(), question("Answer:"), choices))(t)
		expect.Equal(t, want, got, cmpopts.EquateApprox(1e-4, 0), choices)
	}
	expect.Failure(j.Choose(t.Context(), question(strings.Repeat("so ", 700)), []string{"No", "Yes"}))(t, "reads 2048")
}
