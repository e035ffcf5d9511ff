package envs

import (
	"context"

	"github.com/rltrain/rltrain/envs/dataset"
)

// ProblemFiles returns the files of the training and of the evaluation problems, nil for none. They come from the options
// dataset, with its configuration, and eval_dataset: each a file, a folder or a name on the hub. A data set that only
// evaluates gives its test split, else its validation split, else all rows. A training set without an evaluation set
// evaluates on its own validation split.
func (s Setup) ProblemFiles(set, config, evalSet string) (train, eval []string, err error) {
	tested := []string{dataset.Test, dataset.Val, dataset.Train}
	if set != "" {
		judged := s.EvalOnly && evalSet == ""
		wanted := []string{"train", "validation"}
		if judged {
			wanted = nil
		}
		parts, err := s.Parts("dataset", set, config, wanted...)
		if err != nil {
			return nil, nil, err
		}
		if judged {
			eval = firstOf(parts, tested)
		} else {
			if train, err = dataset.FilesOf(parts, dataset.Train); err != nil {
				return nil, nil, &OptionError{Option: "dataset", Err: err}
			}
			eval = firstOf(parts, []string{dataset.Val})
		}
	}
	if evalSet != "" {
		if evalSet != set {
			config = ""
		}
		parts, err := s.Parts("eval_dataset", evalSet, config)
		if err != nil {
			return nil, nil, err
		}
		eval = firstOf(parts, tested)
	}
	return train, eval, nil
}

// firstOf returns the files of the first of some splits that a data set has, or nil.
func firstOf(parts []dataset.Part, splits []string) []string {
	for _, split := range splits {
		if files, err := dataset.FilesOf(parts, split); err == nil {
			return files
		}
	}
	return nil
}

// MixedFiles returns the files of a split of a further data set, which the option dataset_mix names.
func (s Setup) MixedFiles(ctx context.Context, name, split string) ([]string, error) {
	s.Context = ctx
	parts, err := s.Parts("dataset_mix", name, "", split)
	if err != nil {
		return nil, err
	}
	files, err := dataset.FilesOf(parts, split)
	if err != nil {
		return nil, OptionErrorf("dataset_mix", "%s: %w", name, err)
	}
	return files, nil
}
