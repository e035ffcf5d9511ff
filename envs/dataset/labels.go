package dataset

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/internal/nearest"
	"github.com/rltrain/rltrain/internal/words"
)

// Labels returns the distinct labels of rows in the order of a model's classes: that of the file's list of classes, else
// numbers by value, else by bytes. Fewer than two labels are an error, because there is nothing to classify.
func Labels(rows []Row) ([]string, error) {
	classes := map[string]int{}
	numbers := true
	for _, r := range rows {
		if _, known := classes[r.Label]; !known {
			_, err := strconv.ParseInt(r.Label, 10, 64)
			numbers = numbers && err == nil
		}
		classes[r.Label] = r.Class
	}
	labels := slices.SortedFunc(maps.Keys(classes), func(a, b string) int {
		if by := cmp.Compare(classes[a], classes[b]); by != 0 || !numbers {
			return cmp.Or(by, cmp.Compare(a, b))
		}
		x, _ := strconv.ParseInt(a, 10, 64)
		y, _ := strconv.ParseInt(b, 10, 64)
		return cmp.Or(cmp.Compare(x, y), cmp.Compare(a, b))
	})
	if len(labels) < 2 {
		if len(rows) == 0 {
			return nil, fmt.Errorf("no rows; training needs rows with at least two labels")
		}
		return nil, fmt.Errorf("%s: all %d rows have label %s; training needs at least two labels", rows[0].File, len(rows), words.Quote(labels[0]))
	}
	return labels, nil
}

// DistinctLabels is the number of different labels.
func DistinctLabels(rows []Row) int {
	labels := map[string]bool{}
	for _, r := range rows {
		labels[r.Label] = true
	}
	return len(labels)
}

// LabelIndex returns the index in labels of each row's label. An unknown label is an error that names the row, because a
// model cannot predict a class that it was not trained on.
func LabelIndex(rows []Row, labels []string) ([]int, error) {
	index := make(map[string]int, len(labels))
	for i, l := range labels {
		index[l] = i
	}
	out := make([]int, len(rows))
	for i, r := range rows {
		j, ok := index[r.Label]
		if !ok {
			return nil, unknownLabel(r, labels)
		}
		out[i] = j
	}
	return out, nil
}

// maxListed is the number of labels that an error lists.
const maxListed = 20

func unknownLabel(r Row, labels []string) error {
	list := strings.Join(labels[:min(len(labels), maxListed)], ", ")
	if more := len(labels) - maxListed; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Errorf("%s: label %s is not one of %s%s", place{path: r.File, line: r.Line}, words.Quote(r.Label), list, nearest.Hint(r.Label, labels, words.Quote))
}
