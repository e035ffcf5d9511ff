package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/config"
	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/options"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
)

// rowFlags select labelled rows, threads and device.
func rowFlags() []cli.Flag {
	return append(config.Flags("dataset", "dataset_config", "text_column", "label_column", "max_samples", "threads", "device"),
		&cli.StringFlag{Name: "split-column", Usage: "column of --dataset with train, val or test", DefaultText: "split, if present"},
		&cli.StringFlag{Name: "split", Usage: "rows to use: test, val, train or all", DefaultText: "test, or all if rows have no split"})
}

// labelTasks lists the classification tasks, the default one first.
func labelTasks() []string {
	return tasksWhere(func(d envs.Definition) bool { return d.Labels() && !d.Decides() })
}

// tasksWhere lists the tasks that fit, the default one first.
func tasksWhere(fits func(envs.Definition) bool) []string {
	var names []string
	for _, d := range envs.Definitions() {
		switch {
		case !fits(d):
		case d.Default:
			names = append([]string{d.Name}, names...)
		default:
			names = append(names, d.Name)
		}
	}
	return names
}

// chosenRows are the rows of one split of a data set.
type chosenRows struct {
	name    string // of the data set
	builtin bool   // the task's built-in data
	split   string // dataset.Train, Val or Test, or shared.AllRows
	rows    []dataset.Row
	val     []dataset.Row // of the split val, unless that is chosen
}

// chooseRows reads the data set of rowFlags, by default the built-in one.
func chooseRows(c *cli.Context) (chosenRows, error) {
	chosen := chosenRows{name: c.String("dataset"), split: c.String("split")}
	switch chosen.split {
	case "", shared.AllRows, dataset.Train, dataset.Val, dataset.Test:
	case "validation":
		chosen.split = dataset.Val
	default:
		return chosen, shared.UsageErrorf("--split: %q is not one of test, val, train, all", chosen.split)
	}
	rows, err := readRows(c)
	if err != nil {
		return chosen, err
	}
	if chosen.name == "" {
		d, err := envs.Find(c.String("task"))
		if err != nil {
			return chosen, err
		}
		chosen.name, chosen.builtin = d.BuiltIn, true
	}
	divided := rows[0].Split != ""
	switch {
	case chosen.split == "" && divided:
		chosen.split = dataset.Test
	case chosen.split == "":
		chosen.split = shared.AllRows
	case chosen.split != shared.AllRows && !divided:
		return chosen, shared.UsageErrorf("--split %s: %s has no splits; use --split all, or add a column with train, val or test", chosen.split, chosen.name)
	}
	for _, r := range rows {
		if chosen.split == shared.AllRows || r.Split == chosen.split {
			chosen.rows = append(chosen.rows, r)
		} else if r.Split == dataset.Val {
			chosen.val = append(chosen.val, r)
		}
	}
	if len(chosen.rows) == 0 {
		return chosen, fmt.Errorf("%s has no %s rows; choose another --split", chosen.name, chosen.split)
	}
	if limit := c.Int("max-samples"); limit > 0 {
		if chosen.rows = dataset.Balance(chosen.rows, limit); len(chosen.rows) == 0 {
			return chosen, shared.UsageErrorf("--max-samples: %d is below the number of labels; allow at least one row per label", limit)
		}
	}
	return chosen, nil
}

// encode tokenizes the rows for the classifier.
func (r chosenRows) encode(p *policy.Classifier) (policy.Examples, error) {
	examples, err := p.Encode(r.rows)
	if err != nil && r.builtin {
		return examples, fmt.Errorf("%s: %w; pass data with the model's labels as --dataset FILE", r.name, err)
	}
	return examples, err
}

// dataReader reads data sets and prints the progress of long ones on standard error.
func dataReader(c *cli.Context) dataset.Reader {
	return dataset.Reader{Progress: func(line string) { fmt.Fprintln(c.App.ErrWriter, line) }}
}

// settingsOf returns those of the named flags that are given.
func settingsOf(c *cli.Context, flags ...string) envs.Settings {
	settings := envs.Settings{}
	for _, flag := range flags {
		if c.IsSet(flag) {
			settings[strings.ReplaceAll(flag, "-", "_")] = fmt.Sprint(c.Value(flag))
		}
	}
	return settings
}

// usageFault converts an error that names an option to a usage error.
func usageFault(err error) error {
	if wrong := (*envs.OptionError)(nil); errors.As(err, &wrong) {
		return shared.UsageErrorf("%s: %v", options.Flag(wrong.Option), wrong.Err)
	}
	return err
}

// readRows reads the rows of --dataset, or the built-in ones.
func readRows(c *cli.Context) ([]dataset.Row, error) {
	flags := []string{"dataset", "dataset-config", "text-column", "label-column", "split-column"}
	if at := slices.IndexFunc(flags, c.IsSet); at >= 0 && c.String("dataset") == "" {
		return nil, shared.UsageErrorf("--%s: needs --dataset FILE", flags[at])
	}
	d, err := envs.Find(c.String("task"))
	if err != nil {
		return nil, err
	}
	o := d.Options()
	if err := settingsOf(c, flags...).Set(o); err != nil {
		return nil, err
	}
	if checked, ok := o.(interface{ Check() error }); ok {
		if err := checked.Check(); err != nil {
			return nil, usageFault(err)
		}
	}
	client, done := shared.HubOf(c)
	defer done()
	rows, err := o.(envs.RowSource).Rows(c.Context, envs.Setup{Find: shared.Finder(client), Reader: dataReader(c)})
	if fault := (*envs.OptionError)(nil); errors.As(err, &fault) {
		return nil, fmt.Errorf("%s: %w", options.Flag(fault.Option), fault.Err)
	}
	return rows, err
}

// scopeFlags are the flags for texts outside a classifier's labels.
func scopeFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "out-of-scope-label", Usage: "label of rows that belong to none of the model's labels"},
		&cli.Float64Flag{Name: "rejection", Usage: "with --out-of-scope-label: reject texts whose top label is below this probability", DefaultText: "chosen on split val"},
	}
}

// outOfScopeRows are the rows outside a classifier's labels, and the validation rows that choose the threshold.
type outOfScopeRows struct {
	label     string
	rows      []dataset.Row
	in, out   []dataset.Row // of split val; nil if the threshold is given
	threshold float64
	chosen    string
}

// splitOutOfScope moves rows labelled --out-of-scope-label out of chosen. It returns nil if the flag is not set.
func splitOutOfScope(c *cli.Context, p *policy.Classifier, chosen *chosenRows) (*outOfScopeRows, error) {
	o := &outOfScopeRows{label: c.String("out-of-scope-label")}
	given := c.IsSet("rejection")
	switch {
	case o.label == "" && given:
		return nil, shared.UsageErrorf("--rejection: needs --out-of-scope-label NAME")
	case o.label == "":
		return nil, nil
	case slices.Contains(p.Labels, o.label):
		return nil, shared.UsageErrorf("--out-of-scope-label: %q is a label of the model", o.label)
	}
	chosen.rows, o.rows = o.divide(chosen.rows)
	if len(o.rows) == 0 || len(chosen.rows) == 0 {
		return nil, shared.UsageErrorf("--out-of-scope-label: %s has %d rows with label %q and %d with other labels; both are needed", chosen.name, len(o.rows), o.label, len(chosen.rows))
	}
	if given {
		if o.threshold = c.Float64("rejection"); !(o.threshold >= 0 && o.threshold <= 1) {
			return nil, shared.UsageErrorf("--rejection: %v is out of range; it must be 0 to 1", o.threshold)
		}
		return o, nil
	}
	o.in, o.out = o.divide(chosen.val)
	if o.chosen = dataset.Val; len(o.in) == 0 || len(o.out) == 0 {
		return nil, shared.UsageErrorf("--out-of-scope-label: choosing the threshold needs both kinds of rows in split val; %s has %d with label %q and %d others; pass --rejection P",
			chosen.name, len(o.out), o.label, len(o.in))
	}
	return o, nil
}

func (o *outOfScopeRows) divide(rows []dataset.Row) (in, out []dataset.Row) {
	for _, r := range rows {
		if r.Label == o.label {
			out = append(out, r)
		} else {
			in = append(in, r)
		}
	}
	return in, out
}

// measure chooses the threshold if needed, and measures it on the rows in scope (in) and outside.
func (o *outOfScopeRows) measure(ctx context.Context, c *cli.Context, p *policy.Classifier, in []rl.Sureness) (*rl.OutOfScope, error) {
	outside, err := o.sureness(ctx, c, p, o.rows)
	if err != nil {
		return nil, err
	}
	if o.chosen != "" {
		valIn, err := o.sureness(ctx, c, p, o.in)
		if err != nil {
			return nil, err
		}
		valOut, err := o.sureness(ctx, c, p, o.out)
		if err != nil {
			return nil, err
		}
		if o.threshold, err = rl.RejectionThreshold(valIn, valOut); err != nil {
			return nil, fmt.Errorf("choosing the threshold: %w", err)
		}
	}
	found, err := rl.MeasureOutOfScope(o.threshold, in, outside)
	found.Label, found.Chosen = o.label, o.chosen
	return &found, err
}

// sureness returns the policy's confidence in each row.
func (o *outOfScopeRows) sureness(ctx context.Context, c *cli.Context, p *policy.Classifier, rows []dataset.Row) ([]rl.Sureness, error) {
	rows = slices.Clone(rows)
	for i, r := range rows {
		if r.Label == o.label {
			rows[i].Label = p.Labels[0] // any label, so that the row can be encoded
		}
	}
	examples, err := p.Encode(rows)
	if err != nil {
		return nil, err
	}
	probs, err := predictAll(ctx, c, "rejecting", p, examples.IDs)
	if err != nil {
		return nil, err
	}
	return rl.SurenessOf(examples.Labels, probs), nil
}
