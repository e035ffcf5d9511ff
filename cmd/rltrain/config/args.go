package config

import "strings"

// option is one --name with its value, as typed.
type option struct {
	name  string // canonical spelling, no dashes in front
	typed string // --name as typed
	value string
}

// scan splits arguments into options and positional arguments. kind tells of a canonical name whether it exists and
// whether it is a boolean, which takes a value only after "="; unknown makes the error for one that does not exist.
func scan(args []string, kind func(name string) (known, boolean bool), unknown func(typed string) error) ([]option, []string, error) {
	var options []option
	var positional []string
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			return options, append(positional, args[i+1:]...), nil
		}
		if len(arg) < 2 || arg[0] != '-' || arg[1] >= '0' && arg[1] <= '9' {
			positional = append(positional, arg)
			continue
		}
		typed, value, assigned := strings.Cut(arg, "=")
		name := canonical(strings.TrimPrefix(typed, "--"))
		known, boolean := kind(name)
		switch {
		case !known || !strings.HasPrefix(typed, "--"):
			return nil, nil, unknown(typed)
		case assigned:
		case boolean:
			value = "true"
			if i+1 < len(args) && (args[i+1] == "true" || args[i+1] == "false") {
				return nil, nil, usagef("%s %s: write %s=%s", typed, args[i+1], typed, args[i+1])
			}
		case i+1 == len(args):
			return nil, nil, usagef("%s: needs a value", typed)
		case strings.HasPrefix(args[i+1], "--"):
			return nil, nil, usagef("%s: needs a value, but %s follows; write %s=VALUE if the value starts with --", typed, args[i+1], typed)
		default:
			i++
			value = args[i]
		}
		options = append(options, option{name, typed, value})
	}
	return options, positional, nil
}

// flagEntries reads the training command's arguments.
func flagEntries(args []string) ([]entry, error) {
	options, stray, err := scan(args, func(name string) (bool, bool) {
		return isName(name), isBoolean(name)
	}, func(typed string) error {
		return unknownName("unknown option "+typed, strings.TrimLeft(typed, "-"), flagName)
	})
	if err != nil {
		return nil, err
	}
	if len(stray) > 0 {
		return nil, usagef("stray argument %q: every setting is given as --name=value", stray[0])
	}
	entries := make([]entry, len(options))
	for i, o := range options {
		entries[i] = entry{name: o.name, value: rawValue{text: o.value}, source: Source{Layer: Flag, Name: o.typed}}
	}
	return entries, nil
}

// Environment variables that are read elsewhere and are no settings of a run.
var otherVariables = map[string]bool{"RLTRAIN_LIB": true, "RLTRAIN_CACHE": true, "RLTRAIN_PYTHON": true, "RLTRAIN_TEST_THREADS": true}

// envEntries reads the variables RLTRAIN_<NAME>.
func envEntries(environ []string) ([]entry, error) {
	var entries []entry
	for _, pair := range environ {
		variable, value, _ := strings.Cut(pair, "=")
		upper, ours := strings.CutPrefix(variable, "RLTRAIN_")
		if !ours || otherVariables[variable] {
			continue
		}
		name := strings.ToLower(upper)
		if upper != strings.ToUpper(upper) || !isName(name) {
			return nil, unknownName("unknown environment variable "+variable, name, envName)
		}
		entries = append(entries, entry{name: name, value: rawValue{text: value}, source: Source{Layer: Env, Name: variable}})
	}
	return entries, nil
}

func envName(key string) string { return "RLTRAIN_" + strings.ToUpper(key) }
