package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/report"
)

// toolsExperiment trains SmolLM2 to answer questions about a shop with two tools: SFT on demonstrations, then GRPO.
type toolsExperiment struct {
	*experiment
	results toolsResults
}

// toolsResults is the content of docs/results/tools.json.
type toolsResults struct {
	Runs []toolsRun `json:"runs"`
}

// toolsRun is a seed: its tables, demonstrations, questions and model.
type toolsRun struct {
	Seed    int         `json:"seed"`
	Options [][]string  `json:"options"` // of each command
	CPU     []float64   `json:"cpu_seconds"`
	Start   toolsFigure `json:"after_sft"`
	End     toolsFigure `json:"after_rl"`
}

// toolsFigure is what a model did with the test questions, greedily.
type toolsFigure struct {
	Correct []bool       `json:"correct"` // by question
	Kinds   []string     `json:"kinds"`
	Calls   envs.ToolUse `json:"calls"`
}

// shopCommands are the commands of a seed.
var shopCommands = []string{
	"--task chat --model smollm2 --dataset WORK/demonstrations.jsonl --chat-template WORK/template.jinja --epochs 2 --batch-size 8 --learning-rate 3e-4 " +
		"--seed SEED --output-dir OUT",
	shopAsked + "--model OUT/chat_supervised --output OUT/start.json",
	"--task prompts --mode rl_only --pretrained-model OUT/chat_supervised --dataset WORK/train.jsonl --eval-dataset WORK/test.jsonl --tools WORK/tools.json --kind-column kind --max-turns 4 " +
		"--max-new-tokens 56 --eval-every 1000 --fresh-samples 0 --eval-samples 1 --num-steps 48 --prompts-per-step 8 --samples-per-prompt 8 --rl-learning-rate 5e-5 --keep last --seed SEED --output-dir OUT",
	shopAsked + "--model OUT/prompts_rl --output OUT/end.json",
}

// shopAsked measures a model on the test questions.
const shopAsked = "eval --task prompts --dataset WORK/test.jsonl --tools WORK/tools.json --kind-column kind --max-turns 4 --max-new-tokens 56 --eval-samples 100 "

func (e *toolsExperiment) run(ctx context.Context) error {
	if err := files.LoadJSON(e.out, &e.results); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_, python, err := command(ctx, "python3", "-c", "import sys; print(sys.executable)") // not a script that finds it
	if err != nil {
		return err
	}
	for _, seed := range e.eachSeed() {
		if slices.ContainsFunc(e.results.Runs, func(r toolsRun) bool { return r.Seed == seed }) {
			continue
		}
		r, err := e.train(ctx, strings.TrimSpace(python), seed)
		if err != nil {
			return fmt.Errorf("seed %d: %w", seed, err)
		}
		fmt.Printf("seed %d: %s, then %s; %.0f CPU s\n", seed, percent(r.Start.accuracy("")), percent(r.End.accuracy("")), r.seconds())
		e.results.Runs = append(e.results.Runs, r)
		if err := save(e.out, e.results); err != nil {
			return err
		}
	}
	return nil
}

// train runs the commands of a seed.
func (e *toolsExperiment) train(ctx context.Context, python string, seed int) (toolsRun, error) {
	r := toolsRun{Seed: seed}
	data, out := filepath.Join(e.work, strconv.Itoa(seed), "data"), filepath.Join(e.work, strconv.Itoa(seed), "out")
	if err := errors.Join(os.RemoveAll(out), writeShop(data, python, seed)); err != nil { // what a stopped call left
		return r, err
	}
	for _, line := range shopCommands {
		args := strings.Fields(strings.NewReplacer("WORK", data, "OUT", out, "SEED", strconv.Itoa(seed)).Replace(line + " --threads 1 --device cpu"))
		cpu, _, err := command(ctx, e.program, args...)
		if err != nil {
			return r, err
		}
		r.CPU = append(r.CPU, cpu)
		r.Options = append(r.Options, portable(args, data, out))
	}
	return r, errors.Join(r.Start.read(filepath.Join(out, "start.json")), r.End.read(filepath.Join(out, "end.json")))
}

// read reads what eval wrote.
func (f *toolsFigure) read(path string) error {
	var found struct {
		Datasets []struct {
			Rows []struct {
				Kind    string
				Samples []struct {
					Correct bool
					Tools   envs.ToolUse
				}
			} `json:"problems_tried"`
		}
	}
	if err := readJSON(path, &found); err != nil {
		return err
	}
	for _, row := range found.Datasets[0].Rows {
		one := row.Samples[0]
		f.Correct, f.Kinds = append(f.Correct, one.Correct), append(f.Kinds, row.Kind)
		f.Calls.Calls, f.Calls.Failed, f.Calls.Malformed = f.Calls.Calls+one.Tools.Calls, f.Calls.Failed+one.Tools.Failed, f.Calls.Malformed+one.Tools.Malformed
	}
	return nil
}

// values are 1 for each correct answer to a kind of question, "" for all, and 0 for the others.
func (f toolsFigure) values(kind string) (all []float64) {
	for i, correct := range f.Correct {
		if kind == "" || kind == f.Kinds[i] {
			value := 0.0
			if correct {
				value = 1
			}
			all = append(all, value)
		}
	}
	return all
}

func (f toolsFigure) accuracy(kind string) (float64, rl.Interval) {
	var infos []*envs.Info
	for _, value := range f.values(kind) {
		infos = append(infos, &envs.Info{Correct: value == 1})
	}
	s := rl.ScoreAnswers(infos)
	return s.Accuracy, s.Interval
}

// parsed is the fraction of attempted calls that could be read.
func (f toolsFigure) parsed() float64 {
	return float64(f.Calls.Calls) / float64(max(1, f.Calls.Calls+f.Calls.Malformed))
}

func (r toolsRun) seconds() (sum float64) {
	for _, s := range r.CPU {
		sum += s
	}
	return sum
}

// change is what RL changes, over the questions of a kind of all seeds, paired.
func (r *toolsResults) change(kind string) string {
	var before, after []float64
	for _, run := range r.Runs {
		before, after = append(before, run.Start.values(kind)...), append(after, run.End.values(kind)...)
	}
	d := rl.CompareMeans(before, after)
	return fmt.Sprintf("%.1f → %.1f (%+.1f [%+.1f, %+.1f])", 100*d.A, 100*d.B, 100*d.Difference, 100*d.Interval[0], 100*d.Interval[1])
}

// markdown is the experiment's table.
func (r toolsResults) markdown() string {
	var rows [][]string
	for _, run := range r.Runs {
		for _, kind := range []string{"", shownWording, otherWording} {
			name, calls := kind, []string{"", ""}
			if kind == "" {
				name, calls = "all", []string{fmt.Sprintf("%.1f → %.1f", 100*run.Start.parsed(), 100*run.End.parsed()), fmt.Sprintf("%.0f", run.seconds()/60)}
			}
			rows = append(rows, append([]string{strconv.Itoa(run.Seed), name, strconv.Itoa(len(run.End.values(kind))),
				percent(run.Start.accuracy(kind)), percent(run.End.accuracy(kind))}, calls...))
		}
	}
	text := report.NarrowMarkdownTable([]string{"seed", "questions", "n", "after SFT, %", "after RL, %", "calls that parse, %", "CPU min"}, rows)
	text += "\nChange over all seeds, paired by question, in percent:\n\n"
	for _, kind := range []string{"", shownWording, otherWording} {
		text += "- " + cmp.Or(kind, "all") + ": " + r.change(kind) + "\n"
	}
	return text
}

// toolsPage stands before the table.
const toolsPage = `# Tools: SFT on 200 demonstrations, then GRPO

SmolLM2-135M-Instruct with LoRA answers questions about a shop: it looks a price up in a made-up table of 64 items, calculates with it,
and says the result. That takes two calls and three messages. The demonstrations (10 of them are for validation) have one wording of each
of five kinds of question; RL and the test have two others too. The reward is 1 for the correct answer, else 0.

Success is that of greedy answers to 100 test questions, with 95 % intervals. Each seed has prices, demonstrations and questions of its
own. Settings were chosen with other seeds. CPU minutes are those of SFT, GRPO and both evaluations, on one thread. Repeat:
` + "`go run ./scripts/experiment tools`, then `tables`." + `

`

// writeToolsTable writes the page of the results, if there are any.
func writeToolsTable(page, results string) error {
	var r toolsResults
	err := files.LoadJSON(results, &r)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return outfile.Write(page, []byte(toolsPage+r.markdown()), 0o644)
}
