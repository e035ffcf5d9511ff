package wheel

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strings"
)

// login is a user name and a password.
type login struct{ name, password string }

// readNetrc returns the logins of $NETRC or ~/.netrc by host; "" is the default for all hosts.
func readNetrc() map[string]login {
	path := os.Getenv("NETRC")
	if path == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil
		}
		path = filepath.Join(home, ".netrc")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return parseNetrc(data)
}

// parseNetrc reads a netrc file. The first entry of a host counts. It skips macros and what it does not know.
func parseNetrc(data []byte) map[string]login {
	logins := map[string]login{}
	var host string
	var entry *login
	finish := func() {
		if entry == nil {
			return
		}
		if _, known := logins[host]; !known {
			logins[host] = *entry
		}
		entry = nil
	}
	words := netrcWords(data)
	for i := 0; i < len(words); i++ {
		value := ""
		if i+1 < len(words) {
			value = words[i+1]
		}
		switch words[i] {
		case "machine":
			finish()
			host, entry = strings.ToLower(value), &login{}
			i++
		case "default":
			finish()
			host, entry = "", &login{}
		case "login", "user", "password", "account":
			if entry != nil {
				switch words[i] {
				case "password":
					entry.password = value
				case "login", "user":
					entry.name = value
				}
			}
			i++
		}
	}
	finish()
	return logins
}

// netrcWords splits a netrc file into words, without comments and macros. A macro ends at an empty line.
func netrcWords(data []byte) []string {
	var words []string
	macro := false
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, len(data)+1)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if macro {
			macro = len(fields) > 0
			continue
		}
		for i, word := range fields {
			// A password may begin with #.
			if word[0] == '#' && (i == 0 || fields[i-1] != "password") {
				break
			}
			if word == "macdef" {
				macro = true
				break
			}
			words = append(words, unquote(word))
		}
	}
	return words
}

func unquote(word string) string {
	if len(word) >= 2 && word[0] == '"' && word[len(word)-1] == '"' {
		return strings.ReplaceAll(word[1:len(word)-1], `\"`, `"`)
	}
	return word
}
