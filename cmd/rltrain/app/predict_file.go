package app

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/rltrain/rltrain/cmd/rltrain/shared"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/nearest"
	"github.com/rltrain/rltrain/internal/words"
)

// predictedRow has the fields that output rows add to input rows. Those of a blank text are null.
type predictedRow struct {
	Predicted   *string  `json:"predicted"`
	Probability *float32 `json:"probability"`
	Rejected    bool     `json:"rejected,omitempty"` // the probability is below --rejection
	Top         []scored `json:"top,omitempty"`      // with --top above 1
}

// file classifies the rows of --input.
func (p *predictor) file(ctx context.Context, c *cli.Context) error {
	return toOutput(c, func(out io.Writer) error {
		var batch []dataset.Record
		for r, err := range dataReader(c).Records(c.String("input")) {
			if err != nil {
				return err
			}
			if batch = append(batch, r); len(batch) < predictLines {
				continue
			}
			if err := p.rows(ctx, batch, c.String("text-column"), out); err != nil {
				return err
			}
			batch = batch[:0]
		}
		return p.rows(ctx, batch, c.String("text-column"), out)
	})
}

// rows writes a batch of rows with their predictions.
func (p *predictor) rows(ctx context.Context, batch []dataset.Record, column string, out io.Writer) error {
	var ids [][]int32
	blank := make([]bool, len(batch))
	for i, r := range batch {
		value, ok := r.Fields.Get(column)
		text, isText := value.(string)
		switch names := r.Fields.Names(); {
		case !ok:
			return shared.UsageErrorf("--text-column: %s: no column %s; columns are %s%s", r.Place(), words.Quote(column), words.List(names), nearest.Hint(column, names, words.Quote))
		case value != nil && !isText:
			return fmt.Errorf("%s: column %s: got %s, want a string", r.Place(), words.Quote(column), dataset.Kind(value))
		}
		if blank[i] = strings.TrimSpace(text) == ""; blank[i] {
			continue
		}
		encoded, cut, err := p.policy.EncodeText(text)
		if err != nil {
			return fmt.Errorf("%s: %w", r.Place(), err)
		}
		if p.texts++; cut {
			p.cut++
		}
		ids = append(ids, encoded)
	}
	probs, err := p.policy.Probs(ctx, ids)
	if err != nil {
		return err
	}
	for i, r := range batch {
		row := predictedRow{}
		if !blank[i] {
			best := p.best(probs[0])
			probs = probs[1:]
			row.Predicted, row.Probability, row.Rejected = &best[0].Label, &best[0].Probability, p.rejects(best)
			if p.Top > 1 {
				row.Top = best
			}
		}
		if err := writeRow(out, r.Fields, row); err != nil {
			return err
		}
	}
	return nil
}
