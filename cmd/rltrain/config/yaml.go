package config

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/internal/words"
)

// YAML renders every setting that applies to c, in groups; given back through --config it makes the same configuration.
// A comment tells where a value came from, or the recipe's reason for it.
func (c *Config) YAML() []byte {
	var b strings.Builder
	group := ""
	for _, o := range c.set.All() {
		if o.PerCommand || !c.set.Applies(o) {
			continue
		}
		if o.Group != group {
			if group != "" {
				b.WriteByte('\n')
			}
			group = o.Group
			fmt.Fprintf(&b, "# %s\n", group)
		}
		line := o.Name + ": " + yamlValue(o.Get())
		if text := c.comment(o.Name); text != "" {
			line += "  # " + words.Printable(text)
		}
		b.WriteString(line + "\n")
	}
	return []byte(b.String())
}

func (c *Config) comment(key string) string {
	switch s := c.sources[key]; {
	case s.Layer == Recipe:
		return c.recipe.reasons[key]
	case s.Position != "":
		return s.Position
	default:
		return s.Name
	}
}

// Effective are the settings that apply to c, by name.
func (c *Config) Effective() map[string]any {
	values := map[string]any{}
	for _, o := range c.set.All() {
		if !o.PerCommand && c.set.Applies(o) {
			values[o.Name] = o.Get()
		}
	}
	return values
}

// plainText are strings that need no quotes and that no YAML reader takes for something else.
var plainText = regexp.MustCompile(`^[A-Za-z_./][A-Za-z0-9_./-]*$`)

func yamlValue(value any) string {
	switch v := value.(type) {
	case float64:
		return yamlFloat(v)
	case string:
		return yamlString(v)
	case []string:
		var items []string
		for _, item := range v {
			items = append(items, yamlString(item))
		}
		return "[" + strings.Join(items, ", ") + "]"
	}
	return fmt.Sprint(value)
}

// yamlFloat writes a point before an exponent: readers of YAML 1.1 take 1e-05 for text.
func yamlFloat(v float64) string {
	s := strconv.FormatFloat(v, 'g', -1, 64)
	if mantissa, exponent, ok := strings.Cut(s, "e"); ok && !strings.Contains(mantissa, ".") {
		s = mantissa + ".0e" + exponent
	}
	return s
}

func yamlString(s string) string {
	switch strings.ToLower(s) {
	case "true", "false", "yes", "no", "on", "off", "y", "n", "null", ".inf", ".nan":
	default:
		if plainText.MatchString(s) {
			return s
		}
	}
	return strconv.Quote(s)
}

// Difference is a setting that two configurations disagree on, as YAML values; a value is empty where the setting does
// not apply.
type Difference struct {
	Key, A, B string
	Extends   bool // a run in progress may go on with B: it says how long
}

// Named are the texts of the settings that name files, folders, models or programs, by setting.
func (c *Config) Named() map[string][]string {
	all := map[string][]string{}
	for _, o := range c.set.All() {
		names := strings.Contains(o.Arg, "FILE") || strings.Contains(o.Arg, "DIR") || o.Arg == "PROGRAM" || o.Name == "reward"
		written := o.Name == "buffer_cache" && !c.Replay.LoadBuffer // by the run itself
		if !names || o.Incidental || o.PerCommand || written || !c.set.Applies(o) {
			continue
		}
		switch v := o.Get().(type) {
		case string:
			all[o.Name] = []string{v}
		case []string:
			all[o.Name] = v
		}
	}
	return all
}

// Decisive are the settings that results depend on, as YAML has them.
func (c *Config) Decisive() map[string]string {
	all := map[string]string{}
	for _, o := range c.set.All() {
		if !o.Incidental && c.set.Applies(o) {
			all[o.Name] = yamlValue(o.Get())
		}
	}
	return all
}

// Diff lists the settings with which a run in progress would go on to other results: those in which a and b differ, but for what leaves the
// results as they are (folders moved, threads, saving, logging).
func Diff(a, b *Config) []Difference {
	ofA, ofB := a.Decisive(), b.Decisive()
	var differences []Difference
	for _, key := range everything().names {
		if ofA[key] != ofB[key] {
			o := b.set.Find(key)
			differences = append(differences, Difference{key, ofA[key], ofB[key], o != nil && o.Extends})
		}
	}
	return differences
}
