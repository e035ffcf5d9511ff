package config

import (
	"strings"

	"rltrain/internal/nearest"
)

// didYouMean is the tail of a message about an unknown name; format renders the suggestion.
func didYouMean(name string, candidates []string, format func(string) string) string {
	if s := nearest.Name(name, candidates); s != "" {
		return "; did you mean " + format(s) + "?"
	}
	return ""
}

func canonical(name string) string { return strings.ReplaceAll(name, "-", "_") }
