package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/options"
	"github.com/rltrain/rltrain/torch"
)

// entry is one setting as given in a layer, its name understood but its value not yet read.
type entry struct {
	name   string // a key, an alias, or a fixed name
	value  options.Value
	source Source
}

// Load reads the configuration from the arguments after the subcommand's name (os.Args[1:] or [2:]) and the environment
// in the form of os.Environ. It opens the file that --config or RLTRAIN_CONFIG names, and nothing else; it looks whether
// --pretrained-model is a folder with an adapter.
// Every error is a *UsageError, but for a --config file that cannot be read.
func Load(args, environ []string) (*Config, error) {
	var found faults
	flags := flagEntries(args, &found)
	env := envEntries(environ, &found)
	var file []entry
	var skipped []string
	if path := lastOf("config", env, flags); path != "" {
		var err error
		if file, skipped, err = readFile(path); err != nil {
			if usage := (*UsageError)(nil); !errors.As(err, &usage) {
				return nil, err
			}
			found.add(err)
		}
	}
	c := load([][]entry{file, env, flags}, &found)
	if err := found.err(); err != nil {
		return nil, err
	}
	c.skipped = append(skipped, c.skipped...)
	return c, nil
}

// Stored is the configuration that the text of a config.yaml says; path is for errors.
func Stored(path string, text []byte) (*Config, error) {
	var found faults
	file, skipped, err := parseFile(path, text)
	if err != nil {
		return nil, err
	}
	c := load([][]entry{file}, &found)
	if err := found.err(); err != nil {
		return nil, err
	}
	c.skipped = append(skipped, c.skipped...)
	return c, nil
}

// loading is a configuration under way.
type loading struct {
	choice
	*Config
	found *faults
	given map[string]assignment
	order []string              // of given
	parts map[string]assignment // of the size of an update
	noted map[string]entry      // for combine

	layers     [][]entry
	theirNames bool     // a name is that of another trainer
	needless   []string // names that only another trainer's runtime needs
}

// assignment is a value of a key's type and where it was given.
type assignment struct {
	value  any
	source Source
}

// load makes the configuration that layers of entries say, the lowest first. It is nil where the task is unknown.
func load(layers [][]entry, found *faults) *Config {
	l := loadAll(layers, found)
	if l == nil {
		return nil
	}
	if trainer := l.trlTrainer(); found.none() && l.theirNames && trainer != "" && l.General.Defaults != "trl" {
		l.noteDifferences(trainer)
	}
	return l.Config
}

// loadAll is load without the note of what differs from TRL's defaults.
func loadAll(layers [][]entry, found *faults) *loading {
	layers = overridden(objectives(replayLosses(layers)))
	ch, err := choose(layers)
	if err != nil {
		found.add(err)
		return nil
	}
	c, err := ch.withRecipe()
	if err != nil {
		found.add(err)
		return nil
	}
	l := &loading{choice: ch, Config: c, found: found, given: map[string]assignment{}, parts: map[string]assignment{}, noted: map[string]entry{}, layers: layers}
	l.theirNames = slices.ContainsFunc(layers, func(entries []entry) bool { return slices.ContainsFunc(entries, entry.theirs) })
	l.origin("mode", layers)
	trainer := l.trlTrainer()
	switch given, e := pick("defaults", layers); {
	case given == "trl" && trainer == "":
		found.add(e.source.errorf("TRL has no trainer for this run"))
	case given == "trl":
		l.theirDefaults(trainer)
	}
	for _, entries := range layers {
		l.layer(entries)
	}
	for _, key := range l.order {
		c.set.Find(key).Set(l.given[key].value)
		c.sources[key] = l.given[key].source
	}
	l.batches()
	l.combine()
	if l.needless != nil {
		c.notes = append(c.notes, "not needed here: "+strings.Join(l.needless, ", "))
	}
	l.checkNeeds()
	if found.none() {
		for _, err := range append(c.check(), l.checkEngine()...) {
			found.add(err)
		}
	}
	if found.none() {
		if err := c.chooseGGUF(); err != nil {
			found.add(err)
		}
	}
	return l
}

// overridden drops the names that set nothing here from a layer if a later one gives them: --push_to_hub False goes before the
// true of a file.
func overridden(layers [][]entry) [][]entry {
	kept := slices.Clone(layers)
	for i := range kept {
		kept[i] = slices.DeleteFunc(slices.Clone(kept[i]), func(e entry) bool {
			return ruleOf(e.name) != nil && slices.ContainsFunc(layers[i+1:], func(later []entry) bool {
				return slices.ContainsFunc(later, func(other entry) bool { return other.name == e.name })
			})
		})
	}
	return kept
}

// choose finds the task, the mode and the algorithm in the layers, in the task's recipe, or the defaults.
func choose(layers [][]entry) (choice, error) {
	var ch choice
	for _, d := range envs.Definitions() {
		if d.Default || ch.task.Name == "" {
			ch.task = d
		}
	}
	if name, e := pick("task", layers); e != nil {
		d, err := envs.Find(name)
		if err != nil {
			_, wrong := (&options.Option{Declaration: options.Declaration{Kind: reflect.String, Allowed: taskNames()}}).Parse(e.value)
			return ch, e.source.errorf("%v", wrong)
		}
		ch.task = d
	} else if impliesPreferences(layers) {
		for _, d := range envs.Definitions() {
			if d.Preferences {
				ch.task = d
			}
		}
	}
	for _, name := range []string{"dataset", "eval_dataset"} {
		given, _ := pick(name, layers)
		ch.data = ch.data || given != ""
	}
	if err := ch.chooseModel(layers); err != nil {
		return ch, err
	}
	recipe, err := ch.recipe()
	if err != nil {
		return ch, err
	}
	layers = append([][]entry{recipe.entries}, layers...)
	if ch.mode, _ = pick("mode", layers); !slices.Contains(ch.task.Modes(), ch.mode) {
		ch.mode = ch.task.Modes()[0]
	}
	if ch.mode == envs.Supervised || ch.mode == envs.RewardModel {
		return ch, nil
	}
	name, _ := pick("algorithm", layers)
	for _, want := range []string{name, ch.usualAlgorithm()} {
		for _, d := range ch.algorithms() {
			if ch.algorithm.Name == "" && d.Name == want {
				ch.algorithm = d
			}
		}
	}
	source, _ := pick("source", layers)
	for i, d := range ch.sampleSources() {
		if i == 0 || d.Name == source {
			ch.source = d
		}
	}
	return ch, nil
}

// impliesPreferences tells a command that can only mean preferences, whatever its task.
func impliesPreferences(layers [][]entry) bool {
	mode, _ := pick("mode", layers)
	algorithm, e := pick("algorithm", layers)
	return mode == envs.RewardModel || algorithm == pairwise && !strings.HasPrefix(e.name, routerSection)
}

// usualAlgorithm is that of a command that names none.
func (ch choice) usualAlgorithm() string {
	switch {
	case ch.task.Preferences:
		return pairwise
	case ch.labels():
		return "ppo"
	}
	return reinforce
}

// pick is the value of a key in the highest layer that has it.
func pick(key string, layers [][]entry) (string, *entry) {
	for _, entries := range slices.Backward(layers) {
		for i, e := range entries {
			a := aliasByName[e.name]
			switch {
			case e.name == key:
				return e.value.Text, &entries[i]
			case a != nil && a.key == key && a.values != nil:
				if known, ok := a.values[switched(e.value)]; ok {
					return known, &entries[i]
				}
			case a != nil && a.key == key:
				return e.value.Text, &entries[i]
			}
		}
	}
	return "", nil
}

// switched is the text of a value, true or false if it can be read so.
func switched(v options.Value) string {
	if on, err := options.ParseBool(v); err == nil {
		return fmt.Sprint(on)
	}
	return v.Text
}

func lastOf(key string, layers ...[]entry) string {
	value, _ := pick(key, layers)
	return value
}

// withRecipe is the run with the defaults of its task. What the recipe says of other runs of the task is left out.
func (ch choice) withRecipe() (*Config, error) {
	c, err := ch.build()
	if err != nil {
		return nil, err
	}
	if c.recipe, err = ch.recipe(); err != nil {
		return nil, err
	}
	for _, e := range c.recipe.entries {
		o := c.set.Find(e.name)
		if o == nil || slices.Contains(selectors, e.name) {
			continue
		}
		value, err := o.Parse(e.value)
		if err != nil {
			return nil, e.source.errorf("%v", err)
		}
		o.Set(value)
	}
	if ch.writes {
		c.General.Model = TinyModel // the recipe's is for a head
	}
	return c, nil
}

// selectors are the options that decide which others there are.
var selectors = []string{"task", "mode", "algorithm", "source", "policy"}

// origin notes where a selector was given, for messages about what it decides.
func (l *loading) origin(key string, layers [][]entry) {
	if _, e := pick(key, layers); e != nil {
		l.sources[key] = e.source
	}
}

// layer reads the values of one layer. Two entries for one key must agree.
func (l *loading) layer(entries []entry) {
	seen := map[string]assignment{}
	put := func(key string, a assignment) {
		before, twice := seen[key]
		if twice && !reflect.DeepEqual(before.value, a.value) {
			l.found.add(disagreement(key, before, a))
			return
		}
		if _, ok := l.given[key]; !ok {
			l.order = append(l.order, key)
		}
		if !twice {
			seen[key], l.given[key] = a, a
		}
	}
	var also []func()
	for _, e := range l.rewrite(entries) {
		key, value, err := l.read(e)
		if err != nil {
			l.found.add(e.source.errorf("%v", err))
			continue
		}
		if key == "" {
			continue
		}
		put(key, assignment{value, e.source})
		if a := aliasByName[e.name]; a != nil && a.also != "" {
			also = append(also, func() {
				if _, ok := l.given[a.also]; !ok {
					put(a.also, assignment{value, e.source})
				}
			})
		}
	}
	for _, set := range also {
		set()
	}
}

// read finds the key and the value of an entry. The key is "" where there is nothing to set.
func (l *loading) read(e entry) (key string, value any, err error) {
	if rule := ruleOf(e.name); rule != nil && aliasByName[e.name] == nil {
		if rule.any && !slices.Contains(l.needless, e.name) {
			l.needless = append(l.needless, e.name)
		}
		if slices.Contains(rule.near, strings.ToLower(e.value.Text)) {
			l.notes = append(l.notes, e.source.Name+" "+e.value.Text+": "+rule.why)
		}
		return "", nil, rule.check(e.value)
	}
	if e.value.Syntax == options.Null {
		value, ok := unset[e.name]
		if !ok && !optionalThere(e.name) {
			return "", nil, errors.New("has no value; add one or remove the key")
		}
		if !ok {
			return "", nil, nil
		}
		e.value = options.Value{Text: value}
	}
	if a := aliasByName[e.name]; a != nil && a.inert != "" {
		l.notes = append(l.notes, e.source.Name+" changes nothing: "+a.inert)
		return "", nil, nil
	}
	if e.name == "gamma" && l.task.OneStep {
		if _, err := parse(l.somewhere("gamma"), e); err != nil {
			return "", nil, err
		}
		l.notes = append(l.notes, e.source.Name+" has no effect: an episode has one action")
		return "", nil, nil
	}
	if l.partOfABatch(e.name) {
		return "", nil, l.part(e)
	}
	key = l.target(l.Config, e.name)
	if key == "" {
		return "", nil, errors.New(cmp.Or(ruleOf(e.name), &rule{why: "does not apply to this run"}).why)
	}
	o := l.set.Find(key)
	here := o != nil
	if !here {
		o = l.somewhere(key)
	}
	if value, err = parse(o, e); err != nil {
		if policies := l.otherPolicies(e.value.Text); key == "algorithm" && policies != "" {
			err = fmt.Errorf("%s needs --policy %s", e.value.Text, policies)
		}
		return "", nil, err
	}
	switch {
	case o.PerCommand && e.source.Layer == File:
		return "", nil, errors.New("belongs on the command line, not in a file; remove it")
	case here:
		return key, value, nil
	case strings.HasPrefix(e.name, routerSection):
		// The section has its settings whether or not they mean something.
		if l.RL != nil {
			l.skipped = append(l.skipped, e.name)
		}
		return "", nil, nil
	case e.source.Layer == File && reflect.DeepEqual(value, o.Get()):
		return "", nil, nil // a file may spell out what it leaves as it is
	}
	return "", nil, errors.New(l.elsewhere(key, l.modeOrigin()))
}

// parse reads the value of an entry for an option, by this or another name of both.
func parse(o *options.Option, e entry) (any, error) {
	v := e.value
	if a := aliasByName[e.name]; a != nil && a.values != nil && o.Name != a.pairs {
		if _, err := options.ParseBool(v); err != nil && a.isSwitch() {
			return nil, err
		}
		known, ok := a.values[switched(v)]
		if !ok {
			return nil, fmt.Errorf("%v is not one of %s", v, strings.Join(slices.Sorted(maps.Keys(a.values)), ", "))
		}
		v = options.Value{Text: known}
	}
	if known, ok := otherValues[o.Name][strings.ToLower(v.Text)]; ok && v.Syntax != options.List {
		v.Text = known
	}
	if o.Name == "device" && v.Syntax != options.List {
		if _, err := torch.ParseDevice(v.Text); err != nil {
			return nil, err
		}
	}
	return o.Parse(v)
}

func disagreement(key string, a, b assignment) error {
	if a.source == b.source || a.source.Name == b.source.Name {
		return b.source.errorf("given twice: %v and %v; keep one", a.value, b.value)
	}
	where := ""
	if b.source.Position != "" {
		where = b.source.Position + ": "
	}
	return usagef("%s%s and %s set %s to different values, %v and %v; keep one",
		where, a.source.Name, b.source.Name, key, a.value, b.value)
}
