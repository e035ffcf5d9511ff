package config

import (
	"reflect"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/internal/options"
)

// option is one --name with its value, as typed.
type option struct {
	name  string // canonical spelling, no dashes in front
	typed string // --name as typed
	value string
}

// scan splits arguments into options and positional arguments. kind tells of a canonical name whether it exists and
// whether it is a boolean, which may stand alone; unknown makes the error for one that does not exist.
func scan(args []string, kind func(name string) (known, boolean bool), unknown func(typed string) error, found *faults) (given []option, positional []string) {
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			return given, append(positional, args[i+1:]...)
		}
		if len(arg) < 2 || arg[0] != '-' || arg[1] >= '0' && arg[1] <= '9' {
			positional = append(positional, arg)
			continue
		}
		typed, value, assigned := strings.Cut(arg, "=")
		name := canonical(strings.TrimPrefix(typed, "--"))
		if len(typed) == 2 {
			name = typed[1:] // -n
		}
		known, boolean := kind(name)
		follows := i+1 < len(args) && !strings.HasPrefix(args[i+1], "--")
		switch {
		case !known || !strings.HasPrefix(typed, "--") && len(typed) > 2:
			found.add(unknown(typed))
			if !assigned && follows && !strings.HasPrefix(args[i+1], "-") {
				i++ // most likely its value
			}
			continue
		case assigned:
		case boolean:
			value = "true"
			if follows && slices.Contains([]string{"true", "false", "True", "False"}, args[i+1]) {
				i++
				value = args[i]
			}
		case i+1 == len(args):
			found.add(usagef("%s: needs a value", typed))
			continue
		case !follows:
			found.add(usagef("%s: needs a value, but %s follows; write %s=VALUE if the value starts with --", typed, args[i+1], typed))
			continue
		default:
			i++
			value = args[i]
			for strings.HasSuffix(value, ",") && i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") { // a, b
				i++
				value += args[i]
			}
		}
		given = append(given, option{name, typed, value})
	}
	return given, positional
}

// flagEntries reads the training command's arguments.
func flagEntries(args []string, found *faults) []entry {
	given, stray := scan(args, func(name string) (bool, bool) {
		return isName(name), isBoolean(name)
	}, func(typed string) error {
		return unknownName("unknown option "+typed, strings.TrimLeft(typed, "-"), options.Flag)
	}, found)
	if len(stray) > 0 {
		found.add(usagef("unexpected argument %q: write settings as --name=value", stray[0]))
	}
	entries := make([]entry, len(given))
	for i, o := range given {
		entries[i] = entry{name: o.name, value: options.Value{Text: o.value}, source: Source{Layer: Flag, Name: o.typed}}
	}
	return entries
}

// Environment variables that are read elsewhere and are no settings of a run.
var otherVariables = map[string]bool{"RLTRAIN_LIB": true, "RLTRAIN_KERNELS": true, "RLTRAIN_CACHE": true, "RLTRAIN_PYTHON": true, "RLTRAIN_TEST_THREADS": true}

// envEntries reads the variables RLTRAIN_<NAME>.
func envEntries(environ []string, found *faults) (entries []entry) {
	for _, pair := range environ {
		variable, value, _ := strings.Cut(pair, "=")
		upper, ours := strings.CutPrefix(variable, "RLTRAIN_")
		if !ours || otherVariables[variable] {
			continue
		}
		name := strings.ToLower(upper)
		if upper != strings.ToUpper(upper) || !isName(name) {
			found.add(unknownName("unknown environment variable "+variable, name, envName))
			continue
		}
		entries = append(entries, entry{name: name, value: options.Value{Text: value}, source: Source{Layer: Env, Name: variable}})
	}
	return entries
}

func envName(key string) string { return "RLTRAIN_" + strings.ToUpper(key) }

// Completions are what may follow the last of some arguments, an option: its values in the runs of the task that the others
// name, or where they name none in all runs. ok is false where there is no such option.
func Completions(args []string) (values []string, ok bool) {
	name := canonical(strings.TrimPrefix(args[len(args)-1], "--"))
	if !isName(name) {
		return nil, false
	}
	if isBoolean(name) {
		return []string{"false", "true"}, true
	}
	if a := aliasByName[name]; a != nil {
		if a.values != nil {
			for value := range a.values {
				values = append(values, value)
			}
			slices.Sort(values)
			return values, true
		}
		name = a.key
	}
	task := ""
	given, _ := scan(args[:len(args)-1], func(name string) (bool, bool) { return isName(name), isBoolean(name) }, func(string) error { return nil }, &faults{})
	for _, o := range given {
		if o.name == "task" {
			task = o.value
		}
	}
	for _, ch := range everything().choices()[name] {
		if task != "" && ch.task.Name != task && name != "task" {
			continue
		}
		c, err := ch.build()
		if err != nil {
			return nil, false
		}
		if o := c.set.Find(name); o.Kind == reflect.String {
			for _, value := range o.Allowed {
				values = appendNew(values, value)
			}
		}
	}
	slices.Sort(values)
	return values, true
}
