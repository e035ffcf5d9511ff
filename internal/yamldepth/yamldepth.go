// Package yamldepth bounds the nesting of YAML before a parser allocates memory for each level.
package yamldepth

import "fmt"

// most is far above any real settings.
const most = 100

// Check returns an error if brackets, or nested entries on one line, are more than 100 deep. It ignores brackets in quotes
// and comments.
func Check(data []byte) error {
	depth, entries, line := 0, 0, 1
	quote := byte(0)
	first := true // only entry marks and spaces so far on this line
	for i := 0; i < len(data); i++ {
		c := data[i]
		switch {
		case c == '\n':
			entries, first = 0, true
			line++
			continue
		case quote != 0:
			if c == '\\' && quote == '"' {
				i++
			} else if c == quote {
				quote = 0
			}
			continue
		case (c == '"' || c == '\'') && (i == 0 || opens(data[i-1])):
			quote = c
		case c == '#' && (i == 0 || data[i-1] == ' ' || data[i-1] == '\n'):
			for i+1 < len(data) && data[i+1] != '\n' {
				i++
			}
			continue
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			depth = max(0, depth-1)
		case first && (c == '-' || c == '?' || c == ':') && i+1 < len(data) && (data[i+1] == ' ' || data[i+1] == '\t'):
			entries++
		}
		if depth > most || entries > most {
			return fmt.Errorf("line %d: nested more than %d deep", line, most)
		}
		first = first && (c == ' ' || c == '\t' || c == '-' || c == '?' || c == ':')
	}
	return nil
}

// opens reports whether a quote after this byte starts a string.
func opens(c byte) bool {
	switch c {
	case ' ', '\t', '\n', '[', '{', ',', ':':
		return true
	}
	return false
}
