package shared

import "strings"

// ShellQuote quotes a text for a POSIX shell.
func ShellQuote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// ShellWord quotes a path that has characters with a meaning to a shell.
func ShellWord(path string) string {
	for _, r := range path {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/+=@%:,", r) {
			return ShellQuote(path)
		}
	}
	return path
}
