package policy

import (
	"encoding/json"
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
	"github.com/rltrain/rltrain/torch/hub"
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
		expect.Equal(t, want, must.Get(j.Choose(t.Context(), question("Answer:"), choices))(t), cmpopts.EquateApprox(1e-4, 0), choices)
	}
	expect.Failure(j.Choose(t.Context(), question(strings.Repeat("so ", 700)), []string{"No", "Yes"}))(t, "reads 2048")
}

// cutSteps is a completion of these steps, and their ends.
func cutSteps(o envs.Observation, before, separator string, steps ...string) (c envs.Completion, ends []int) {
	for i, step := range steps {
		if i > 0 {
			c.Generated += separator
			ends = append(ends, len(c.Generated))
		}
		c.Generated += step
	}
	c.Observation, c.Text = o, before+c.Generated
	return c, append(ends, len(c.Generated))
}

// TestProcessModelOfTRL: the scores are those of transformers (scripts/fixtures/process.py) for a text and for a message, alone and
// together.
func TestProcessModelOfTRL(t *testing.T) {
	torchtest.NoLeaks(t)
	m := must.Open(LoadRewardModel(t.Context(), &hub.Client{}, "testdata/process"))(t)
	var cases []struct {
		Prompt, Separator string
		Steps             []string
		Scores            []float64
	}
	must.Do(t, json.Unmarshal(must.Get(os.ReadFile("testdata/process/scores.json"))(t), &cases))
	near := cmpopts.EquateApprox(0, 1e-6)
	var together []envs.Completion
	var ends [][]int
	var want [][]float64
	for i, c := range cases {
		o := envs.Observation{Text: c.Prompt}
		if i%2 == 0 {
			o = envs.Observation{Messages: []envs.Message{{Role: envs.RoleUser, Content: c.Prompt}}}
		}
		x, at := cutSteps(o, "", c.Separator, c.Steps...)
		scores, errs := m.Steps(t.Context(), []envs.Completion{x}, [][]int{at}, c.Separator)
		must.Do(t, errs[0])
		expect.Equal(t, c.Scores, scores[0], near, c.Prompt)
		if c.Separator == "\n" {
			together, ends, want = append(together, x), append(ends, at), append(want, c.Scores)
		}
	}
	long, at := cutSteps(envs.Observation{Text: "9"}, "", "\n", strings.Repeat("9.8 or 9.11?", 60), "9")
	scores, errs := m.Steps(t.Context(), append(together, long), append(ends, at), "\n")
	expect.Equal(t, want, scores[:2], near, "together")
	expect.Error(t, errs[2], "longer than the 128 tokens")
	expect.Failure(m.Encode(Answered(long)))(t, "process reward model")
	wrong := must.Open(LoadRewardModel(t.Context(), &hub.Client{}, "testdata/process#LABEL_0"))(t)
	x, at := cutSteps(envs.Observation{Text: cases[1].Prompt}, "", "\n", cases[1].Steps...)
	scores, _ = wrong.Steps(t.Context(), []envs.Completion{x}, [][]int{at}, "\n")
	expect.True(t, math.Abs(scores[0][0]-(1-cases[1].Scores[0])) < 1e-6, "LABEL_0: %v", scores)
}

// TestSequenceClassifierOfTransformers: a language model with a score layer is read at its last token, and one without is refused.
func TestSequenceClassifierOfTransformers(t *testing.T) {
	torchtest.NoLeaks(t)
	dir := t.TempDir()
	must.Do(t, os.CopyFS(dir, os.DirFS("testdata/process")))
	name := filepath.Join(dir, "config.json")
	config := string(must.Get(os.ReadFile(name))(t))
	must.Do(t, os.WriteFile(name, []byte(strings.Replace(config, "ForTokenClassification", "ForSequenceClassification", 1)), 0o600))
	m := must.Open(LoadRewardModel(t.Context(), &hub.Client{}, dir+"#LABEL_1"))(t)
	scores := must.Get(m.Scores(t.Context(), [][]int32{{0, 56, 54}, {0, 56}}))(t)
	expect.True(t, scores[0] != scores[1], "the last token does not count: %v", scores)
	must.Do(t, os.WriteFile(name, []byte(strings.Replace(config, "ForTokenClassification", "ForCausalLM", 1)), 0o600))
	expect.Failure(LoadRewardModel(t.Context(), &hub.Client{}, dir))(t, "without a score layer")
}

// TestStepsAreReadOnce: a reward model on a language model reads a completion once. The score of a step is that of the text up to its
// last token; that of the last step is the score of the completion.
func TestStepsAreReadOnce(t *testing.T) {
	torchtest.NoLeaks(t)
	plain, chat := filepath.Join(t.TempDir(), "tiny"), filepath.Join(t.TempDir(), "chat")
	must.Do(t, TinyModel(plain, 2, 32, 3))
	must.Do(t, TinyChatModel(chat, 2, 32, 3))
	for dir, o := range map[string]envs.Observation{
		plain: {Text: "one and two: "},
		chat:  {Messages: []envs.Message{{Role: envs.RoleUser, Content: "b c d\ne"}}},
	} {
		m := must.Open(NewRewardModel(Config{Dir: dir, R: 4, Alpha: 8, Seed: 5, MaxLength: 200}))(t)
		steps := []string{"b c", "  d", "b c", "e"}
		x, ends := cutSteps(o, "before ", " \n\n", steps...)
		marks := must.Get(m.mark(x, ends, "\n"))(t)
		expect.Require(t, len(marks) == 1 && len(marks[0].rows) == 4, "marks %v", marks)
		scores, errs := m.Steps(t.Context(), []envs.Completion{{Text: "c", Generated: "c", Observation: o}, x}, [][]int{{1}, ends}, "\n")
		must.Do(t, errs[1])
		for k, row := range marks[0].rows {
			prefix := marks[0].ids[:row+1]
			alone := must.Get(m.Scores(t.Context(), [][]int32{prefix}))(t)
			expect.True(t, math.Abs(alone[0]-scores[1][k]) < 1e-5, "step %d: %v, alone %v", k, scores[1][k], alone[0])
			text := must.Get(m.Tokenizer.Decode(prefix, true))(t)
			upTo := "before " + strings.TrimRight(x.Generated[:ends[k]], " \n")
			expect.True(t, k == 3 || strings.HasSuffix(text, upTo), "step %d: %q, want %q at its end", k, text, upTo)
		}
		whole := must.Get(m.Encode(Answered(x)))(t)
		expect.Equal(t, whole, marks[0].ids)
		expect.Same(t, len(whole)-1, marks[0].rows[3], "row of the last step")
	}
}

// TestSharesOfUnlikelyTexts: float64 lacks the probabilities themselves.
func TestSharesOfUnlikelyTexts(t *testing.T) {
	near := cmpopts.EquateApprox(1e-12, 0)
	expect.Equal(t, []float64{0.75, 0.25}, sharesOf([][]int32{{1}, {2}}, []float64{math.Log(3) - 800, -800}), near)
	expect.Equal(t, []float64{0.5, 0.25, 0.25}, sharesOf([][]int32{{1}, {1, 2}, {1, 2, 3}}, []float64{-800, math.Log(0.5) - 800, math.Log(0.25) - 800}), near)
	expect.Equal(t, []float64{1 / (1 + math.Exp(-2)), 1 / (1 + math.Exp(2))}, Softmax([]float32{1000, 999}, 0.5), near)
}
