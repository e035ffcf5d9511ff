package dataset

import (
	"fmt"
	"iter"
	"math"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/internal/words"
)

// Mixture is the option of tasks that train on several data sets.
type Mixture struct {
	Mix []string `option:"dataset_mix" arg:"FILE|NAME=WEIGHT,..." needs:"dataset" help:"more training data sets with the columns of --dataset; each row is used WEIGHT times per epoch, evenly spread: 0.5 = every second row, 2 = each row twice. Evaluation rows are those of --dataset"`
}

// Weighted is a data set of a mixture, and how often each of its rows is used.
type Weighted struct {
	Name   string
	Weight float64
}

// mostWeight bounds the rows that a mixture repeats.
const mostWeight = 1000

// Sets are the data sets besides --dataset.
func (m Mixture) Sets() (sets []Weighted, err error) {
	for _, one := range m.Mix {
		at := strings.LastIndex(one, "=")
		if at < 1 {
			return nil, fmt.Errorf("%s: want NAME=WEIGHT", words.Quote(one))
		}
		weight, err := strconv.ParseFloat(one[at+1:], 64)
		if err != nil || !(weight > 0 && weight <= mostWeight) {
			return nil, fmt.Errorf("%s: the weight must be a number above 0, at most %d", words.Quote(one), mostWeight)
		}
		sets = append(sets, Weighted{one[:at], weight})
	}
	return sets, nil
}

// Spread repeats the rows of a data set or leaves rows out: row i, from 0, is there ⌊(i+1)·Weight⌋ − ⌊i·Weight⌋ times, so that n
// rows become ⌊n·Weight⌋.
func (w Weighted) Spread(records iter.Seq2[Record, error]) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		i, given := 0, 0
		for r, err := range records {
			if err != nil {
				yield(r, err)
				return
			}
			i++
			for upTo := int(math.Floor(float64(i)*w.Weight + 1e-9)); given < upTo; given++ {
				if !yield(r, nil) {
					return
				}
			}
		}
	}
}
