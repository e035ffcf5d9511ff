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
