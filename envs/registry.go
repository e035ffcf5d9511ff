package envs

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/internal/nearest"
	"github.com/rltrain/rltrain/internal/options"
	"github.com/rltrain/rltrain/internal/registry"
)

var tasks registry.Registry[Definition]

// Register makes a task known, usually from an init function. It panics if the definition is invalid: a name that is
// empty or taken, unreadable options, or options that are no source of data.
func Register(d Definition) { tasks.Add("envs.Register: task", d.Name, d, d.check) }

func (d Definition) check(earlier map[string]Definition) error {
	if _, taken := earlier[d.Name]; taken || d.Name == "" || d.Help == "" || d.Options == nil {
		return errors.New("the name is empty or taken, or help or options are missing")
	}
	for _, other := range earlier {
		if d.Default && other.Default {
			return fmt.Errorf("%s is the default already", other.Name)
		}
	}
	o := d.Options()
	switch o.(type) {
	case RowSource, RecordSource, EpisodeSource, DecisionSource:
	default:
		return fmt.Errorf("%T gives neither rows nor records nor episodes nor decisions", o)
	}
	_, err := options.Read(o)
	return err
}

// Definitions lists the registered tasks by name.
func Definitions() []Definition { return tasks.All() }

// Find returns the task of that name.
func Find(name string) (Definition, error) { return tasks.Find("task", name) }

// Settings are a task's options by name, as text.
type Settings map[string]string

// Set sets the options of a struct from Definition.Options to their defaults, then to these values.
func (s Settings) Set(o any) error {
	set, err := options.Read(o)
	if err != nil {
		return err
	}
	var names []string
	for _, option := range set.All() {
		names = append(names, option.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(s)) {
		option := set.Find(name)
		if option == nil {
			return OptionErrorf(name, "does not apply: choose from %s%s", strings.Join(names, ", "), nearest.Hint(name, names, nil))
		}
		value, err := option.Parse(options.Value{Text: s[name]})
		if err != nil {
			return &OptionError{name, err}
		}
		option.Set(value)
	}
	return nil
}

// New creates a task by name, with some of its options set.
func New(name string, setup Setup, settings Settings) (Task, error) {
	d, err := Find(name)
	if err != nil {
		return nil, err
	}
	o := d.Options()
	if err := settings.Set(o); err != nil {
		return nil, fmt.Errorf("task %s: %w", name, err)
	}
	source, ok := o.(EpisodeSource)
	if !ok {
		return nil, fmt.Errorf("task %s has no episodes", name)
	}
	task, err := source.Task(setup)
	if err != nil {
		return nil, fmt.Errorf("task %s: %w", name, err)
	}
	return task, nil
}
