package dataset

import (
	"fmt"
	"iter"

	"github.com/rltrain/rltrain/internal/words"
)

// Divided is a data set in its two parts for training and validation.
type Divided struct {
	Train, Validation iter.Seq2[Record, error]
	// Given tells that the data set divides itself. Otherwise Validation is empty.
	Given bool
}

// splitColumn is the column that divides a data set of one part.
const splitColumn = "split"

// Divide divides a data set as it says itself: by its files, where some are for
// validation; otherwise by the column "split", where its first row has train,
// val, validation or test in it. Then each row has to have one of them. Rows for
// testing are left out. The error is that of the first row.
func Divide(parts []Part) (Divided, error) {
	files, err := FilesOf(parts, Train)
	if err != nil {
		return Divided{}, err
	}
	d := Divided{Train: Records(files...), Validation: Records()}
	if held, err := FilesOf(parts, Val); err == nil {
		d.Validation, d.Given = Records(held...), true
		return d, nil
	}
	for r, err := range d.Train {
		if err != nil {
			return Divided{}, err
		}
		if _, err := r.split(); err == nil {
			d.Given = true
			d.Train, d.Validation = inSplit(Records(files...), Train), inSplit(Records(files...), Val)
		}
		break
	}
	return d, nil
}

// split is what the column of splits says of a record.
func (r Record) split() (string, error) {
	value, _ := r.Fields.Get(splitColumn)
	name, ok := value.(string)
	if !ok {
		return "", fmt.Errorf("%s: column %s: %s, want train, val, validation or test in every row", r.Place(), words.Quote(splitColumn), Kind(value))
	}
	part, err := partOf(name)
	if err == nil && part == "" {
		err = fmt.Errorf("it is empty: want train, val, validation or test in every row")
	}
	if err != nil {
		return "", fmt.Errorf("%s: column %s: %w", r.Place(), words.Quote(splitColumn), err)
	}
	return part, nil
}

// inSplit are the records of one split.
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
