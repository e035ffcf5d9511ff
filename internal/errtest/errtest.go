// Package errtest checks errors in tests by what they name (file, line, field, value), not by their sentences.
package errtest

import "strings"

// Has reports whether the text of err contains the fragments of want in order. " … " separates fragments.
func Has(err error, want string) bool {
	if err == nil {
		return false
	}
	text := err.Error()
	for _, fragment := range strings.Split(want, " … ") {
		_, after, ok := strings.Cut(text, fragment)
		if !ok {
			return false
		}
		text = after
	}
	return true
}
