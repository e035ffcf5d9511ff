package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/options"
)

const (
	helpWidth  = 100
	helpIndent = 36 // column at which explanations start
)

// helpGroup is the options under one heading.
type helpGroup struct {
	name    string
	modes   []string
	options []*options.Option
	notes   []string // what each option applies only with
}

// Help describes the training command's options that a task has, in groups, at most 100 columns wide: all of them, or
// those that matter most.
func Help(task string, all bool) (string, error) {
	groups, err := helpGroups(task)
	if err != nil {
		return "", err
	}
	d, err := envs.Find(task)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	hidden := 0
	for _, g := range groups {
		if !all {
			hidden += g.keepCommon()
		}
		if len(g.options) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n%s%s:\n", g.name, onlyIn(g.modes, d.Modes()))
		for i, o := range g.options {
			left := "  " + options.Flag(o.Name)
			switch {
			case o.Kind != reflect.Bool:
				left += " " + o.Arg
			case o.Get().(bool):
				left += "[=false]"
			}
			if len(left) > helpIndent-2 {
				b.WriteString(left + "\n")
				left = ""
			}
			for j, line := range wrap(explanation(o)+g.notes[i], helpWidth-helpIndent) {
				if j > 0 {
					left = ""
				}
				fmt.Fprintf(&b, "%-*s%s\n", helpIndent, left, line)
			}
		}
	}
	if hidden > 0 {
		fmt.Fprintf(&b, "\n--help-all shows %d more options.\n", hidden)
	}
	b.WriteString(`
Settings can also come from the --config file (epochs: 3) or from environment variables
(RLTRAIN_EPOCHS=3). The command line overrides the environment, which overrides the file.
`)
	return strings.TrimPrefix(b.String(), "\n"), nil
}

// keepCommon leaves out the options that matter less, and counts those.
func (g *helpGroup) keepCommon() int {
	before := *g
	g.options, g.notes = nil, nil
	for i, o := range before.options {
		if o.Common {
			g.options, g.notes = append(g.options, o), append(g.notes, before.notes[i])
		}
	}
	return len(before.options) - len(g.options)
}

// helpGroups gathers the options of all runs of a task, those of its default run first.
func helpGroups(task string) ([]*helpGroup, error) {
	usual, err := choose([][]entry{{{name: "task", value: options.Value{Text: task}}}})
	if err != nil {
		return nil, err
	}
	var groups []*helpGroup
	seen := map[string]bool{}
	for n, ch := range append([]choice{usual}, choicesOf(usual.task)...) {
		c, err := ch.withRecipe()
		if err != nil {
			return nil, err
		}
		for _, o := range c.set.All() {
			i := slices.IndexFunc(groups, func(g *helpGroup) bool { return g.name == o.Group })
			if i < 0 {
				i = len(groups)
				groups = append(groups, &helpGroup{name: o.Group})
			}
			g := groups[i]
			g.modes = appendNew(g.modes, ch.mode)
			if seen[o.Name] {
				continue
			}
			seen[o.Name] = true
			note := ""
			if why := usual.elsewhere(o.Name, ""); n > 0 && strings.HasPrefix(why, "applies only") {
				note = "; " + strings.TrimPrefix(why, "applies ")
			}
			g.options, g.notes = append(g.options, o), append(g.notes, note)
		}
	}
	order := []string{"General", "Task", "Model", "Supervised stage", "Reinforcement learning stage", "Saving and logging"}
	slices.SortStableFunc(groups, func(a, b *helpGroup) int { return slices.Index(order, a.name) - slices.Index(order, b.name) })
	return groups, nil
}

// onlyIn tells in which of the task's modes a group means nothing.
func onlyIn(modes, all []string) string {
	var missing []string
	for _, mode := range all {
		if !slices.Contains(modes, mode) {
			missing = append(missing, mode)
		}
	}
	if missing == nil {
		return ""
	}
	return " (not with --mode " + strings.Join(missing, " or ") + ")"
}

// explanation is the help text, the allowed values, the default, and the other names.
func explanation(o *options.Option) string {
	text := o.Help
	if o.Name == "task" {
		for _, d := range envs.Definitions() {
			text += "; " + d.Name + ": " + d.Help
		}
	} else if len(o.Allowed) > 1 && o.Name != "source" {
		text += "; one of " + strings.Join(o.Allowed, ", ")
	}
	switch value := o.Get(); value.(type) {
	case int, uint64, float64:
		text += fmt.Sprintf(" (default %s)", yamlValue(value))
	default:
		if !reflect.ValueOf(value).IsZero() {
			text += fmt.Sprintf(" (default %s)", yamlValue(value))
		}
	}
	var others []string
	for _, a := range aliases {
		if a.key != o.Name || !plainAlias(a.name) {
			continue
		}
		other := options.Flag(a.name)
		if a.isSwitch() {
			other += " for " + a.values["true"]
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
