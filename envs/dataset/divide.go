package dataset

import (
	"fmt"
	"iter"

	"github.com/rltrain/rltrain/internal/words"
)

// Divided is a data set split into training and validation.
type Divided struct {
	Train, Validation iter.Seq2[Record, error]
	// Given means that the data set has its own validation split. Otherwise Validation is empty.
	Given bool
}

// splitColumn is the column that splits a data set without split files.
const splitColumn = "split"

// Divide uses the data set's own splits: validation files if there are any, else the column "split" if its first row has
// train, val, validation or test. Then every row must have one of them. Test rows are skipped. Errors are those of the
// first row.
func (f Reader) Divide(parts []Part) (Divided, error) {
	files, err := FilesOf(parts, Train)
	if err != nil {
		return Divided{}, err
	}
	d := Divided{Train: f.Records(files...), Validation: Records()}
	if held, err := FilesOf(parts, Val); err == nil {
		d.Validation, d.Given = f.Records(held...), true
		return d, nil
	}
	for r, err := range d.Train {
		if err != nil {
			return Divided{}, err
		}
		if _, err := r.split(); err == nil {
			d.Given = true
			d.Train, d.Validation = inSplit(f.Records(files...), Train), inSplit(f.Records(files...), Val)
		}
		break
	}
	return d, nil
}

// split returns the split column of a record.
func (r Record) split() (string, error) {
	value, _ := r.Fields.Get(splitColumn)
	name, ok := value.(string)
	if !ok {
		return "", fmt.Errorf("%s: column %s: got %s, want train, val, validation or test", r.Place(), words.Quote(splitColumn), Kind(value))
	}
	part, err := partOf(name)
	if err == nil && part == "" {
		err = fmt.Errorf("empty; want train, val, validation or test in every row")
	}
	if err != nil {
		return "", fmt.Errorf("%s: column %s: %w", r.Place(), words.Quote(splitColumn), err)
	}
	return part, nil
}

// inSplit yields the records of one split.
func inSplit(records iter.Seq2[Record, error], want string) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for r, err := range records {
			part := want
			if err == nil {
				part, err = r.split()
			}
			if err != nil {
				yield(Record{}, err)
				return
			}
			if part == want && !yield(r, nil) {
				return
			}
		}
	}
}
