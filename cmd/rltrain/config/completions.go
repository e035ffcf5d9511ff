package config

import (
	"reflect"
	"slices"
	"strings"
)

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
