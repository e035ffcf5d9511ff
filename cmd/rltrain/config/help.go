package config

import (
	"fmt"
	"reflect"
	"strings"
)

const (
	helpWidth  = 100
	helpIndent = 36 // column at which explanations start
)

// Help describes the training command's options that a task has, in groups, at most 100 columns wide.
func Help(task string) (string, error) {
	defaults, err := Defaults(task)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	group := ""
	for i := range keys {
		k := &keys[i]
		if k.scope.of(task) == 0 {
			continue
		}
		if k.group != group {
			group = k.group
			fmt.Fprintf(&b, "\n%s%s:\n", group, onlyIn(k.scope, task))
		}
		left := "  " + flagName(k.name)
		switch {
		case k.kind != reflect.Bool:
			left += " " + k.placeholder()
		case defaults.field(k).Bool():
			left += "[=false]"
		}
		if len(left) > helpIndent-2 {
			b.WriteString(left + "\n")
			left = ""
		}
		for j, line := range wrap(k.explanation(defaults), helpWidth-helpIndent) {
			if j > 0 {
				left = ""
			}
			fmt.Fprintf(&b, "%-*s%s\n", helpIndent, left, line)
		}
	}
	b.WriteString(`
Every setting may also stand in the --config file, its name with underscores (epochs: 3), or in an
environment variable (RLTRAIN_EPOCHS=3). The command line wins over the environment, and that over
the file.
`)
	return strings.TrimPrefix(b.String(), "\n"), nil
}

// onlyIn tells in which of the task's modes a group means nothing.
func onlyIn(s scope, task string) string {
	var missing []string
	for _, mode := range anyTask.modes(task) {
		if !s.has(task, mode) {
			missing = append(missing, mode)
		}
	}
	if missing == nil {
		return ""
	}
	return " (not with --mode " + strings.Join(missing, " or ") + ")"
}

func (k *key) placeholder() string {
	switch {
	case k.arg != "":
		return k.arg
	case k.kind == reflect.Int, k.kind == reflect.Uint64:
		return "N"
	case k.kind == reflect.Float64:
		return "X"
	}
	return "NAME"
}

// explanation is the help text, the allowed values, the default, and the other names.
func (k *key) explanation(defaults *Config) string {
	text := k.help
	if len(k.allowed) > 1 {
		text += "; one of " + strings.Join(k.allowed, ", ")
	}
	if value := defaults.field(k); !value.IsZero() || value.CanInt() || value.CanFloat() {
		text += fmt.Sprintf(" (default %s)", yamlValue(value))
	}
	var others []string
	for _, a := range aliases {
		if a.key != k.name || !isName(a.name) {
			continue
		}
		other := flagName(a.name)
		if a.onTrue != nil {
			other += fmt.Sprintf(" for %v", a.onTrue)
		}
		others = append(others, other)
	}
	if others != nil {
		text += "; also " + strings.Join(others, ", ")
	}
	return text
}

// wrap breaks text at spaces into lines of at most width bytes.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}
