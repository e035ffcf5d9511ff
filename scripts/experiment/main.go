// Command experiment repeats the experiments whose figures docs/results.md shows.
//
//	go run ./scripts/experiment intent --source FILE [--peer COMMAND]
//	go run ./scripts/experiment digits
//	go run ./scripts/experiment preference [--real FILE]
//	go run ./scripts/experiment code
//	go run ./scripts/experiment text --clinc FOLDER --mmlu FILE
//	go run ./scripts/experiment tables
//
// An experiment runs the program itself for each (setting, seed), and writes each result to docs/results at once: a repeated call goes on where an earlier one ended. tables
// writes the tables of docs/results.md from those files.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "experiment:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("name one of: intent, digits, preference, code, text, tables")
	}
	switch name := args[0]; name {
	case "intent":
		flags := flag.NewFlagSet(name, flag.ContinueOnError)
		e := &intentExperiment{}
		flags.StringVar(&e.source, "source", "", "MMLU-Pro's test.jsonl, with the fields question and category")
		flags.StringVar(&e.peer, "peer", "", "command of the Python peer, to which --model, --data and others are added")
		flags.StringVar(&e.program, "program", "bin/rltrain", "the program")
		flags.StringVar(&e.work, "work", "experiments/intent", "folder for the split file and the models")
		flags.StringVar(&e.out, "out", "docs/results/intent_mmlu_pro.json", "results")
		flags.IntVar(&e.seeds, "seeds", 3, "number of seeds")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		return e.run(ctx)
	case "digits":
		flags := flag.NewFlagSet(name, flag.ContinueOnError)
		e := &digitsExperiment{}
		flags.StringVar(&e.program, "program", "bin/rltrain", "the program")
		flags.StringVar(&e.work, "work", "experiments/digits", "folder for the models")
		flags.StringVar(&e.out, "out", "docs/results/digits.json", "results")
		flags.IntVar(&e.seeds, "seeds", 5, "number of seeds, from 1")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		return e.run(ctx)
	case "preference":
		flags := flag.NewFlagSet(name, flag.ContinueOnError)
		e := &preferenceExperiment{}
		flags.StringVar(&e.program, "program", "bin/rltrain", "the program")
		flags.StringVar(&e.work, "work", "experiments/preference", "folder for the pairs and the models")
		flags.StringVar(&e.out, "out", "docs/results/preference.json", "results")
		flags.StringVar(&e.real, "real", "", "orca_dpo's validation.jsonl, for a reward model of real pairs")
		flags.IntVar(&e.seeds, "seeds", 3, "number of seeds")
		flags.IntVar(&e.first, "first", 1, "the first seed; those from 100 on are for choosing settings")
		flags.StringVar(&e.only, "only", "", "this way of learning alone")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		return e.run(ctx)
	case "code":
		flags := flag.NewFlagSet(name, flag.ContinueOnError)
		e := &codeExperiment{}
		flags.StringVar(&e.program, "program", "bin/rltrain", "the program")
		flags.StringVar(&e.work, "work", "experiments/code", "folder for the models")
		flags.StringVar(&e.out, "out", "docs/results/code.json", "results")
		flags.IntVar(&e.first, "first", 1, "the first seed")
		flags.IntVar(&e.seeds, "seeds", 3, "number of seeds")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		return e.run(ctx)
	case "text":
		flags := flag.NewFlagSet(name, flag.ContinueOnError)
		e := &textExperiment{}
		flags.StringVar(&e.program, "program", "bin/rltrain", "the program")
		flags.StringVar(&e.work, "work", "experiments/text", "folder for the rows and the models")
		flags.StringVar(&e.out, "out", "docs/results/text.json", "results")
		flags.StringVar(&e.clinc, "clinc", "", "folder of CLINC150's data_full.json and domains.json")
		flags.StringVar(&e.mmlu, "mmlu", "", "MMLU-Pro's test.jsonl, with the fields question and category")
		flags.IntVar(&e.first, "first", 1, "the first seed; those from 100 on are for choosing settings")
		flags.IntVar(&e.seeds, "seeds", 3, "number of seeds")
		flags.IntVar(&e.episodes, "rl-episodes", 150, "rollouts of reinforcement learning, of the sentences a third of them")
		flags.StringVar(&e.only, "only", "", "the one set of texts to run, by its name in the results")
		if err := flags.Parse(args[1:]); err != nil {
			return err
		}
		return e.run(ctx)
	case "tables":
		return writeTables("docs/results.md", "docs/results")
	default:
		return fmt.Errorf("no experiment is called %q; there are intent, digits, preference, code, text and tables", name)
	}
}
