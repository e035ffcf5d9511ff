package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"rltrain/envs"
	"rltrain/envs/dataset"
	"rltrain/envs/digits"
	"rltrain/rl"
	"rltrain/rl/report"
)

// digitsExperiment is the tasks sum_digits and reverse_digits on the tiny model: worked solutions until half of
// the held-out exercises are right, then reinforcement learning, beside as many updates on further solutions.
type digitsExperiment struct {
	program, work, out string
	seeds, jobs        int
	mutex              sync.Mutex // of results and their file
	results            digitsResults
}

// digitsResults is the content of the results file.
type digitsResults struct {
	Runs []digitsRun `json:"runs"`
}

// digitsRun is one training run, judged by greedy answers: Held to the held-out exercises by which the run itself
// stopped or chose its best step, Test to as many again as testSize that it never saw.
type digitsRun struct {
	Setting    string          `json:"setting"`
	Seed       int             `json:"seed"`
	Options    []string        `json:"options"`
	CPUSeconds float64         `json:"cpu_seconds"` // of training
	Updates    int             `json:"updates"`
	Held       rl.AnswerScores `json:"held"`
	Test       rl.AnswerScores `json:"test"`
}

// testSize exercises of the seed testSeed are a test.
const (
	testSize = 1000
	testSeed = 1 << 40
)

// A digitsStart is a policy that arms go on from, and the settings of its task.
type digitsStart struct {
	name      string
	options   []string
	warmup    []string       // options of the warm-up alone
	exercises digits.Options // that the options ask for
	once      bool           // with the first seed only
	arms      []digitsArm
}

type digitsArm struct {
	name    string
	rl      bool
	options []string
}

// rlRows is how many answers an update of an RL arm has, and how many solutions one of a continued arm.
const rlRows = 256

// further goes on with worked solutions: as many updates, of as many rows, as the RL arm has, at a falling rate.
func further(updates int) digitsArm {
	n := strconv.Itoa(updates)
	return digitsArm{"supervised continued", false, []string{"--max-steps", n, "--batch-size", strconv.Itoa(rlRows),
		"--learning-rate", "5e-4", "--lr-scheduler-type", "linear", "--warmup-until", "1", "--warmup-check-every", n}}
}

var digitsStarts = []digitsStart{
	{
		name: "sum_digits", options: []string{"--task", "sum_digits"}, exercises: digits.Options{Count: 4, Max: 999, Short: true},
		warmup: []string{"--warmup-until", "0.6"}, arms: []digitsArm{{"reinforce", true, nil}, further(35)},
	},
	{
		name: "reverse_digits", options: []string{"--task", "reverse_digits"}, exercises: digits.Options{Max: 9999999, Short: true},
		arms: []digitsArm{{"reinforce", true, nil}, further(50)},
	},
	{
		name: "sum_digits, two integers below 100", options: []string{"--task", "sum_digits", "--digits-count", "2", "--digits-max", "99"},
		exercises: digits.Options{Count: 2, Max: 99, Short: true}, once: true,
		warmup: []string{"--warmup-until", "0.6"},
		arms: []digitsArm{
			{"rloo", true, []string{"--algorithm", "rloo"}},
			{"grpo", true, []string{"--algorithm", "grpo"}},
			{"ppo", true, []string{"--algorithm", "ppo"}},
		},
	},
}

func (e *digitsExperiment) run(ctx context.Context) error {
	if err := files.LoadJSON(e.out, &e.results); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	type job struct {
		start digitsStart
		seed  int
	}
	jobs := make(chan job)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var workers sync.WaitGroup
	for range e.jobs {
		workers.Go(func() {
			for j := range jobs {
				if err := e.arms(ctx, j.start, j.seed); err != nil {
					cancel(err)
				}
			}
		})
	}
	for seed := range e.seeds {
		for _, start := range digitsStarts {
			if (!start.once || seed == 0) && ctx.Err() == nil {
				jobs <- job{start, seed}
			}
		}
	}
	close(jobs)
	workers.Wait()
	return context.Cause(ctx)
}

func (e *digitsExperiment) arms(ctx context.Context, start digitsStart, seed int) error {
	task := start.options[1]
	warm := start.name + ": warm-up"
	err := e.train(ctx, start, warm, seed, slices.Concat(start.options, start.warmup, []string{"--mode", "supervised"}), task+"_supervised")
	if err != nil {
		return err
	}
	from := slices.Concat(start.options, []string{"--pretrained-model", filepath.Join(e.folder(warm, seed), task+"_supervised")})
	for _, arm := range start.arms {
		mode, stage := "supervised", task+"_supervised"
		if arm.rl {
			mode, stage = "rl_only", task+"_rl"
		}
		options := slices.Concat(from, []string{"--mode", mode}, arm.options)
		if err := e.train(ctx, start, start.name+": "+arm.name, seed, options, stage); err != nil {
			return err
		}
	}
	return nil
}

func (e *digitsExperiment) folder(setting string, seed int) string {
	return filepath.Join(e.work, strings.NewReplacer(" ", "_", ",", "", ":", "").Replace(setting)+"-"+strconv.Itoa(seed))
}

func (e *digitsExperiment) has(setting string, seed int) bool {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return slices.ContainsFunc(e.results.Runs, func(r digitsRun) bool { return r.Setting == setting && r.Seed == seed })
}

// train runs the program for one (setting, seed), unless the results have it already.
func (e *digitsExperiment) train(ctx context.Context, start digitsStart, setting string, seed int, options []string, stage string) error {
	if e.has(setting, seed) {
		return nil
	}
	dir := e.folder(setting, seed)
	options = slices.Concat(options, []string{"--seed", strconv.Itoa(seed), "--threads", "1"})
	cpu, _, err := command(ctx, e.program, slices.Concat(options, []string{"--output-dir", dir})...)
	if err != nil {
		return fmt.Errorf("%s, seed %d: %w", setting, seed, err)
	}
	r := digitsRun{Setting: setting, Seed: seed, Options: portable(options, e.work), CPUSeconds: cpu}
	logs := filepath.Join(dir, stage, "logs")
	var scores struct {
		rl.AnswerScores
		Before, After *rl.AnswerScores // of an RL stage
		BestStep      int              `json:"best_step"`
	}
	if err := files.LoadJSON(filepath.Join(logs, "eval_results.json"), &scores); err != nil {
		return err
	}
	r.Held = scores.AnswerScores
	if scores.After != nil {
		r.Held = *scores.After
	}
	if r.Test, err = e.test(ctx, start, dir, filepath.Join(dir, stage)); err != nil {
		return fmt.Errorf("%s, seed %d: %w", setting, seed, err)
	}
	rows, err := report.ReadMetrics(filepath.Join(logs, "metrics.jsonl"))
	if err != nil {
		return err
	}
	r.Updates = updatesIn(rows)
	fmt.Printf("%-64s seed %d  accuracy %.3f (own %.3f)  format %.3f  %4d updates  %5.0f s of processor time\n",
		r.Setting, r.Seed, r.Test.Accuracy, r.Held.Accuracy, r.Test.FormatRate, r.Updates, r.CPUSeconds)
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.results.Runs = append(e.results.Runs, r)
	return save(e.out, e.results)
}

// test judges a model's greedy answers to exercises that no run has seen.
func (e *digitsExperiment) test(ctx context.Context, start digitsStart, dir, model string) (rl.AnswerScores, error) {
	none := rl.AnswerScores{}
	task, err := digits.New(start.options[1], testSeed, start.exercises)
	if err != nil {
		return none, err
	}
	var prompts bytes.Buffer
	episodes := make([]envs.Env, testSize)
	for i := range episodes {
		if episodes[i], err = task.Episode(envs.Eval, i); err != nil {
			return none, err
		}
		shown, err := episodes[i].Reset(ctx)
		if err != nil {
			return none, err
		}
		if err := json.NewEncoder(&prompts).Encode(map[string]string{"prompt": shown.Text}); err != nil {
			return none, err
		}
	}
	input, output := filepath.Join(dir, "test.jsonl"), filepath.Join(dir, "test_answers.jsonl")
	if err := os.WriteFile(input, prompts.Bytes(), 0o644); err != nil {
		return none, err
	}
	if _, _, err := command(ctx, e.program, "generate", "--model", model, "--input", input, "--output", output,
		"--temperature", "0", "--max-new-tokens", "160", "--threads", "1"); err != nil {
		return none, err
	}
	var infos []*envs.Info
	for r, err := range dataset.Records(output) {
		if err != nil {
			return none, err
		}
		text, _ := r.Fields.Get("completion")
		step, err := episodes[len(infos)].Step(ctx, envs.Action{Text: text.(string)})
		if err != nil {
			return none, err
		}
		infos = append(infos, step.Info)
	}
	return rl.ScoreAnswers(infos), nil
}

// markdown is the experiment's table.
func (r digitsResults) markdown() string {
	var settings []string
	for _, run := range r.Runs {
		if !slices.Contains(settings, run.Setting) {
			settings = append(settings, run.Setting)
		}
	}
	var rows [][]string
	for _, start := range digitsStarts {
		for _, setting := range settings {
			if !strings.HasPrefix(setting, start.name+":") {
				continue
			}
			var accuracy, own, least, format, updates, cpu []float64
			for _, run := range r.Runs {
				if run.Setting == setting {
					own, accuracy = append(own, 100*run.Held.Accuracy), append(accuracy, 100*run.Test.Accuracy)
					least, format = append(least, 100*run.Test.Interval[0]), append(format, 100*run.Test.FormatRate)
					updates, cpu = append(updates, float64(run.Updates)), append(cpu, run.CPUSeconds)
				}
			}
			rows = append(rows, []string{setting, fmt.Sprint(len(accuracy)), fmt.Sprintf("%.0f", mean(updates)), spread(own, 1), spread(accuracy, 1),
				fmt.Sprintf("%.1f", slices.Min(accuracy)), fmt.Sprintf("%.1f", slices.Min(least)), spread(format, 1), fmt.Sprintf("%.0f", slices.Min(cpu))})
		}
	}
	text := fmt.Sprintf("Greedy answers; mean ± standard deviation over seeds. A run stops, or chooses its best step, by its own 200 held-out exercises; "+
		"accuracy and format are of %s others. RL and continued training have %d answers or solutions an update.\n\n", report.Count(testSize), rlRows)
	return text + report.MarkdownTable([]string{"run", "seeds", "updates", "own %", "accuracy %", "least", "its 95 % interval from", "format %", "CPU s, least"}, rows)
}
