package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"rltrain/internal/files"
	"rltrain/rl/report"
)

// codeExperiment is the task code on its own problems: a warm-up, and from it reinforcement learning with rewards from
// tests, or the same number of updates more of imitation.
type codeExperiment struct {
	program, work, out string
	seeds, from        int
	results            codeResults
}

// codeResults is the content of the results file.
type codeResults struct {
	Options map[string][]string `json:"options"` // of each setting
	Runs    []codeRun           `json:"runs"`
}

// codeRun is one policy on problems that neither its training nor the choice of its weights has seen: greedy answers, by
// whether the family of the problem was trained.
type codeRun struct {
	Setting    string   `json:"setting"`
	Seed       int      `json:"seed"`
	CPUSeconds float64  `json:"cpu_seconds"` // of the training of this setting
	Variants   codeFrom `json:"held_out_variants"`
	Families   codeFrom `json:"held_out_families"`
}

type codeFrom struct {
	N     int `json:"n"`
	Right int `json:"right"`
}

const (
	codeWarmUp   = "warm-up"
	codeRL       = "warm-up + RL"
	codeImitated = "warm-up + imitation"
)

// codeOptions are the options of each setting.
var codeOptions = map[string][]string{
	"":           {"--task", "code", "--threads", "1", "--held-out-families", "4"},
	codeWarmUp:   {"--mode", "supervised", "--max-steps", "700", "--warmup-check-every", "0", "--eval-samples", "20"},
	codeRL:       {"--mode", "rl_only", "--num-steps", "20", "--prompts-per-step", "24", "--eval-every", "20", "--eval-samples", "20", "--fresh-samples", "0"},
	codeImitated: {"--mode", "supervised", "--max-steps", "20", "--warmup-check-every", "0", "--eval-samples", "20", "--learning-rate", "0.0002"},
}

func (e *codeExperiment) run(ctx context.Context) error {
	if err := files.LoadJSON(e.out, &e.results); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	e.results.Options = codeOptions
	for seed := e.from; seed < e.from+e.seeds; seed++ {
		for _, setting := range []string{codeWarmUp, codeRL, codeImitated} {
			if slices.ContainsFunc(e.results.Runs, func(r codeRun) bool { return r.Setting == setting && r.Seed == seed }) {
				continue
			}
			r, err := e.train(ctx, setting, seed)
			if err != nil {
				return fmt.Errorf("%s, seed %d: %w", setting, seed, err)
			}
			fmt.Printf("%-20s seed %d  held-out variants %d/%d  families %d/%d  %5.0f s of processor time\n",
				setting, seed, r.Variants.Right, r.Variants.N, r.Families.Right, r.Families.N, r.CPUSeconds)
			e.results.Runs = append(e.results.Runs, r)
			if err := save(e.out, e.results); err != nil {
				return err
			}
		}
	}
	return nil
}

// train runs the program once, and judges what it left.
func (e *codeExperiment) train(ctx context.Context, setting string, seed int) (codeRun, error) {
	r := codeRun{Setting: setting, Seed: seed}
	dir := func(setting string) string {
		return filepath.Join(e.work, strings.ReplaceAll(setting, " ", "")+"-"+strconv.Itoa(seed))
	}
	args := append(slices.Clone(codeOptions[""]), codeOptions[setting]...)
	args = append(args, "--seed", strconv.Itoa(seed), "--output-dir", dir(setting))
	stage := "code_supervised"
	if setting != codeWarmUp {
		args = append(args, "--pretrained-model", filepath.Join(dir(codeWarmUp), "code_supervised"))
	}
	if setting == codeRL {
		stage = "code_rl"
	}
	var err error
	if r.CPUSeconds, _, err = command(ctx, e.program, args...); err != nil {
		return r, err
	}
	output := filepath.Join(dir(setting), "held_out.json")
	// Problems of another seed: those that the run chose its weights by are of its own.
	if _, _, err = command(ctx, e.program, "eval", "--task", "code", "--model", filepath.Join(dir(setting), stage), "--held-out-families", "4",
		"--eval-samples", "200", "--seed", strconv.Itoa(1000+seed), "--output", output); err != nil {
		return r, err
	}
	var scores struct {
		Sets []struct {
			Rows []struct {
				Kind  string
				Right int
			} `json:"exercises_tried"`
		} `json:"datasets"`
	}
	if err := readJSON(output, &scores); err != nil {
		return r, err
	}
	for _, set := range scores.Sets {
		for _, row := range set.Rows {
			into := &r.Variants
			if strings.HasPrefix(row.Kind, "held-out ") {
				into = &r.Families
			}
			into.N++
			into.Right += row.Right
		}
	}
	return r, nil
}

// markdown is the experiment's table.
func (r codeResults) markdown() string {
	var rows [][]string
	percent := func(f codeFrom) float64 { return 100 * float64(f.Right) / float64(max(1, f.N)) }
	for _, setting := range []string{codeWarmUp, codeRL, codeImitated} {
		var variants, families, cpu []float64
		for _, run := range r.Runs {
			if run.Setting == setting {
				variants, families, cpu = append(variants, percent(run.Variants)), append(families, percent(run.Families)), append(cpu, run.CPUSeconds)
			}
		}
		if len(variants) > 0 {
			var each []string
			for _, v := range variants {
				each = append(each, fmt.Sprintf("%.1f", v))
			}
			rows = append(rows, []string{setting, fmt.Sprint(len(variants)), spread(variants, 1), strings.Join(each, ", "), spread(families, 1), spread(cpu, 0)})
		}
	}
	return "Greedy programs that pass all tests, % of problems that nothing was chosen by (200 a seed, some of which are of four families that were " +
		"never trained). RL and imitation go on from the same warm-up with the same number of updates.\n\n" +
		report.MarkdownTable([]string{"setting", "seeds", "held-out variants, %", "by seed", "held-out families, %", "CPU s of this stage"}, rows)
}
