package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"rltrain/cmd/rltrain/config"
	"rltrain/envs/dataset"
	"rltrain/envs/intent"
	"rltrain/rl/algo"
)

// rowFlags choose the labelled rows that a command measures on, and how it computes.
func rowFlags() ([]cli.Flag, error) {
	flags, err := config.Flags("dataset", "dataset_config", "text_column", "label_column")
	if err != nil {
		return nil, err
	}
	more, err := config.Flags("max_samples", "threads", "device")
	if err != nil {
		return nil, err
	}
	flags = append(flags,
		&cli.StringFlag{Name: "split-column", Usage: "column of --dataset with train, val or test", DefaultText: "split, where there is one"},
		&cli.StringFlag{Name: "split", Usage: "rows to use: test, val, train or all", DefaultText: "test; all where rows have no split"})
	return append(flags, more...), nil
}

// taskFlag is --task of a command that has some tasks only, or others than training; the first is the default.
func taskFlag(names ...string) cli.Flag {
	return &cli.StringFlag{
		Name: "task", Value: names[0], Usage: "one of " + strings.Join(names, ", "),
		Action: func(_ *cli.Context, value string) error {
			if slices.Contains(names, value) {
				return nil
			}
			if len(names) == 1 {
				return usageErrorf("--task: %q: the only choice is %s", value, names[0])
			}
			return usageErrorf("--task: %q is none of %s", value, strings.Join(names, ", "))
		},
	}
}

// builtin is the name of the built-in data set.
const builtin = "built-in questions"

// all is the value of --split that takes every row.
const all = "all"

// chosenRows are the rows of one split of a data set.
type chosenRows struct {
	name  string // of the data set
	split string // dataset.Train, Val or Test, or all
	rows  []dataset.Row
}

// chooseRows reads the data set of rowFlags, the built-in one where none is named.
func chooseRows(c *cli.Context) (chosenRows, error) {
	chosen := chosenRows{name: c.String("dataset"), split: c.String("split")}
	switch chosen.split {
	case "", all, dataset.Train, dataset.Val, dataset.Test:
	case "validation":
		chosen.split = dataset.Val
	default:
		return chosen, usageErrorf("--split: %q is none of test, val, train and all", chosen.split)
	}
	rows, err := readRows(c)
	if err != nil {
		return chosen, err
	}
	if chosen.name == "" {
		chosen.name = builtin
	}
	divided := rows[0].Split != ""
	switch {
	case chosen.split == "" && divided:
		chosen.split = dataset.Test
	case chosen.split == "":
		chosen.split = all
	case chosen.split != all && !divided:
		return chosen, usageErrorf("--split %s: the rows of %s have no split; use --split all, or add a column with train, val or test", chosen.split, chosen.name)
	}
	for _, r := range rows {
		if chosen.split == all || r.Split == chosen.split {
			chosen.rows = append(chosen.rows, r)
		}
	}
	if len(chosen.rows) == 0 {
		return chosen, fmt.Errorf("%s has no %s rows; choose another --split", chosen.name, chosen.split)
	}
	if limit := c.Int("max-samples"); limit > 0 {
		if chosen.rows = dataset.Balance(chosen.rows, limit); len(chosen.rows) == 0 {
			return chosen, usageErrorf("--max-samples: %d rows are fewer than the labels; give at least one row a label", limit)
		}
	}
	return chosen, nil
}

// encode turns the rows into examples of the policy's.
func (r chosenRows) encode(policy *algo.LabelPolicy) (algo.Examples, error) {
	examples, err := policy.Encode(r.rows)
	if err != nil && r.name == builtin {
		return examples, fmt.Errorf("%s: %w; name the model's kind of texts with --dataset FILE", builtin, err)
	}
	return examples, err
}

func readRows(c *cli.Context) ([]dataset.Row, error) {
	path := c.String("dataset")
	if path != "" {
		columns := dataset.Columns{Text: c.String("text-column"), Label: c.String("label-column"), Split: c.String("split-column")}
		if columns.Text == columns.Label {
			return nil, usageErrorf("--text-column and --label-column are both %q; name two columns", columns.Text)
		}
		client, done := hubOf(c)
		defer done()
		parts, err := algo.FindDataset(c.Context, client, path, c.String("dataset-config"), classifierParts...)
		if err != nil {
			return nil, fmt.Errorf("--dataset: %w", err)
		}
		return dataset.ReadParts(parts, columns)
	}
	for _, flag := range []string{"dataset-config", "text-column", "label-column", "split-column"} {
		if c.IsSet(flag) {
			return nil, usageErrorf("--%s: applies only with --dataset FILE", flag)
		}
	}
	return intent.Builtin(), nil
}
