package config

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/nearest"
	"github.com/rltrain/rltrain/internal/options"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/rollout"
)

// catalogue is every name of an option, whatever the run.
type catalogue struct {
	names   []string        // in the order of help
	boolean map[string]bool // of names; every name is in it
	lists   map[string]bool // names that take several values
	groups  map[string]string
	choices func() map[string][]choice
}

var (
	catalogueLock sync.Mutex
	lastCatalogue *catalogue
	lastSize      [3]int
)

// everything is the catalogue of the tasks and algorithms that are registered now.
func everything() *catalogue {
	catalogueLock.Lock()
	defer catalogueLock.Unlock()
	definitions := envs.Definitions()
	if size := [3]int{len(definitions), len(algo.Definitions()), len(rollout.Sources())}; lastCatalogue == nil || size != lastSize {
		lastCatalogue, lastSize = newCatalogue(definitions), size
	}
	return lastCatalogue
}

// newCatalogue reads each part that runs have once; which runs have an option is found out where somebody asks.
func newCatalogue(definitions []envs.Definition) *catalogue {
	all := &catalogue{boolean: map[string]bool{}, lists: map[string]bool{}, groups: map[string]string{}}
	seen := map[reflect.Type]bool{}
	var choices []choice
	for _, d := range definitions {
		choices = append(choices, choicesOf(d)...)
	}
	for _, ch := range choices {
		c := reflect.ValueOf(ch.parts()).Elem()
		for i := range c.NumField() {
			part := c.Field(i)
			if part.Kind() == reflect.Interface {
				part = part.Elem()
			}
			if part.Kind() == reflect.Struct && part.CanInterface() {
				part = part.Addr()
			}
			if part.Kind() != reflect.Pointer || part.IsNil() || seen[part.Type()] || !part.CanInterface() {
				continue
			}
			seen[part.Type()] = true
			for _, o := range options.MustRead(part.Interface()).All() {
				if _, known := all.boolean[o.Name]; !known {
					all.names = append(all.names, o.Name)
				}
				all.boolean[o.Name] = o.Kind == reflect.Bool
				all.lists[o.Name] = o.Kind == reflect.Slice
				all.groups[o.Name] = cmp.Or(all.groups[o.Name], o.Group, c.Type().Field(i).Tag.Get("group"))
			}
		}
	}
	all.choices = sync.OnceValue(func() map[string][]choice {
		having := map[string][]choice{}
		for _, ch := range choices {
			for _, o := range options.MustRead(ch.parts()).All() {
				if !o.Excludes("mode", ch.mode) {
					having[o.Name] = append(having[o.Name], ch)
				}
			}
		}
		return having
	})
	return all
}

// choicesOf are all ways of training a task.
func choicesOf(d envs.Definition) []choice {
	var all []choice
	kinds := []bool{false}
	if d.Labels() && d.Plays() {
		kinds = []bool{false, true}
	}
	for _, writes := range kinds {
		for _, mode := range d.Modes() {
			way := choice{task: d, mode: mode, writes: writes}
			if mode == envs.Supervised || mode == envs.RewardModel {
				all = append(all, way)
				continue
			}
			for _, a := range way.algorithms() {
				way.algorithm = a
				for _, way.source = range way.sampleSources() {
					all = append(all, way)
				}
			}
		}
	}
	return all
}

// isName tells whether a flat name is understood: a key, an alias, or another name of other trainers.
func isName(name string) bool {
	_, isKey := everything().boolean[name]
	_, rewritten := rewritings[name]
	return isKey || rewritten || plainAlias(name) || ruleOf(name) != nil || isSection(name)
}

// shape is how an option is written on a command line.
type shape int

const (
	oneValue shape = iota
	aSwitch        // true or false, or nothing
	aList          // one or several values
	anything       // none, one or several
)

// shapeOf is the shape of a name that isName knows.
func shapeOf(name string) shape {
	all := everything()
	switch a := aliasByName[name]; {
	case a != nil && a.isSwitch(), a != nil && a.values == nil && all.boolean[a.key], all.boolean[name]:
		return aSwitch
	case all.lists[name], a != nil && (all.lists[a.key] || all.lists[a.pairs]), slices.Contains(lists, name):
		return aList
	case ruleOf(name) != nil && a == nil:
		return anything
	case slices.Contains(switches, name):
		return aSwitch
	}
	return oneValue
}

// Shapes of names that are rewritten.
var (
	lists    = []string{"reward_funcs", "reward_weights"}
	switches = []string{"disable_dropout", "greater_is_better", "shuffle_dataset"}
)

// names lists what isName accepts, keys first, for suggestions.
func names() []string {
	list := slices.Clone(everything().names)
	for _, a := range aliases {
		if plainAlias(a.name) {
			list = append(list, a.name)
		}
	}
	return list
}

// unknownName is the error for a name that is none of ours, with the nearest one and the group that help shows it in; format
// renders the name.
func unknownName(blame, name string, format func(string) string) error {
	return usagef("%s%s", blame, nearest.Hint(name, names(), func(near string) string {
		if group := everything().group(near); group != "" {
			return format(near) + " (" + group + ")"
		}
		return format(near)
	}))
}

// group is the heading of help that a key or an alias stands under.
func (all *catalogue) group(name string) string {
	if a := aliasByName[name]; a != nil {
		name = cmp.Or(a.key, a.oneStage)
	}
	return all.groups[name]
}

func canonical(name string) string { return strings.ReplaceAll(name, "-", "_") }

// elsewhere says why a run does not have an option that others have; origin tells where its mode was chosen.
func (ch choice) elsewhere(key, origin string) string {
	var tasks, modes, ways, sources []string
	kinds := map[bool]bool{}
	for _, other := range everything().choices()[key] {
		tasks = appendNew(tasks, other.task.Name)
		if other.task.Name != ch.task.Name {
			continue
		}
		if kinds[other.writes] = true; other.writes != ch.writes {
			continue
		}
		modes = appendNew(modes, other.mode)
		switch {
		case other.mode != ch.mode:
		case other.source.Name != ch.source.Name && other.source.Replay == ch.source.Replay:
			sources = appendNew(sources, other.source.Name)
		default:
			ways = appendNew(ways, other.algorithm.Name)
		}
	}
	const only = "applies only with "
	switch {
	case len(kinds) == 1 && !kinds[ch.writes]:
		return only + "--policy " + map[bool]string{false: policyHead + " or " + policyScore, true: policyGenerate}[!ch.writes]
	case modes == nil:
		return fmt.Sprintf("does not apply to task %s; it applies to %s", ch.task.Name, strings.Join(tasks, ", "))
	case !slices.Contains(modes, ch.mode):
		return fmt.Sprintf("does not apply to mode %s%s; it applies to %s", ch.mode, origin, strings.Join(modes, " and "))
	}
	if ways == nil {
		return only + "--source " + strings.Join(sources, " or ")
	}
	without := slices.DeleteFunc(ch.algorithmNames(), func(name string) bool { return slices.Contains(ways, name) })
	if len(without) < len(ways) && len(ways) > 5 {
		return only + "another --algorithm than " + strings.Join(without, " or ")
	}
	return only + "--algorithm " + strings.Join(ways, " or ")
}

func appendNew(list []string, name string) []string {
	if slices.Contains(list, name) {
		return list
	}
	return append(list, name)
}

// somewhere is an option as a run has it that is as near to ch as possible, for checks of a value that ch has no use for.
func (ch choice) somewhere(key string) *options.Option {
	best := -1
	var found *Config
	for _, other := range everything().choices()[key] {
		near := 0
		if other.task.Name == ch.task.Name {
			near += 2
		}
		if other.algorithm.Name == ch.algorithm.Name {
			near++
		}
		if near > best {
			if c, err := other.withRecipe(); err == nil {
				best, found = near, c
			}
		}
	}
	if found == nil {
		return nil
	}
	return found.set.Find(key)
}
