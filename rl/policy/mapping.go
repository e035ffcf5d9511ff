package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/rltrain/rltrain/internal/outfile"
)

// The files beside a classifier's weights that name its outputs. Both hold the
// same object; the semantic-router reads the first when it merges a model and
// the second when it serves one.
//
//	{"category_to_idx": {"biology": 0, …}, "idx_to_category": {"0": "biology", …}}
const (
	labelMapping    = "label_mapping.json"
	categoryMapping = "category_mapping.json"
)

// WriteMapping writes label_mapping.json and category_mapping.json into dir;
// output i of the model means labels[i]. Each file appears whole or not at all.
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

// ReadMapping returns the labels of the model in dir by index. Both files have
// to be there and to say the same, their indices to be 0 to C-1 for C ≥ 2
// labels, and their two fields to be inverse to each other. Errors name the
// file and the field.
func ReadMapping(dir string) ([]string, error) {
	var first []string
	for _, name := range []string{labelMapping, categoryMapping} {
		path := filepath.Join(dir, name)
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("reading labels: %w", err)
		}
		labels, err := decodeMapping(content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if first != nil && !slices.Equal(first, labels) {
			return nil, fmt.Errorf("%s: the labels differ from those of %s beside it: copy the right file over the other", path, labelMapping)
		}
		first = labels
	}
	return first, nil
}

// encodeMapping writes by hand what encoding/json would order "0", "1", "10".
func encodeMapping(labels []string) ([]byte, error) {
	if err := checkLabels(labels); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	out.WriteString("{\n  \"category_to_idx\": {")
	for i, l := range labels {
		fmt.Fprintf(&out, "%s\n    %s: %d", comma(i), encodeString(l), i)
	}
	out.WriteString("\n  },\n  \"idx_to_category\": {")
	for i, l := range labels {
		fmt.Fprintf(&out, "%s\n    \"%d\": %s", comma(i), i, encodeString(l))
	}
	out.WriteString("\n  }\n}\n")
	return out.Bytes(), nil
}

func wrongType(err *json.UnmarshalTypeError) error {
	switch err.Field {
	case "category_to_idx":
		return fmt.Errorf("field %s: a JSON %s, want an integer for every label", err.Field, err.Value)
	case "idx_to_category":
		return fmt.Errorf("field %s: a JSON %s, want a name for every index", err.Field, err.Value)
	}
	return fmt.Errorf("a JSON %s, want an object with the fields category_to_idx and idx_to_category", err.Value)
}

func comma(i int) string {
	if i == 0 {
		return ""
	}
	return ","
}

func encodeString(s string) []byte {
	b, _ := json.Marshal(s) // a string cannot fail
	return b
}

func checkLabels(labels []string) error {
	if len(labels) < 2 {
		return fmt.Errorf("%d labels, want at least two", len(labels))
	}
	seen := make(map[string]bool, len(labels))
	for i, l := range labels {
		switch {
		case strings.TrimSpace(l) == "":
			return fmt.Errorf("the label with index %d is empty", i)
		case !utf8.ValidString(l):
			return fmt.Errorf("the label %q is not UTF-8", l)
		case seen[l]:
			return fmt.Errorf("the label %q occurs twice", l)
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
		return nil, errors.New("data behind the object")
	}
	if m.ToIndex == nil {
		return nil, errors.New("field category_to_idx is missing")
	}
	if m.ToName == nil {
		return nil, errors.New("field idx_to_category is missing")
	}
	n := len(m.ToName)
	if len(m.ToIndex) != n {
		return nil, fmt.Errorf("field category_to_idx has %d entries, idx_to_category %d: want one each for every label", len(m.ToIndex), n)
	}
	labels := make([]string, n)
	for i := range labels {
		label, ok := m.ToName[strconv.Itoa(i)]
		if !ok {
			return nil, fmt.Errorf("field idx_to_category has no \"%d\": want \"0\" to \"%d\"", i, n-1)
		}
		index, ok := m.ToIndex[label]
		if !ok {
			return nil, fmt.Errorf("field category_to_idx has no %q, which idx_to_category has at \"%d\"", label, i)
		}
		if index != i {
			return nil, fmt.Errorf("field category_to_idx has %q at %d, idx_to_category at \"%d\"", label, index, i)
		}
		labels[i] = label
	}
	return labels, checkLabels(labels)
}
