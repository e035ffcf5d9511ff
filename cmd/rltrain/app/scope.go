package app

import (
	"context"
	"fmt"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/policy"
)

// scopeFlags are for texts that have none of a classifier's labels.
func scopeFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "out-of-scope-label", Usage: "label of the rows that have none of the model's"},
		rejectionFlag("with --out-of-scope-label: reject texts whose likeliest label is less probable than this", "chosen on the rows of split val"),
	}
}

func rejectionFlag(usage, usual string) cli.Flag {
	return &cli.Float64Flag{Name: "rejection", Usage: usage, DefaultText: usual}
}

// rejection is the threshold of --rejection.
func rejection(c *cli.Context) (float64, error) {
	p := c.Float64("rejection")
	if !(p >= 0 && p <= 1) {
		return 0, shared.UsageErrorf("--rejection: %v is no probability; it must be in [0,1]", p)
	}
	return p, nil
}

// outsiders are the rows that have none of a classifier's labels, and those that choose the threshold.
type outsiders struct {
	label     string
	rows      []dataset.Row
	in, out   []dataset.Row // of split val; none where the threshold is given
	threshold float64
	chosen    string
}

// leaveOutOfScope takes the rows with the label of --out-of-scope-label out of those chosen; nil where there is no such
// label.
func leaveOutOfScope(c *cli.Context, p *policy.Classifier, chosen *chosenRows) (*outsiders, error) {
	o := &outsiders{label: c.String("out-of-scope-label")}
	given := c.IsSet("rejection")
	switch {
	case o.label == "" && given:
		return nil, shared.UsageErrorf("--rejection: applies only with --out-of-scope-label NAME")
	case o.label == "":
		return nil, nil
	case slices.Contains(p.Labels, o.label):
		return nil, shared.UsageErrorf("--out-of-scope-label: %q is one of the model's own labels", o.label)
	}
	chosen.rows, o.rows = o.divide(chosen.rows)
	if len(o.rows) == 0 || len(chosen.rows) == 0 {
		return nil, shared.UsageErrorf("--out-of-scope-label: %d of the chosen rows of %s have the label %q and %d another one: both are needed", len(o.rows), chosen.name, o.label, len(chosen.rows))
	}
	if given {
		var err error
		o.threshold, err = rejection(c)
		return o, err
	}
	o.in, o.out = o.divide(chosen.val)
	if o.chosen = dataset.Val; len(o.in) == 0 || len(o.out) == 0 {
		return nil, shared.UsageErrorf("--out-of-scope-label: the threshold is chosen on rows of split val that are not measured too, of which %s has %d with the label %q and %d others; give it with --rejection P",
			chosen.name, len(o.out), o.label, len(o.in))
	}
	return o, nil
}

func (o *outsiders) divide(rows []dataset.Row) (in, out []dataset.Row) {
	for _, r := range rows {
		if r.Label == o.label {
			out = append(out, r)
		} else {
			in = append(in, r)
		}
	}
	return in, out
}

// measure chooses the threshold, unless it is given, and says what it does to the rows in scope, and to those outside.
func (o *outsiders) measure(ctx context.Context, c *cli.Context, p *policy.Classifier, in []rl.Sureness) (*rl.OutOfScope, error) {
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

// sureness is how sure the policy is of each row.
func (o *outsiders) sureness(ctx context.Context, c *cli.Context, p *policy.Classifier, rows []dataset.Row) ([]rl.Sureness, error) {
	rows = slices.Clone(rows)
	for i, r := range rows {
		if r.Label == o.label {
			rows[i].Label = p.Labels[0] // to be encoded; it is right for none
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
