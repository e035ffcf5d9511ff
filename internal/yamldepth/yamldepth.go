// Package yamldepth bounds how deep YAML is nested, before a parser spends memory on each level of it.
package yamldepth

import "fmt"

// most is far above any settings.
const most = 100

// Check returns an error where brackets, or entries that begin on one line, are nested more than 100 deep. Brackets in
// quotes and comments do not count.
func Check(data []byte) error {
	depth, entries, line := 0, 0, 1
	quote := byte(0)
	first := true // nothing but marks of entries and space was on the line
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

// opens tells whether a quote behind this byte begins a text.
func opens(c byte) bool {
	switch c {
	case ' ', '\t', '\n', '[', '{', ',', ':':
		return true
	}
	return false
}
