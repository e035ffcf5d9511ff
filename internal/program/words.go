package program

import (
	"errors"
	"strings"
)

// splitWords parts a command into words at spaces, tabs and line ends, by a shell's rules for
// quotes: nothing is special between ' and ', between " and " a backslash keeps " and \ from
// being special, and outside of quotes any character.
func splitWords(command string) ([]string, error) {
	var words []string
	var word strings.Builder
	var quote byte // 0 outside of quotes
	begun := false
	for i := 0; i < len(command); i++ {
		c := command[i]
		escapes := c == '\\' && (quote == 0 || quote == '"' && i+1 < len(command) && (command[i+1] == '"' || command[i+1] == '\\'))
		switch {
		case escapes:
			if i++; i == len(command) {
				return nil, errors.New("the command ends in a backslash")
			}
			word.WriteByte(command[i])
			begun = true
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteByte(c)
		case c == '\'' || c == '"':
			quote, begun = c, true
		case strings.IndexByte(" \t\r\n", c) >= 0:
			if begun {
				words = append(words, word.String())
				word.Reset()
				begun = false
			}
		default:
			word.WriteByte(c)
			begun = true
		}
	}
	if quote != 0 {
		return nil, errors.New("a quote in the command is not closed")
	}
	if begun {
		words = append(words, word.String())
	}
	if len(words) == 0 || words[0] == "" {
		return nil, errors.New("the command names no program")
	}
	return words, nil
}
