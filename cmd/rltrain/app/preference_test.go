package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/must"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/policy"
	"github.com/rltrain/rltrain/rl/policy/policytest"
	"github.com/rltrain/rltrain/rl/report"
	"github.com/rltrain/rltrain/torch/hub"
)

// pairsOfLetters returns n rows whose chosen answer has small letters.
func pairsOfLetters(n int) string {
	var b strings.Builder
	for i := range n {
		letters := "abcdefgh"[i%8 : i%8+1]
		fmt.Fprintf(&b, `{"prompt": "%d: say it! ", "chosen": "%s", "rejected": "%s"}`+"\n", i, letters, strings.ToUpper(letters))
	}
	return b.String()
}

const tinyPreference = ` --dataset TMP/p.jsonl --model tiny --tiny-layers 1 --tiny-hidden 32 --output-dir TMP --logging-steps 5 --validation-share 0.25 --threads 1`

// TestPreferencesEndToEnd trains a policy on pairs, and on single answers.
func TestPreferencesEndToEnd(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	f.write(t, "TMP/p.jsonl", pairsOfLetters(40))
	for _, loss := range []string{"sigmoid,sft --loss-weights 1,0.1 --precompute-ref", "kto"} {
		f.must(t, "", strings.Fields("train --task preference --algorithm dpo --epochs 4 --learning-rate 0.01 --beta 0.5 --loss-type "+loss+tinyPreference)...)
		var v struct {
			Before, Best evaluate.PreferenceScores
			Step         int `json:"best_step"`
		}
		must.Do(t, files.LoadJSON(f.expand("TMP/preference_rl/logs/eval_results.json"), &v))
		expect.True(t, math.Abs(v.Before.Margin.Value) <= 1e-6 && v.Best.Accuracy.Value >= 0.9 && v.Best.Loss < v.Before.Loss, "%s: %s, then %s", loss, v.Before, v.Best)
		f.reports(t, "TMP/preference_rl", v.Before.Loss, v.Best.Loss, v.Best.Accuracy.Value, v.Best.Accuracy.Interval[0], v.Best.Margin.Value, v.Best.Chosen.Value)
	}
	evaluate := "eval --task preference --threads 1 --dataset TMP/p.jsonl --output TMP/e.json --beta 0.5 --model "
	f.must(t, "", strings.Fields(evaluate+"TMP/preference_rl --reference TMP/tiny-chat-1x32-seed42 --max-samples 3 --output-rows TMP/three.jsonl")...)
	three := f.pairRows(t, "TMP/three.jsonl")
	if len(three) != 3 || three[0].Row != f.expand("TMP/p.jsonl:1") || three[0].Prompt != "0: say it! " || !strings.HasPrefix(*three[0].Chosen, "a") || !strings.HasPrefix(*three[0].Rejected, "A") ||
		math.Abs(*three[0].RewardChosen-*three[0].RewardRejected-three[0].Margin) > 1e-9 || *three[0].LogPChosen >= 0 || three[0].Correct != (three[0].Margin > 0) {
		t.Errorf("%+v", three)
	}
	f.must(t, "", strings.Fields(evaluate+"TMP/preference_rl --reference TMP/tiny-chat-1x32-seed42")...)
	var v preferenceResults
	must.Do(t, files.LoadJSON(f.expand("TMP/e.json"), &v))
	expect.True(t, v.N == 40 && v.Accuracy.Value >= 0.9 && v.Margin.Value > 0 && v.Chosen.Value > v.Rejected.Value && v.PreferenceScores.Loss <= 0.5, "%+v", v)
	// Pairs split into single rows, which the trained model should tell apart.
	f.must(t, "", strings.Fields(evaluate+"TMP/preference_rl --reference TMP/tiny-chat-1x32-seed42 --loss-type kto --output-rows TMP/single.jsonl")...)
	single := f.pairRows(t, "TMP/single.jsonl")
	expect.True(t, len(single) == 80 && single[0].Rejected == nil && single[1].Chosen == nil && *single[1].RewardRejected == -single[1].Margin, "%+v", single[:2])
	must.Do(t, files.LoadJSON(f.expand("TMP/e.json"), &v))
	expect.True(t, v.N == 80 && v.Accuracy.Value >= 0.9 && v.Margin.Value > 0 && v.PreferenceScores.Loss <= 0.45, "%+v", v)
	f.usages(t, "", map[string]string{
		evaluate + "TMP/preference_rl":                                 "is not an adapter; pass --reference DIR, which loss sigmoid needs",
		evaluate + "TMP/preference_rl --loss-type ppo":                 `--loss-type: "ppo" is not one of`,
		evaluate + "TMP/preference_rl --loss-type simpo --reference x": "--reference: loss simpo uses no reference policy",
		evaluate + "TMP/preference_rl --n 3":                           "--n: does not apply to task preference",
		"eval --task preference --model TMP/preference_rl":             "needs --model DIR and --dataset FILE",
	})
	code, stdout, stderr := f.rltrain("", strings.Fields("generate --model TMP/preference_rl --input TMP/preference_rl/logs/try.jsonl --max-new-tokens 2")...)
	expect.True(t, code == 0 && stdout != "", "exit code %d, %q, %q", code, stdout, stderr)
}

// TestMovingReferenceOfPairs: a reference that is the policy itself leaves every pair at log 2.
func TestMovingReferenceOfPairs(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	f.write(t, "TMP/p.jsonl", pairsOfLetters(40))
	f.must(t, "", strings.Fields("train --task preference --algorithm dpo --epochs 2 --batch-size 8 --learning-rate 0.01 --sync-ref-model --ref-model-mixup-alpha 1 --ref-model-sync-steps 1"+tinyPreference)...)
	rows := must.Get(report.ReadMetrics(f.expand("TMP/preference_rl/logs/metrics.jsonl")))(t)
	losses := 0
	for _, row := range rows {
		if loss, ok := row["loss"].(float64); ok {
			losses++
			expect.True(t, math.Abs(loss-math.Ln2) <= 1e-6, "loss %v, want log 2", loss)
		}
	}
	expect.True(t, losses >= 2, "%d losses: %v", losses, rows)
	f.usage(t, "--precompute-ref: applies only with --sync-ref-model=false",
		strings.Fields("train --task preference --algorithm dpo --sync-ref-model --precompute-ref"+tinyPreference)...)
}

// TestNothingGained: a run that did not beat its start saves no adapter, and says where the trained one is.
func TestNothingGained(t *testing.T) {
	f := folders{tmp: t.TempDir()}
	f.write(t, "TMP/p.jsonl", pairsOfLetters(40))
	f.must(t, "", strings.Fields("train --task preference --algorithm dpo --epochs 1 --learning-rate 1e-12 --tuning lora"+tinyPreference)...)
	logged := must.Read(t, f.expand("TMP/preference_rl/logs/training_log.txt"))
	last := f.expand("TMP/preference_rl/checkpoints/checkpoint-4")
	code, _, stderr := f.rltrain("", "generate", "--model", "TMP/preference_rl", "--input", "TMP/preference_rl/logs/try.jsonl")
	for _, want := range []string{"its run ended: Training did not improve on the start on 10 held-out rows", "no adapter was saved", last} {
		expect.True(t, code == 1 && strings.Contains(stderr, want), "exit code %d, %q; want …%s…; the log:\n%s", code, stderr, want, logged)
	}
	if code, stdout, stderr := f.rltrain("", "generate", "--model", last, "--input", "TMP/preference_rl/logs/try.jsonl", "--max-new-tokens", "2"); code != 0 || stdout == "" {
		t.Errorf("exit code %d, %q", code, stderr)
	}
}

// pairRows reads --output-rows of preferences.
func (f folders) pairRows(t *testing.T, path string) (rows []pairRow) {
	t.Helper()
	for r, err := range dataset.Records(f.expand(path)) {
		must.Do(t, err)
		data, err := json.Marshal(r.Fields)
		var row pairRow
		must.Do(t, errors.Join(err, json.Unmarshal(data, &row)))
		rows = append(rows, row)
	}
	return rows
}

// reports writes a run's report, which must show the figures.
func (f folders) reports(t *testing.T, dir string, figures ...float64) {
	t.Helper()
	f.must(t, "", "report", dir)
	page := must.Get(os.ReadFile(f.expand(dir + "/report.html")))(t)
	for _, v := range figures {
		want := fmt.Sprintf("%.4f", v)
		expect.True(t, strings.Contains(string(page), want), "the report of %s has no %s", dir, want)
	}
}

// TestRewardModelEndToEnd trains a reward model and uses it as the reward of a policy.
func TestRewardModelEndToEnd(t *testing.T) {
	f := folders{tmp: t.TempDir(), base: policytest.Encoder(t)}
	var b strings.Builder
	for i := range 60 {
		fmt.Fprintf(&b, `{"prompt": "is the %s a ?", "chosen": "law", "rejected": "wave", "margin": %d}`+"\n", []string{"cat", "dog", "horse"}[i%3], i%2)
	}
	f.write(t, "TMP/p.jsonl", strings.Join(strings.SplitAfter(b.String(), "\n")[:60], ""))
	f.must(t, "", strings.Fields("train --mode reward_model --data_path TMP/p.jsonl --model BASE --learning_rate 0.01 --epochs 2 --batch-size 8 --validation-share 0.3 --threads 1 --center-rewards-coefficient 0.01 --output-dir TMP")...)
	var v struct {
		Before, Best evaluate.RewardScores
		Step         int                 `json:"best_step"`
		Rule         evaluate.LengthRule `json:"length_rule"`
	}
	must.Do(t, files.LoadJSON(f.expand("TMP/preference_reward/logs/eval_results.json"), &v))
	expect.True(t, v.Best.Accuracy >= 0.95 && v.Best.N == 18 && v.Rule.Accuracy.Value == 0.5, "%s, %s", v.Best, v.Rule)
	f.reports(t, "TMP/preference_reward", v.Before.Loss, v.Best.Loss, v.Best.Accuracy, v.Best.Interval[0], v.Best.Margin.Value, v.Best.MeanReward)
	m := must.Get(policy.LoadRewardModel(t.Context(), &hub.Client{}, f.expand("TMP/preference_reward")))(t)
	m.Close()
	f.must(t, "", strings.Fields("eval --task preference --threads 1 --model TMP/preference_reward --dataset TMP/p.jsonl --output TMP/e.json --output-rows TMP/rows.jsonl")...)
	rows := f.pairRows(t, "TMP/rows.jsonl")
	if len(rows) != 60 || !strings.Contains(*rows[0].Chosen, "law") || !strings.Contains(*rows[0].Rejected, "wave") || rows[0].LogPChosen != nil || rows[0].Margin != *rows[0].RewardChosen-*rows[0].RewardRejected {
		t.Errorf("%+v", rows)
	}
	f.must(t, "", "merge", "--model", "TMP/preference_reward", "--output-dir", "TMP/merged")
	f.must(t, "", strings.Fields("eval --task preference --threads 1 --model TMP/merged --dataset TMP/p.jsonl --output TMP/m.json")...)
	var merged rewardResults
	err := files.LoadJSON(f.expand("TMP/m.json"), &merged)
	expect.True(t, err == nil && merged.Accuracy >= 0.95, "merged: %+v, %v", merged, err)
	var all rewardResults
	err = files.LoadJSON(f.expand("TMP/e.json"), &all)
	expect.True(t, err == nil && all.N == 60 && all.Accuracy >= 0.95, "%+v, %v", all, err)
	f.questions(t, "TMP/q.jsonl", 20)
	f.must(t, "", strings.Fields(`train --task prompts --dataset TMP/q.jsonl --model tiny --tiny-layers 1 --tiny-hidden 32 --max-new-tokens 2 --output-dir TMP
		--eval-samples 4 --fresh-samples 0 --num-steps 2 --eval-every 2 --prompts-per-step 2 --samples-per-prompt 4 --threads 1 --algorithm dpo --beta 0.3 --reward model:TMP/preference_reward,expr:'length'`)...)
}

func TestPreferencesThatTeachNothing(t *testing.T) {
	f := folders{tmp: t.TempDir(), base: policytest.Encoder(t)}
	dpo := "train --task preference --algorithm dpo" + tinyPreference
	for _, test := range []struct{ name, rows, args, want string }{
		{"equal", `{"prompt": "a", "chosen": "b", "rejected": "b"}`, dpo, "p.jsonl:1: 0 have no token of a response within 1024 tokens (raise max_length), 1 have the same response twice"},
		{"too long", `{"prompt": "a long prompt", "chosen": "b", "rejected": "c"}`, dpo + " --max-length 5", "1 have no token of a response within 5 tokens"},
		{"one class", `{"prompt": "a", "completion": "b", "label": true}`, dpo + " --loss-type kto", "1 of 1 responses are good; the loss needs good and bad ones"},
		{"unpaired", `{"prompt": "a", "completion": "b", "label": true}`, dpo, "not a data set with preference"},
		{"other prompts", `{"chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "rejected": [{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]}`, dpo, "start with different messages"},
		{"margin", `{"prompt": "a", "chosen": "law", "rejected": "cat", "margin": "much"}`, "train --mode reward_model --dataset TMP/p.jsonl --model BASE --output-dir TMP", `p.jsonl:1: column "margin": much is not a number`},
		{"long for an encoder", `{"prompt": "the cat is a dog the cat is a dog", "chosen": "law", "rejected": "cat"}`, "train --mode reward_model --dataset TMP/p.jsonl --model BASE --output-dir TMP", "1 are longer than 12 tokens"},
		{"one ranked", `{"prompt": "a", "ranked": ["law"]}`, "train --mode reward_model --dataset TMP/p.jsonl --model BASE --output-dir TMP", "1 responses; want at least two"},
		{"no reference", `{"prompt": "a", "chosen": "b", "rejected": "c"}` + "\n" + `{"prompt": "a", "chosen": "b", "rejected": "d"}`, dpo + " --loss-type simpo --precompute-ref", "loss simpo has no reference"},
	} {
		f.write(t, "TMP/p.jsonl", test.rows+"\n")
		f.usage(t, test.want, strings.Fields(test.args)...)
	}
}
