package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/evaluate"
	"github.com/rltrain/rltrain/rl/report"
)

// preferenceExperiment learns from preferences with a known truth: of two completions to a sum of digits, one is wrong. A
// reward model and DPO-like losses start from a model after some SFT. The result is greedy accuracy on unseen test problems.
type preferenceExperiment struct {
	*experiment
	real, only string
	results    preferenceResults
}

// preferenceResults is the content of the results file.
type preferenceResults struct {
	Runs []preferenceRun `json:"runs"`
	Real *realPairs      `json:"orca_dpo,omitempty"`
}

// preferenceRun is one method of learning from the pairs; for the reward model it has the figures on held-out pairs.
type preferenceRun struct {
	Way        string                 `json:"way"`
	Seed       int                    `json:"seed"`
	CPUSeconds float64                `json:"cpu_seconds"`
	Before     float64                `json:"accuracy_before,omitempty"`
	After      float64                `json:"accuracy_after,omitempty"`
	Difference *rl.Difference         `json:"difference,omitempty"` // of greedy accuracy, paired by problem
	Reward     *evaluate.RewardScores `json:"reward_model,omitempty"`
	Teacher    *float64               `json:"accuracy_teacher,omitempty"`
}

// realPairs is a reward model trained on pairs of human data.
type realPairs struct {
	Seeds      []evaluate.RewardScores `json:"seeds"`
	CPUSeconds []float64               `json:"cpu_seconds"`
}

// preferenceWays are the methods, by options. BASE is the policies' initial model, PAIRS its pairs, MANY more of them, JUDGE
// the reward model's initial model, and REWARD the reward model.
var preferenceWays = []struct {
	name    string
	options string
}{
	{"reward model", "--mode reward_model --model JUDGE --dataset MANY --validation-share 0.25 --epochs 3 --batch-size 16 --learning-rate 0.002 --lora-r 32 --lora-alpha 64"},
	{"sigmoid", onPairs + "sigmoid,sft --loss-weights 1,0.2 --beta 0.1"},
	{"ipo", onPairs + "ipo,sft --loss-weights 1,1 --beta 0.5"},
	{"simpo", onPairs + "simpo,sft --loss-weights 1,1 --beta 2"},
	{"kto", onPairs + "kto --beta 0.1"},
	{"RL, right answers", rlOnSums + "accuracy"},
	{"RL, reward model", rlOnSums + "model:REWARD"},
	{"RL, both", rlOnSums + "accuracy,model:REWARD=0.2"},
	{distillation, distilled},
}

const (
	onPairs  = "--algorithm dpo --pretrained-model BASE --dataset PAIRS --epochs 2 --batch-size 64 --learning-rate 0.0001 --loss-type "
	easySums = "--digits-max 99 --digits-count 2"
	rlOnSums = "--task sum_digits --mode rl_only --pretrained-model BASE " + easySums + " --algorithm grpo --num-steps 20 --eval-every 20 --prompts-per-step 32 --eval-samples 50 --fresh-samples 0 --reward "

	baseFolder = "sum_digits_supervised"
)

func (e *preferenceExperiment) run(ctx context.Context) error {
	if err := files.LoadJSON(e.out, &e.results); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, seed := range e.eachSeed() {
		dir := filepath.Join(e.work, strconv.Itoa(seed))
		for _, way := range preferenceWays {
			if e.only != "" && e.only != way.name || slices.ContainsFunc(e.results.Runs, func(r preferenceRun) bool { return r.Way == way.name && r.Seed == seed }) {
				continue
			}
			begin, learn := e.base, e.learn
			if way.name == distillation {
				begin, learn = e.teacher, e.distil
			}
			if err := begin(ctx, dir, seed); err != nil {
				return err
			}
			if strings.Contains(way.options, "REWARD") && !made(rewardIn(dir)) { // the results have its row but its folder is gone: train it again
				if _, err := e.learn(ctx, dir, seed, preferenceWays[0].name, preferenceWays[0].options); err != nil {
					return fmt.Errorf("reward model, seed %d: %w", seed, err)
				}
			}
			r, err := learn(ctx, dir, seed, way.name, way.options)
			if err != nil {
				return fmt.Errorf("%s, seed %d: %w", way.name, seed, err)
			}
			fmt.Printf("%-18s seed %d  %s\n", r.Way, r.Seed, r.figures())
			e.results.Runs = append(e.results.Runs, r)
			if err := save(e.out, e.results); err != nil {
				return err
			}
		}
	}
	return e.onReal(ctx)
}

// base trains the initial models and writes the pairs, once per seed.
func (e *preferenceExperiment) base(ctx context.Context, dir string, seed int) error {
	if made(filepath.Join(dir, "pairs", "validation.jsonl")) {
		return nil
	}
	if err := e.imitate(ctx, dir, seed, "--tiny-hidden 64 --slip-share 0.6 --max-steps 1400"); err != nil {
		return err
	}
	if err := e.imitate(ctx, judgeIn(dir), seed, "--tiny-layers 4 --tiny-hidden 64 --max-steps 900"); err != nil {
		return err
	}
	return e.writeOwnPairs(ctx, dir, filepath.Join(dir, baseFolder), seed)
}

// judgeIn is the folder of the reward model's initial model. It is trained only on correct solutions, because two layers do
// not learn to compare an answer with the sums before it.
func judgeIn(dir string) string { return filepath.Join(dir, "judge") }

// rewardIn is the folder of the reward model.
func rewardIn(dir string) string { return filepath.Join(dir, "reward_model", "preference_reward") }

// imitate trains a model on demonstrations, unless it exists.
func (e *preferenceExperiment) imitate(ctx context.Context, dir string, seed int, options string) error {
	if made(filepath.Join(dir, baseFolder, "model.safetensors")) {
		return nil
	}
	_, _, err := command(ctx, e.program, append(strings.Fields("--task sum_digits --mode supervised --threads 1 --warmup-check-every 0 --eval-samples 50 "+easySums+" "+options),
		"--seed", strconv.Itoa(seed), "--output-dir", dir)...)
	return err
}

func made(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// learn trains with one method and evaluates the result.
func (e *preferenceExperiment) learn(ctx context.Context, dir string, seed int, name, options string) (preferenceRun, error) {
	r := preferenceRun{Way: name, Seed: seed}
	base := filepath.Join(dir, baseFolder)
	out := filepath.Join(dir, folderOf(name))
	args := strings.Fields(strings.NewReplacer("BASE", base, "PAIRS", filepath.Join(dir, "pairs"), "MANY", filepath.Join(dir, "many"),
		"JUDGE", filepath.Join(judgeIn(dir), baseFolder), "REWARD", rewardIn(dir)).Replace(options))
	var err error
	if r.CPUSeconds, _, err = command(ctx, e.program, append(args, "--threads", "1", "--seed", strconv.Itoa(seed), "--output-dir", out)...); err != nil {
		return r, err
	}
	if name == preferenceWays[0].name {
		var scores struct{ Before, Best evaluate.RewardScores }
		err := readJSON(filepath.Join(out, "preference_reward", "logs", "eval_results.json"), &scores)
		r.Reward = &scores.Best
		return r, err
	}
	model := filepath.Join(out, "preference_rl")
	if strings.HasPrefix(name, "RL") {
		model = filepath.Join(out, "sum_digits_rl")
	}
	r.Before, r.After, r.Difference, err = e.compare(ctx, filepath.Join(out, "compared.json"), base, model)
	return r, err
}

// compare returns the greedy accuracy of two models on unseen test problems, and the difference of the second.
func (e *preferenceExperiment) compare(ctx context.Context, path, a, b string) (of, than float64, d *rl.Difference, err error) {
	if _, _, err := command(ctx, e.program, append([]string{"compare"}, append(strings.Fields("--task sum_digits --threads 1 --eval-samples 300 --seed 9000 "+easySums), "--output", path, a, b)...)...); err != nil {
		return 0, 0, nil, err
	}
	var found struct {
		A, B struct {
			Datasets []struct{ Mean rl.Estimate }
		}
		Comparisons []struct{ Mean rl.Difference }
	}
	if err := readJSON(path, &found); err != nil {
		return 0, 0, nil, err
	}
	return found.A.Datasets[0].Mean.Value, found.B.Datasets[0].Mean.Value, &found.Comparisons[0].Mean, nil
}

// onReal trains MiniLM as a reward model on pairs of human data, if a file of them is given.
func (e *preferenceExperiment) onReal(ctx context.Context) error {
	if e.real == "" {
		return nil
	}
	if e.results.Real == nil {
		e.results.Real = &realPairs{}
	}
	for seed := len(e.results.Real.Seeds) + 1; seed <= e.seeds; seed++ {
		out := filepath.Join(e.work, "real", strconv.Itoa(seed))
		cpu, _, err := command(ctx, e.program, "--mode", "reward_model", "--dataset", e.real, "--validation-share", "0.3", "--epochs", "2", "--batch-size", "16",
			"--learning-rate", "0.0005", "--threads", "1", "--seed", strconv.Itoa(seed), "--output-dir", out)
		if err != nil {
			return err
		}
		var scores struct{ Before, Best evaluate.RewardScores }
		if err := readJSON(filepath.Join(out, "preference_reward", "logs", "eval_results.json"), &scores); err != nil {
			return err
		}
		fmt.Printf("%-18s seed %d  %s; longer is better in %.1f %%\n", "real pairs", seed, scores.Best, 100*scores.Best.Longer.Value)
		e.results.Real.Seeds, e.results.Real.CPUSeconds = append(e.results.Real.Seeds, scores.Best), append(e.results.Real.CPUSeconds, cpu)
		if err := save(e.out, e.results); err != nil {
			return err
		}
	}
	return nil
}

// figures formats the figures of a run.
func (r preferenceRun) figures() string {
	if r.Reward != nil {
		return r.Reward.String()
	}
	d := r.Difference
	return fmt.Sprintf("%.1f %% right, %.1f before: %+.1f points [%+.1f, %+.1f]", 100*r.After, 100*r.Before, 100*d.Difference, 100*d.Interval[0], 100*d.Interval[1])
}

// markdown is the experiment's tables.
func (r preferenceResults) markdown() string {
	var rows, rewards, students [][]string
	for _, way := range preferenceWays {
		for _, run := range r.Runs {
			switch {
			case run.Way != way.name:
			case run.Reward != nil:
				v := run.Reward
				rewards = append(rewards, []string{"own completions, sums", fmt.Sprint(run.Seed), fmt.Sprint(v.N), percent(v.Accuracy, v.Interval),
					fmt.Sprintf("%.1f", 100*v.Longer.Value), fmt.Sprintf("%.4f", v.ECE), fmt.Sprintf("%.0f", run.CPUSeconds)})
			case run.Teacher != nil:
				d := run.Difference
				students = append(students, []string{fmt.Sprint(run.Seed), fmt.Sprintf("%.1f", 100**run.Teacher), fmt.Sprintf("%.1f", 100*run.Before), fmt.Sprintf("%.1f", 100*run.After),
					fmt.Sprintf("%+.1f [%+.1f, %+.1f]", 100*d.Difference, 100*d.Interval[0], 100*d.Interval[1]), fmt.Sprintf("%.0f %%", 100*run.recovered()), fmt.Sprintf("%.0f", run.CPUSeconds)})
			default:
				d := run.Difference
				rows = append(rows, []string{run.Way, fmt.Sprint(run.Seed), fmt.Sprintf("%.1f", 100*run.Before), fmt.Sprintf("%.1f", 100*run.After),
					fmt.Sprintf("%+.1f [%+.1f, %+.1f]", 100*d.Difference, 100*d.Interval[0], 100*d.Interval[1]), fmt.Sprintf("%.0f", run.CPUSeconds)})
			}
		}
	}
	if r.Real != nil {
		for i, v := range r.Real.Seeds {
			rewards = append(rewards, []string{"orca_dpo, MiniLM", fmt.Sprint(i + 1), fmt.Sprint(v.N), percent(v.Accuracy, v.Interval),
				fmt.Sprintf("%.1f", 100*v.Longer.Value), fmt.Sprintf("%.4f", v.ECE), fmt.Sprintf("%.0f", r.Real.CPUSeconds[i])})
		}
	}
	return "Sums of the digits of two numbers up to 99. All rows start from a model of 2 layers and width 64 after 1,400 SFT updates; 60 % of its demonstrations leave the last digit out of the answer. Pairs: a right and a wrong one of its " +
		"own completions to 3,000 problems (6,000 for the reward model), at most four pairs per problem. Greedy accuracy on 300 unseen problems, %, with the paired 95 % interval of the difference.\n\n" +
		report.MarkdownTable([]string{"method", "seed", "before", "after", "difference", "CPU s"}, rows) +
		"\nReward models on held-out pairs. The one for sums starts from a model of 4 layers and width 64 after 900 SFT updates on correct demonstrations. Longer: % of the pairs whose better response is the longer one, the accuracy of a rule by length (or 100 minus it).\n\n" +
		report.MarkdownTable([]string{"pairs", "seed", "held out", "accuracy %", "longer %", "ECE", "CPU s"}, rewards) +
		"\nDistillation: the teacher has width 64 and 1,400 SFT updates on correct demonstrations, the student width 32 and 700. The student trains for 1,500 updates on its own samples. Greedy accuracy on the same 300 problems, %, and how much of the gap to the teacher closed.\n\n" +
		report.MarkdownTable([]string{"seed", "teacher", "student before", "after", "difference", "gap closed", "CPU s"}, students)
}
