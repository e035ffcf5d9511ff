// Command experiment repeats the experiments whose figures docs/results.md shows.
//
//	go run ./scripts/experiment intent --source FILE [--peer COMMAND]
//	go run ./scripts/experiment digits
//	go run ./scripts/experiment preference [--real FILE]
//	go run ./scripts/experiment code
//	go run ./scripts/experiment text --clinc FOLDER --mmlu FILE
//	go run ./scripts/experiment distributed
//	go run ./scripts/experiment memory
//	go run ./scripts/experiment weights
//	go run ./scripts/experiment real-models --data FOLDER
//	go run ./scripts/experiment sums
//	go run ./scripts/experiment hacks
//	go run ./scripts/experiment objectives
//	go run ./scripts/experiment decisions --clinc FOLDER --mmlu FILE
//	go run ./scripts/experiment tools
//	go run ./scripts/experiment tables
//
// An experiment runs the program itself for each (setting, seed), and writes each result to docs/results at once: a
// repeated call goes on where an earlier one ended. tables writes the tables of docs/results.md and docs/runs.md from those files.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "experiment:", err)
		os.Exit(1)
	}
}

// experiment is what every experiment is told.
type experiment struct {
	program, work, out string
	first, seeds       int
}

// eachSeed lists the seeds.
func (c *experiment) eachSeed() (seeds []int) {
	for i := range c.seeds {
		seeds = append(seeds, c.first+i)
	}
	return seeds
}

// experiments are all there are, each with its results file in docs/results, the first seed and the number of seeds of
// its tables, and how it takes its own flags and becomes a run.
var experiments = []struct {
	name, results string
	first, seeds  int
	declare       func(c *experiment, flags *flag.FlagSet) func(ctx context.Context) error
}{
	{"intent", "intent_mmlu_pro", 0, 3, func(c *experiment, flags *flag.FlagSet) func(ctx context.Context) error {
		e := &intentExperiment{experiment: c}
		flags.StringVar(&e.source, "source", "", "MMLU-Pro's test.jsonl, with the fields question and category")
		flags.StringVar(&e.peer, "peer", "", "command of the Python peer, to which --model, --data and others are added")
		return e.run
	}},
	{"digits", "digits", 1, 5, func(c *experiment, _ *flag.FlagSet) func(ctx context.Context) error {
		return (&digitsExperiment{experiment: c}).run
	}},
	{"preference", "preference", 1, 3, func(c *experiment, flags *flag.FlagSet) func(ctx context.Context) error {
		e := &preferenceExperiment{experiment: c}
		flags.StringVar(&e.real, "real", "", "orca_dpo's validation.jsonl, for a reward model of real pairs")
		flags.StringVar(&e.only, "only", "", "this way of learning alone")
		return e.run
	}},
	{"code", "code", 1, 3, func(c *experiment, _ *flag.FlagSet) func(ctx context.Context) error {
		return (&codeExperiment{experiment: c}).run
	}},
	{"text", "text", 1, 3, func(c *experiment, flags *flag.FlagSet) func(ctx context.Context) error {
		e := &textExperiment{experiment: c}
		flags.StringVar(&e.clinc, "clinc", "", "folder of CLINC150's data_full.json and domains.json")
		flags.StringVar(&e.mmlu, "mmlu", "", "MMLU-Pro's test.jsonl, with the fields question and category")
		flags.IntVar(&e.episodes, "rl-episodes", 300, "rollouts of reinforcement learning, of the sentences two ninths of them")
		flags.StringVar(&e.only, "only", "", "the one set of texts to run, by its name in the results")
		return e.run
	}},
	{"distributed", "distributed", 1, 3, func(c *experiment, _ *flag.FlagSet) func(ctx context.Context) error {
		return (&distributedExperiment{experiment: c}).run
	}},
	{"memory", "memory", 1, 1, func(c *experiment, _ *flag.FlagSet) func(ctx context.Context) error {
		return (&memoryExperiment{experiment: c}).run
	}},
	{"weights", "weights", 1, 1, func(c *experiment, _ *flag.FlagSet) func(ctx context.Context) error {
		return (&weightsExperiment{c}).run
	}},
	{"real-models", "real-models", 1, 1, func(c *experiment, flags *flag.FlagSet) func(ctx context.Context) error {
		e := &realExperiment{experiment: c, rows: realRows}
		flags.StringVar(&e.data, "data", "", "folder with clinc150, mmlu_pro, llamafactory_demo and gsm8k")
		flags.StringVar(&e.only, "only", "", "this row alone")
		flags.StringVar(&e.device, "device", "cpu", "cpu, or cuda")
		return e.run
	}},
	{"sums", "sums", 1, 1, func(c *experiment, flags *flag.FlagSet) func(ctx context.Context) error {
		e := &realExperiment{experiment: c, rows: sumRows()}
		flags.StringVar(&e.only, "only", "", "this row alone")
		flags.StringVar(&e.device, "device", "cpu", "cpu, or cuda")
		return e.run
	}},
	{"hacks", "hacks", 1, 1, func(c *experiment, flags *flag.FlagSet) func(ctx context.Context) error {
		e := &hacksExperiment{experiment: c}
		flags.IntVar(&e.steps, "steps", 100, "steps of GRPO against each reward")
		flags.StringVar(&e.only, "only", "", "this reward alone, by its options")
		flags.StringVar(&e.device, "device", "cpu", "cpu, or cuda")
		return e.run
	}},
	{"objectives", "objectives", 1, 3, func(c *experiment, flags *flag.FlagSet) func(ctx context.Context) error {
		e := &objectivesExperiment{experiment: c}
		flags.StringVar(&e.only, "only", "", "this setting alone")
		return e.run
	}},
	{"tools", "tools", 11, 3, func(c *experiment, _ *flag.FlagSet) func(ctx context.Context) error {
		return (&toolsExperiment{experiment: c}).run
	}},
	{"decisions", "decisions", 1, 3, func(c *experiment, flags *flag.FlagSet) func(ctx context.Context) error {
		e := &decisionsExperiment{experiment: c}
		flags.StringVar(&e.clinc, "clinc", "", "folder of CLINC150's data_full.json and domains.json")
		flags.StringVar(&e.mmlu, "mmlu", "", "MMLU-Pro's test.jsonl")
		flags.StringVar(&e.only, "only", "", "the one set of questions to run: clinc, known, routing, desk or mmlu")
		return e.run
	}},
}

func run(ctx context.Context, args []string) error {
	var names []string
	for _, x := range experiments {
		names = append(names, x.name)
		if len(args) == 0 || args[0] != x.name {
			continue
		}
		c, flags := &experiment{}, flag.NewFlagSet(x.name, flag.ContinueOnError)
		flags.StringVar(&c.program, "program", "bin/rltrain", "the program")
		flags.StringVar(&c.work, "work", filepath.Join("experiments", x.name), "folder for the data and the models")
		flags.StringVar(&c.out, "out", filepath.Join("docs", "results", x.results+".json"), "results")
		flags.IntVar(&c.first, "first", x.first, "the first seed; those from 100 on are for choosing settings")
		flags.IntVar(&c.seeds, "seeds", x.seeds, "number of seeds")
		start := x.declare(c, flags)
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		return start(ctx)
	}
	if len(args) > 0 && args[0] == "tables" {
		if err := writeMemoryTable(filepath.Join("docs", "runs.md"), filepath.Join("docs", "results", "memory.json")); err != nil {
			return err
		}
		if err := writeRealTable(filepath.Join("docs", "results", "real-models.md"), filepath.Join("docs", "results", "real-models.json")); err != nil {
			return err
		}
		if err := writeObjectivesTable(filepath.Join("docs", "results", "objectives.md"), filepath.Join("docs", "results", "objectives.json")); err != nil {
			return err
		}
		if err := writeSumTables(filepath.Join("docs", "results", "sums.md"), filepath.Join("docs", "results", "sums.json")); err != nil {
			return err
		}
		if err := writeHacksTable(filepath.Join("docs", "results", "hacks.md"), filepath.Join("docs", "results", "hacks.json")); err != nil {
			return err
		}
		if err := writeMutantsTable(filepath.Join("docs", "testing.md"), filepath.Join("docs", "results", "mutants.json")); err != nil {
			return err
		}
		if err := writeDecisionsTable(filepath.Join("docs", "results", "decisions.md"), filepath.Join("docs", "results", "decisions.json")); err != nil {
			return err
		}
		if err := writeToolsTable(filepath.Join("docs", "results", "tools.md"), filepath.Join("docs", "results", "tools.json")); err != nil {
			return err
		}
		return writeTables(filepath.Join("docs", "results.md"), filepath.Join("docs", "results"))
	}
	return fmt.Errorf("name an experiment, one of %s; or tables", strings.Join(names, ", "))
}
