package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/reward"
	"github.com/rltrain/rltrain/internal/options"
	"github.com/rltrain/rltrain/rl/report"
)

// NamesTables are the pages of docs that say which names of other programs are understood, and what they are here, as
// Markdown.
func NamesTables() string {
	var b strings.Builder
	section := func(title, text string, headers []string, rows [][]string) {
		fmt.Fprintf(&b, "## %s\n\n%s\n\n%s\n", title, text, report.NarrowMarkdownTable(headers, rows))
	}
	var rows [][]string
	list, known := trlOptions()
	for _, o := range list {
		rows = append(rows, []string{code(o.name), o.where(), o.here()})
	}
	section("Options of TRL 1.16", "Every option of TRL's configurations, its default in each of them, and what it is here.", []string{"option", "default in TRL", "in rltrain"}, rows)
	rows = nil
	for _, a := range aliases {
		if plainAlias(a.name) && known[a.name] == nil {
			rows = append(rows, []string{code(a.name), a.meaning(), a.valuesText()})
		}
	}
	section("Names of other trainers", "Older names of TRL, and names of alignment-handbook, open-r1, Unsloth and others.",
		[]string{"name", "sets", "values"}, rows)
	rows = nil
	for _, name := range slices.Sorted(maps.Keys(ofTheStage)) {
		var targets []string
		for _, key := range ofTheStage[name] {
			targets = append(targets, code(key))
		}
		rows = append(rows, []string{code(name), strings.Join(targets, " or ")})
	}
	section("Names in runs of one stage", "With `--mode rl_only` these names set the options of the RL stage.", []string{"name", "sets"}, rows)
	rows = nil
	for _, key := range slices.Sorted(maps.Keys(otherValues)) {
		for _, value := range slices.Sorted(maps.Keys(otherValues[key])) {
			rows = append(rows, []string{code(key), code(value), code(otherValues[key][value])})
		}
	}
	section("Other values", "", []string{"option", "value", "the same as"}, rows)
	rows = nil
	for i := range rules {
		if r := &rules[i]; known[r.name] == nil {
			rows = append(rows, []string{code(r.name), r.here()})
		}
	}
	section("Names that set nothing", "Names of accelerate, DeepSpeed and other programs, beside those of TRL above. … stands for any ending.", []string{"name", "in rltrain"}, rows)
	rows = nil
	for _, name := range slices.Sorted(maps.Keys(rewardFunctions)) {
		if rewardFunctions[name] != "" {
			rows = append(rows, []string{code(name), code(rewardFunctions[name])})
		}
	}
	section("Reward functions", "What `reward_funcs` may name, beside rltrain's own rewards.", []string{"function", "`--reward`"}, rows)
	rows = nil
	for _, a := range aliases {
		if key, ok := strings.CutPrefix(a.name, routerSection); ok {
			rows = append(rows, []string{code(routerSection + key), a.meaning(), a.valuesText()})
		}
	}
	section("A router's file", "`--config` reads the YAML file of a semantic router, and uses these keys of its section.", []string{"name", "sets", "values"}, rows)
	return strings.ReplaceAll(b.String(), "\n\n\n", "\n\n")
}

// OptionGroup is the options of training under one heading of the help.
type OptionGroup struct {
	Name    string
	Options []OptionHelp
}

// OptionHelp describes an option of training.
type OptionHelp struct {
	Flag, Arg, Help string
	Default         string // in Markdown, with tasks if it depends on them
	Tasks           string // those that have it
}

// OptionGroups are all options, by the group under which the help has them.
func OptionGroups() []OptionGroup {
	var groups []OptionGroup
	for _, name := range everything().names {
		o, group, tasks, fallbacks := describeOption(name)
		if o == nil {
			continue
		}
		i := slices.IndexFunc(groups, func(g OptionGroup) bool { return g.Name == group })
		if i < 0 {
			i = len(groups)
			groups = append(groups, OptionGroup{Name: group})
		}
		help := OptionHelp{Flag: options.Flag(name), Help: o.Help, Default: strings.Join(fallbacks, ", "), Tasks: tasks}
		if o.Kind != reflect.Bool {
			help.Arg = o.Arg
		}
		groups[i].Options = append(groups[i].Options, help)
	}
	return groups
}

// OptionTables are OptionGroups in Markdown.
func OptionTables() string {
	var b strings.Builder
	for _, group := range OptionGroups() {
		var rows [][]string
		for _, o := range group.Options {
			rows = append(rows, []string{code(o.Flag), o.Help, o.Default, o.Tasks})
		}
		fmt.Fprintf(&b, "## %s\n\n%s\n", group.Name, report.NarrowMarkdownTable([]string{"option", "what it says", "default", "tasks"}, rows))
	}
	return b.String()
}

// RewardTable is the rewards that --reward can name, those that tasks define for themselves included.
func RewardTable() string {
	rows := [][]string{}
	scores := func(d reward.Definition) string {
		switch {
		case d.Text == nil:
			return "labels"
		case d.NeedsJudge || d.Labels == nil && d.Argument == "":
			return "completions"
		}
		return "completions, labels"
	}
	for _, d := range reward.Definitions() {
		rows = append(rows, []string{code(d.Written()), d.Help, scores(d)})
	}
	for _, task := range envs.Definitions() {
		for _, r := range task.Rewards {
			rows = append(rows, []string{code(r.Name), r.Help, "task " + task.Name})
		}
	}
	return report.NarrowMarkdownTable([]string{"reward", "what it is", "scores"}, rows)
}

// describeOption finds an option, the tasks that have it, and its defaults in their recipes.
func describeOption(name string) (found *options.Option, group, tasks string, fallbacks []string) {
	var have []string
	values := map[string][]string{}
	all := everything().choices()[name]
	choices := slices.DeleteFunc(slices.Clone(all), func(ch choice) bool { return !ch.usual() })
	choices = append(choices, all...) // a task's usual algorithm first
	for _, ch := range choices {
		if slices.Contains(have, ch.task.Name) {
			continue
		}
		c, err := ch.withRecipe()
		if err != nil {
			continue
		}
		o := c.set.Find(name)
		found, group = o, o.Group
		have = append(have, ch.task.Name)
		value := yamlValue(o.Get())
		values[value] = append(values[value], ch.task.Name)
	}
	slices.Sort(have)
	for _, value := range slices.Sorted(maps.Keys(values)) {
		slices.Sort(values[value])
		text := code(value)
		if value == "" || value == `""` || value == "[]" {
			text = "none"
		}
		if len(values) > 1 {
			text += " (" + strings.Join(values[value], ", ") + ")"
		}
		fallbacks = append(fallbacks, text)
	}
	tasks = strings.Join(have, ", ")
	if len(have) == len(envs.Definitions()) {
		tasks = "all"
	}
	return found, group, tasks, fallbacks
}

// usual tells whether the algorithm is that of a command that names none.
func (ch choice) usual() bool {
	name := ch.usualAlgorithm()
	if r, err := ch.recipe(); err == nil {
		if value, e := pick("algorithm", [][]entry{r.entries}); e != nil {
			name = value
		}
	}
	return ch.algorithm.Name == name
}

func code(name string) string {
	if name == "" {
		return ""
	}
	return "`" + name + "`"
}

// meaning is the option that an alias sets.
func (a alias) meaning() string {
	var parts []string
	switch {
	case a.key != "" && a.also != "":
		parts = append(parts, code(a.key)+" and "+code(a.also))
	case a.inert != "":
		parts = append(parts, "nothing: "+a.inert)
	case a.key != "":
		parts = append(parts, code(a.key))
	}
	switch a.name {
	case accumulation:
		parts = append(parts, "multiplies the batch: "+code("batch_size")+", and in RL alone "+code("prompts_per_step")+" or "+code("rl_batch_size"))
	case perDevice:
		parts = append(parts, code("prompts_per_step")+" in RL alone, with "+code("samples_per_prompt"))
	case perRollout:
		parts = append(parts, code("prompts_per_step")+" × "+code("samples_per_prompt")+", with `--mode rl_only`")
	case perGeneration:
		parts = append(parts, code("minibatches")+" and "+code("prompts_per_step")+" with `--mode rl_only`")
	}
	if a.replay != "" {
		parts = append(parts, code(a.replay)+" with a replay buffer")
	}
	if a.oneStage != "" {
		parts = append(parts, code(a.oneStage)+" in runs of one stage")
	}
	return strings.Join(parts, "; ")
}

func (a alias) valuesText() string {
	var parts []string
	for _, value := range slices.Sorted(maps.Keys(a.values)) {
		parts = append(parts, value+" → "+a.values[value])
	}
	return strings.Join(parts, ", ")
}
