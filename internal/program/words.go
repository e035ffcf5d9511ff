package program

import (
	"errors"
	"os/exec"
	"strings"
)

// Look splits a command as [Words] does and looks up its program.
func Look(command string) ([]string, error) {
	words, err := Words(command)
	if err != nil {
		return nil, err
	}
	words[0], err = exec.LookPath(words[0])
	return words, err
}

// Words splits a command into words with a shell's quoting rules: '…' is literal, in "…" a backslash escapes " and \,
// and outside quotes a backslash escapes any character.
func Words(command string) ([]string, error) {
	var words []string
	var word strings.Builder
	var quote byte // 0 outside quotes
	begun := false
	for i := 0; i < len(command); i++ {
		c := command[i]
		escapes := c == '\\' && (quote == 0 || quote == '"' && i+1 < len(command) && (command[i+1] == '"' || command[i+1] == '\\'))
		switch {
		case escapes:
			if i++; i == len(command) {
				return nil, errors.New("trailing backslash in the command")
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
		return nil, errors.New("unclosed quote in the command")
	}
	if begun {
		words = append(words, word.String())
	}
	if len(words) == 0 || words[0] == "" {
		return nil, errors.New("the command is empty")
	}
	return words, nil
}
