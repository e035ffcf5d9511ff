package envs

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"rltrain/internal/nearest"
)

// Settings are a task's options by canonical name, as text.
type Settings map[string]string

// Builder makes a task. Every random choice of the task derives from seed.
type Builder func(seed uint64, settings Settings) (Task, error)

var (
	registryLock sync.RWMutex
	registry     = map[string]Builder{}
)

// Register makes a task known by name, usually from an init function. It panics when
// the name is empty or taken.
func Register(name string, build Builder) {
	registryLock.Lock()
	defer registryLock.Unlock()
	if _, taken := registry[name]; taken || name == "" {
		panic(fmt.Sprintf("envs.Register: the name %q is empty or taken", name))
	}
	registry[name] = build
}

// Names lists the tasks registered, sorted.
func Names() []string {
	registryLock.RLock()
	defer registryLock.RUnlock()
	return slices.Sorted(maps.Keys(registry))
}

// New makes the task of that name.
func New(name string, seed uint64, settings Settings) (Task, error) {
	registryLock.RLock()
	build, known := registry[name]
	registryLock.RUnlock()
	if !known {
		return nil, fmt.Errorf("task %q is unknown%s: choose %s", name, didYouMean(name, Names()), strings.Join(Names(), ", "))
	}
	task, err := build(seed, settings)
	if err != nil {
		return nil, fmt.Errorf("task %s: %w", name, err)
	}
	return task, nil
}

// Read puts each setting into the variable that fields holds for its name: a pointer to
// string, bool, int or float64. What is not set stays as it is; a setting without a
// field is an error.
func (s Settings) Read(fields map[string]any) error {
	for _, name := range slices.Sorted(maps.Keys(s)) {
		field, known := fields[name]
		if !known {
			names := slices.Sorted(maps.Keys(fields))
			return fmt.Errorf("option %s does not apply%s: choose from %s", name, didYouMean(name, names), strings.Join(names, ", "))
		}
		if err := set(field, s[name]); err != nil {
			return fmt.Errorf("option %s: %w", name, err)
		}
	}
	return nil
}

func set(field any, text string) error {
	var err error
	var want string
	switch field := field.(type) {
	case *string:
		*field = text
	case *bool:
		want = "true or false"
		*field, err = strconv.ParseBool(text)
	case *int:
		want = "a whole number"
		*field, err = strconv.Atoi(text)
	case *float64:
		want = "a number"
		*field, err = strconv.ParseFloat(text, 64)
	default:
		panic(fmt.Sprintf("envs.Settings.Read: a field of type %T", field))
	}
	if err != nil {
		return fmt.Errorf("%q, want %s", text, want)
	}
	return nil
}

func didYouMean(name string, known []string) string {
	if near := nearest.Name(name, known); near != "" {
		return fmt.Sprintf(" (did you mean %s?)", near)
	}
	return ""
}
