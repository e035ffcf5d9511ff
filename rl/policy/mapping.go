package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/internal/outfile"
	"github.com/rltrain/rltrain/internal/smallfile"
)

// The label files next to a classifier's weights. Both hold the same object; the semantic-router reads the first to merge
// a model and the second to serve one.
//
//	{"category_to_idx": {"biology": 0, …}, "idx_to_category": {"0": "biology", …}}
const (
	labelMapping    = "label_mapping.json"
	categoryMapping = "category_mapping.json"
)

// WriteMapping writes label_mapping.json and category_mapping.json into dir; output i of the model means labels[i]. Each
// file is written atomically.
func WriteMapping(dir string, labels []string) error {
	content, err := encodeMapping(labels)
	if err != nil {
		return fmt.Errorf("writing labels to %s: %w", dir, err)
	}
	for _, name := range []string{labelMapping, categoryMapping} {
		if err := outfile.Write(filepath.Join(dir, name), content, 0o644); err != nil {
			return fmt.Errorf("writing labels: %w", err)
		}
	}
	return nil
}

// ReadMapping returns the labels of the model in dir, by index. Both files must exist and agree. With C ≥ 2 labels, the
// indices must be 0 to C-1 and the two fields inverse to each other. Errors name the file and the field.
func ReadMapping(dir string) ([]string, error) {
	var first []string
	for _, name := range []string{labelMapping, categoryMapping} {
		path := filepath.Join(dir, name)
		content, err := smallfile.Read(path)
		if err != nil {
			return nil, fmt.Errorf("reading labels: %w", err)
		}
		labels, err := decodeMapping(content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if first != nil && !slices.Equal(first, labels) {
			return nil, fmt.Errorf("%s: labels differ from %s in the same folder; copy the correct file over the other", path, labelMapping)
		}
		first = labels
	}
	return first, nil
}

// encodeMapping keeps the order of the labels: encoding/json would sort "0", "1", "10".
func encodeMapping(labels []string) ([]byte, error) {
	if err := checkLabels(labels); err != nil {
		return nil, err
	}
	var toIndex, toName dataset.Object
	for i, label := range labels {
		toIndex = append(toIndex, dataset.Field{Name: label, Value: int64(i)})
		toName = append(toName, dataset.Field{Name: strconv.Itoa(i), Value: label})
	}
	return indented(dataset.Object{{Name: "category_to_idx", Value: toIndex}, {Name: "idx_to_category", Value: toName}})
}

func wrongType(err *json.UnmarshalTypeError) error {
	switch err.Field {
	case "category_to_idx":
		return fmt.Errorf("field %s: got a JSON %s, want an integer for every label", err.Field, err.Value)
	case "idx_to_category":
		return fmt.Errorf("field %s: got a JSON %s, want a name for every index", err.Field, err.Value)
	}
	return fmt.Errorf("got a JSON %s, want an object with the fields category_to_idx and idx_to_category", err.Value)
}

func checkLabels(labels []string) error {
	if len(labels) < 2 {
		return fmt.Errorf("%d labels; at least 2 are needed", len(labels))
	}
	seen := make(map[string]bool, len(labels))
	for i, l := range labels {
		switch {
		case strings.TrimSpace(l) == "":
			return fmt.Errorf("label %d is empty", i)
		case !utf8.ValidString(l):
			return fmt.Errorf("label %q is not UTF-8", l)
		case seen[l]:
			return fmt.Errorf("label %q occurs twice", l)
		}
		seen[l] = true
	}
	return nil
}

func decodeMapping(content []byte) ([]string, error) {
	if !utf8.Valid(content) {
		return nil, errors.New("the file is not UTF-8")
	}
	var m struct {
		ToIndex map[string]int    `json:"category_to_idx"`
		ToName  map[string]string `json:"idx_to_category"`
	}
	dec := json.NewDecoder(bytes.NewReader(content))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&m); err != nil {
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return nil, wrongType(wrong)
		}
		return nil, fmt.Errorf("invalid JSON: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("trailing data after the object")
	}
	if m.ToIndex == nil {
		return nil, errors.New("field category_to_idx is missing")
	}
	if m.ToName == nil {
		return nil, errors.New("field idx_to_category is missing")
	}
	n := len(m.ToName)
	if len(m.ToIndex) != n {
		return nil, fmt.Errorf("field category_to_idx has %d entries, idx_to_category %d; both need one per label", len(m.ToIndex), n)
	}
	labels := make([]string, n)
	for i := range labels {
		label, ok := m.ToName[strconv.Itoa(i)]
		if !ok {
			return nil, fmt.Errorf("field idx_to_category: index \"%d\" is missing; want \"0\" to \"%d\"", i, n-1)
		}
		index, ok := m.ToIndex[label]
		if !ok {
			return nil, fmt.Errorf("field category_to_idx: label %q is missing; idx_to_category has it at \"%d\"", label, i)
		}
		if index != i {
			return nil, fmt.Errorf("label %q: category_to_idx has index %d, idx_to_category has \"%d\"", label, index, i)
		}
		labels[i] = label
	}
	return labels, checkLabels(labels)
}
