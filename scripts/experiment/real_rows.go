package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/report"
)

// arithmetic is the command of a row of arithmetic: GRPO from the instruct model, no supervised stage. The answer is the
// number alone: the reward accepts no answer that leaves a calculation to do.
const arithmetic = "--task prompts --model smollm2 --dataset WORK/train.jsonl --eval-dataset WORK/test.jsonl --max-new-tokens TOKENS " +
	"--eval-samples 300 --fresh-samples 0 --prompts-per-step 16 --rl-lr-scheduler-type linear --eval-every 60 --num-steps 120 --seed SEED --output-dir OUT"

// arithmeticIn returns the command with a token limit for an answer.
func arithmeticIn(tokens int) string {
	return strings.Replace(arithmetic, "TOKENS", strconv.Itoa(tokens), 1)
}

// scored is the command of a row whose policy chooses among labels: RL from right and wrong alone. With ten labels and more
// a rollout needs more choices than with two.
const scored = "--task text --model smollm2 --policy score --dataset WORK/rows.jsonl --buffer-size 128 --rl-batch-size 64 --rl-episodes 25 --seed SEED --output-dir OUT"

// asked generates answers to the prompts of held-out pairs.
const asked = "generate --input WORK/asked.jsonl --max-new-tokens 256 --temperature 0 "

// preferences are the commands of a row of DPO.
var preferences = []realCommand{
	{asked + "--model smollm2 --output OUT/start.jsonl", answerLength(atStart, "start.jsonl")},
	{"--task preference --model smollm2 --dataset WORK/pairs --max-length 512 --epochs 3 --seed SEED --output-dir OUT", preferred},
	{asked + "--model OUT/preference_rl --output OUT/end.jsonl", answerLength(afterRL, "end.jsonl")},
}

// realRows are the rows, in the order of what they are worth. The instruct model gets no sum of three digits right, so RL has
// no signal and stops: that row goes on from the policy of two digits, TWO.
var realRows = []realRow{
	{"arithmetic, two digits", sums(2), []realCommand{{arithmeticIn(12), answersOf("prompts_rl", atStart)}}},
	{"sum_digits", nil, []realCommand{
		{"eval --task sum_digits --model smollm2 --eval-samples 100 --seed SEED --output OUT/start.json", evaluated(atStart, "start.json")},
		{"--task sum_digits --model smollm2 --seed SEED --output-dir OUT", unseen("sum_digits_rl")},
	}},
	{"CLINC150 domains, generate", clincDomains, []realCommand{
		{"--task text --model smollm2 --mode rl_only --num-steps 1 --dataset WORK/rows.jsonl --eval-samples 200 --seed SEED --output-dir OUT/zero", answersOf("zero/classification_*", atStart)},
		{"--task text --model smollm2 --mode supervised_then_rl --dataset WORK/rows.jsonl --eval-samples 200 --eval-every 40 --seed SEED --output-dir OUT", answersOf("classification_grpo*", afterSFT)},
	}},
	{"preferences, demonstration", demoPairs, preferences},
	{"preferences, Orca", orcaPairs, preferences},
	{"code, one line", nil, []realCommand{
		{"eval --task code --model smollm2 --eval-samples 100 --max-new-tokens 32 --seed SEED --output OUT/start.json", evaluated(atStart, "start.json")},
		{"--task code --model smollm2 --seed SEED --output-dir OUT", unseen("code_rl")},
	}},
	{"CLINC150 domains, score", clincDomains, []realCommand{{scored, compared("classification_*", atStart)}}},
	{"CLINC150 intents, generate", clincIntents, []realCommand{
		{"--task text --model smollm2 --mode rl_only --num-steps 1 --dataset WORK/rows.jsonl --eval-samples 300 --seed SEED --output-dir OUT/zero", answersOf("zero/classification_*", atStart)},
		{"--task text --model smollm2 --mode supervised_then_rl --dataset WORK/rows.jsonl --eval-samples 300 --eval-every 40 --max-steps 300 --seed SEED --output-dir OUT", answersOf("classification_grpo*", afterSFT)},
	}},
	{"MMLU-Pro subjects, generate", mmluSubjects, []realCommand{
		{"--task text --model smollm2 --mode rl_only --num-steps 1 --dataset WORK/rows.jsonl --eval-samples 300 --seed SEED --output-dir OUT/zero", answersOf("zero/classification_*", atStart)},
		{"--task text --model smollm2 --mode supervised_then_rl --dataset WORK/rows.jsonl --eval-samples 300 --eval-every 40 --seed SEED --output-dir OUT", answersOf("classification_grpo*", afterSFT)},
	}},
	{"MMLU-Pro subjects, score", mmluSubjects, []realCommand{{scored, compared("classification_*", atStart)}}},
	{"intent, the defaults", nil, []realCommand{{"--mode supervised_then_rl --seed SEED --output-dir OUT", compared("intent_classifier_rl", afterSFT)}}},
	{"arithmetic, three digits", sums(3), []realCommand{{strings.Replace(arithmeticIn(20), "--model smollm2", "--pretrained-model TWO", 1), answersOf("prompts_rl", atStart)}}},
	{"arithmetic, two-step words", wordProblems, []realCommand{{arithmeticIn(40), answersOf("prompts_rl", atStart)}}},
	{"GSM8K", schoolFiles, []realCommand{
		{schoolTest("smollm2", "start"), evaluated(atStart, "start.json")},
		{"--task gsm8k --model smollm2 --mode supervised_then_rl --algorithm grpo --sym-calc --dataset WORK/train.jsonl --eval-dataset WORK/held.jsonl --eval-samples 200 " +
			"--few-shot 0 --max-steps 910 --learning-rate 1e-3 --lora-r 64 --num-steps 40 --samples-per-prompt 8 --rl-learning-rate 5e-5 --eval-every 20 --fresh-samples 0 --keep last --seed SEED --output-dir OUT", nil},
		{schoolTest("OUT/gsm8k_supervised", "sft"), evaluated(afterSFT, "sft.json")},
		{schoolTest("OUT/gsm8k_rl", "rl"), evaluated(afterRL, "rl.json")},
	}},
}

// schoolTest is the command that measures a model on GSM8K's test set, all of it.
func schoolTest(model, name string) string {
	return "eval --task gsm8k --model " + model + " --dataset WORK/test.jsonl --few-shot 0 --eval-samples 1319 --sym-calc --max-new-tokens 256 --output OUT/" + name + ".json"
}

// answersOf reads the evaluations of a stage before its first and after its last step, which chose nothing.
func answersOf(stage, before string) func(out string) ([]realFigure, error) {
	return func(out string) ([]realFigure, error) {
		scores, err := answerResults(out, stage)
		if err != nil {
			return nil, err
		}
		figures := []realFigure{ofAnswers(before, *scores.Before)}
		if stage[:4] != "zero" {
			figures = append(figures, ofAnswers(afterRL, *scores.Last))
		}
		return figures, nil
	}
}

// unseen reads the evaluation before a stage, and that of its best weights on problems which chose nothing.
func unseen(stage string) func(out string) ([]realFigure, error) {
	return func(out string) ([]realFigure, error) {
		scores, err := answerResults(out, stage)
		if err != nil {
			return nil, err
		}
		return []realFigure{ofAnswers(afterSFT, *scores.Before), ofAnswers(afterRL, *scores.Fresh)}, nil
	}
}

func answerResults(out, stage string) (scores report.AnswerResults, err error) {
	path, err := theOne(filepath.Join(out, stage, "logs", "eval_results.json"))
	if err == nil {
		err = readJSON(path, &scores)
	}
	return scores, err
}

// theOne is the only file that a pattern matches.
func theOne(pattern string) (string, error) {
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) != 1 {
		return "", fmt.Errorf("%s: %d files (error %v)", pattern, len(paths), err)
	}
	return paths[0], nil
}

func ofAnswers(when string, s rl.AnswerScores) realFigure {
	return realFigure{When: when, What: "accuracy", N: s.N, Value: s.Accuracy, Interval: s.Interval}
}

// evaluated reads what eval wrote: one greedy answer to each problem.
func evaluated(when, name string) func(out string) ([]realFigure, error) {
	return func(out string) ([]realFigure, error) {
		var found struct {
			Datasets []struct {
				Rows []struct{ Correct int } `json:"problems_tried"`
			}
		}
		if err := readJSON(filepath.Join(out, name), &found); err != nil {
			return nil, err
		}
		var infos []*envs.Info
		for _, row := range found.Datasets[0].Rows {
			infos = append(infos, &envs.Info{Correct: row.Correct > 0})
		}
		return []realFigure{ofAnswers(when, rl.ScoreAnswers(infos))}, nil
	}
}

// compared reads the test rows of a stage of RL whose policy chooses among labels: before, after, and the change.
func compared(stage, before string) func(out string) ([]realFigure, error) {
	return func(out string) ([]realFigure, error) {
		path, err := theOne(filepath.Join(out, stage, "logs", "comparison.json"))
		if err != nil {
			return nil, err
		}
		var change rl.Comparison
		if err := readJSON(path, &change); err != nil {
			return nil, err
		}
		var figures []realFigure
		for _, point := range []struct {
			when  string
			value float64
		}{{before, change.Accuracy.A}, {afterRL, change.Accuracy.B}} {
			infos := make([]*envs.Info, change.N)
			for i := range infos {
				infos[i] = &envs.Info{Correct: float64(i) < math.Round(point.value*float64(change.N))}
			}
			figures = append(figures, ofAnswers(point.when, rl.ScoreAnswers(infos)))
		}
		gain := change.Accuracy
		return append(figures, realFigure{When: afterRL, What: pairedChange, N: change.N, Value: gain.Difference, Interval: gain.Interval}), nil
	}
}

// answerLength reads the mean number of characters of generated answers.
func answerLength(when, name string) func(out string) ([]realFigure, error) {
	return func(out string) ([]realFigure, error) {
		f, err := os.Open(filepath.Join(out, name))
		if err != nil {
			return nil, err
		}
		defer f.Close()
		var lengths []float64
		for d := json.NewDecoder(f); d.More(); {
			var row struct{ Completion string }
			if err := d.Decode(&row); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			lengths = append(lengths, float64(utf8.RuneCountInString(row.Completion)))
		}
		mean := rl.MeanEstimate(lengths)
		return []realFigure{{When: when, What: answerCharacters, N: len(lengths), Value: mean.Value, Interval: mean.Interval}}, nil
	}
}

// preferred reads the held-out pairs of a run of DPO.
func preferred(out string) ([]realFigure, error) {
	var scores struct{ Best evaluate.PreferenceScores }
	path, err := theOne(filepath.Join(out, "preference_*", "logs", "eval_results.json"))
	if err == nil {
		err = readJSON(path, &scores)
	}
	// Before the first step all implicit rewards are 0: there is no accuracy.
	s := scores.Best
	return []realFigure{{When: afterRL, What: "reward accuracy", N: s.N, Value: s.Accuracy.Value, Interval: s.Accuracy.Interval}}, err
}
