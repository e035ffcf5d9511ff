package config

import (
	"reflect"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/internal/options"
)

// auto, as the value of resume, continues a run or starts it.
const auto = "auto"

// option is one --name with its value, as typed.
type option struct {
	name   string   // canonical spelling, no dashes in front
	typed  string   // --name as typed
	values []string // at least one
}

// scan splits arguments into options and positional arguments. kind tells of a canonical name whether it exists and how it
// is written; unknown makes the error for one that does not exist.
func scan(args []string, kind func(name string) (known bool, s shape), unknown func(typed string) error, found *faults) (given []option, positional []string) {
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
		known, form := kind(name)
		follows := i+1 < len(args) && !strings.HasPrefix(args[i+1], "--")
		if positive, ok := strings.CutPrefix(name, "no_"); ok && !known && !assigned {
			if there, of := kind(positive); there && (of == aSwitch || of == anything) {
				given = append(given, option{name: positive, typed: typed, values: []string{"false"}})
				continue
			}
		}
		if !known || !strings.HasPrefix(typed, "--") && len(typed) > 2 {
			found.add(unknown(typed))
			if !assigned && follows && !strings.HasPrefix(args[i+1], "-") {
				i++ // most likely its value
			}
			continue
		}
		values := []string{value}
		if !assigned {
			var err error
			if values, err = valuesOf(args[i:], typed, form); err != nil {
				found.add(err)
				continue
			}
			i += len(values)
			if len(values) == 0 {
				values = []string{"true"}
			}
		}
		given = append(given, option{name, typed, values})
	}
	return given, positional
}

// glance reads the options of the training command, but for what is wrong with them.
func glance(args []string) []option {
	given, _ := scan(args, kindOf, func(string) error { return nil }, &faults{})
	return given
}

// valuesOf are the values that follow the option at the front of args; none is true.
func valuesOf(args []string, typed string, form shape) ([]string, error) {
	rest := args[1:]
	n := slices.IndexFunc(rest, func(a string) bool { return strings.HasPrefix(a, "--") })
	if n < 0 {
		n = len(rest)
	}
	switch {
	case form == aSwitch:
		if n > 0 && (slices.Contains([]string{"true", "false", "True", "False"}, rest[0]) || typed == "--resume" && rest[0] == auto) {
			return rest[:1], nil
		}
		return nil, nil
	case form == anything:
		return rest[:n], nil
	case len(rest) == 0:
		return nil, usagef("%s: needs a value", typed)
	case n == 0:
		return nil, usagef("%s: needs a value, but %s follows; write %s=VALUE if the value starts with --", typed, rest[0], typed)
	case form == aList:
		return rest[:n], nil
	}
	n = 1
	for strings.HasSuffix(rest[n-1], ",") && n < len(rest) && !strings.HasPrefix(rest[n], "-") { // a, b
		n++
	}
	return rest[:n], nil
}

// value is what an option was given: one text, or a list.
func (o option) value() options.Value {
	if len(o.values) == 1 || strings.HasSuffix(o.values[0], ",") {
		return options.Value{Text: strings.Join(o.values, "")}
	}
	return options.Value{Syntax: options.List, List: o.values}
}

// flagEntries reads the training command's arguments.
func flagEntries(args []string, found *faults) []entry {
	given, stray := scan(args, kindOf, func(typed string) error {
		return unknownName("unknown option "+typed, strings.TrimLeft(typed, "-"), options.Flag)
	}, found)
	if len(stray) > 0 {
		hint := fileHint(stray[0])
		if _, ok := trlCommands[stray[0]]; ok {
			hint = "; did you mean rltrain " + stray[0] + "?"
		}
		found.add(usagef("unexpected argument %q: write settings as --name=value%s", stray[0], hint))
	}
	var entries []entry
	for _, o := range given {
		source := Source{Layer: Flag, Name: o.typed}
		if o.name == "resume" && o.value().Text == auto {
			o.name = "resume_from_checkpoint"
		}
		if isSection(o.name) {
			inside, err := sectionOf(o.name, o.value().Text, source)
			found.add(err)
			entries = append(entries, inside...)
			continue
		}
		entries = append(entries, entry{o.name, o.value(), source})
	}
	return entries
}

// kindOf tells whether there is an option of the training command, and how it is written.
func kindOf(name string) (known bool, form shape) { return isName(name), shapeOf(name) }

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
	if shapeOf(name) == aSwitch {
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
	for _, o := range glance(args[:len(args)-1]) {
		if o.name == "task" {
			task = o.values[0]
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
