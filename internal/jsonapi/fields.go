package jsonapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// Any allows every value of a neutral field.
const Any = "*"

// DropNeutral deletes the fields of a request that have no effect: those in neutral, if they are null or have one of the values
// listed there. It returns the name of another field that is not known, and what is wrong with it. Names are case-sensitive.
func DropNeutral(fields map[string]json.RawMessage, known []string, neutral map[string][]string) (name string, err error) {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		allowed, listed := neutral[name]
		value := Compact(fields[name])
		switch {
		case listed && (value == "null" || slices.Contains(allowed, value) || slices.Contains(allowed, Any)):
			delete(fields, name)
		case listed:
			return name, fmt.Errorf("%s %.100s is not supported", name, value)
		case !slices.Contains(known, name):
			return name, fmt.Errorf("%.100s is not supported", name)
		}
	}
	return "", nil
}

// Compact is JSON without white space; what is not JSON stays as it is.
func Compact(value json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, value) != nil {
		return string(value)
	}
	return b.String()
}
