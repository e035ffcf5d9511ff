package envs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs/dataset"
)

// LabelledRows are the options of a task that reads labelled texts. Embedded in a task's options, they make it a
// RowSource.
type LabelledRows struct {
	Dataset       string `option:"dataset" arg:"FILE|NAME" common:"true" help:"texts and labels: a file (csv, json, jsonl, parquet, also gzipped), a folder of files, or a name on the hub"`
	DatasetConfig string `option:"dataset_config" needs:"dataset" help:"configuration of --dataset, if it has several"`
	TextColumn    string `option:"text_column" default:"text" needs:"dataset" help:"column with the text"`
	LabelColumn   string `option:"label_column" default:"label" needs:"dataset" help:"column with the label"`
	SplitColumn   string `option:"split_column" needs:"dataset" help:"column with train, val or test; without it the column split, and if there is none a split of 70/15/15 by class"`
	dataset.OnBadRow
	MaxSamples int `option:"max_samples" range:"[0,)" help:"most rows to use, equally many per class (0 = all)"`
}

// Check reports conflicting options.
func (o *LabelledRows) Check() error {
	if o.TextColumn == o.LabelColumn {
		return OptionErrorf("label_column", "is %q, as text_column is; name two columns", o.TextColumn)
	}
	return nil
}

// Rows reads the data set.
func (o *LabelledRows) Rows(ctx context.Context, s Setup) ([]dataset.Row, error) {
	parts, err := s.Find(ctx, o.Dataset, o.DatasetConfig, "train", "validation", "test")
	if err != nil {
		return nil, &OptionError{"dataset", err}
	}
	faults := o.Faults()
	rows, err := s.Reader.Rows(parts, dataset.Columns{Text: o.TextColumn, Label: o.LabelColumn, Split: o.SplitColumn}, faults)
	if err != nil {
		return nil, o.nameColumns(err)
	}
	if n := dataset.DistinctLabels(rows); n > mostLabels && n*10 > len(rows)*9 {
		return nil, OptionErrorf("label_column", "column %q has %d different values in %d rows, so it is no label; name another column", o.LabelColumn, n, len(rows))
	}
	if rows, err = dataset.Distinct(rows, faults); err != nil {
		return nil, err
	}
	s.TellSkipped(faults)
	return o.Balanced(rows)
}

// nameColumns adds to an error of missing columns the options that name them.
func (o *LabelledRows) nameColumns(err error) error {
	lacks := (*dataset.ColumnError)(nil)
	if !errors.As(err, &lacks) {
		return err
	}
	var flags []string
	for _, one := range []struct{ flag, column string }{{"--text-column", o.TextColumn}, {"--label-column", o.LabelColumn}, {"--split-column", o.SplitColumn}} {
		if slices.Contains(lacks.Missing, one.column) {
			flags = append(flags, one.flag+" NAME")
		}
	}
	return fmt.Errorf("%w; pass %s", err, strings.Join(flags, " "))
}

// mostLabels is the number of labels that may have one row each.
const mostLabels = 8

// LabelsOf returns the labels of rows, in the order of dataset.Labels.
func (o *LabelledRows) LabelsOf(rows []dataset.Row) ([]string, error) { return dataset.Labels(rows) }

// Balanced limits the rows of each label to MaxSamples in total.
func (o *LabelledRows) Balanced(rows []dataset.Row) ([]dataset.Row, error) {
	if o.MaxSamples == 0 {
		return rows, nil
	}
	labels, err := dataset.Labels(rows)
	if err != nil {
		return nil, err
	}
	if o.MaxSamples < len(labels) {
		return nil, OptionErrorf("max_samples", "%d rows cannot be shared out among %d labels", o.MaxSamples, len(labels))
	}
	return dataset.Balance(rows, o.MaxSamples), nil
}
