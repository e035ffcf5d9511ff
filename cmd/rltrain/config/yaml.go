package config

import (
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

// YAML renders every setting that applies to c, in the table's order; given back through --config it makes the same
// configuration. A comment tells where a value came from if that is not the recipe.
func (c *Config) YAML() []byte {
	return c.render(func(k *key) bool { return k.applies(c) }, func(k *key) string { return c.commentOn(k.name) })
}

func (c *Config) commentOn(key string) string {
	switch s := c.sources[key]; {
	case s.Layer == Recipe:
		return ""
	case s.Position != "":
		return s.Position
	default:
		return s.Name
	}
}

// render writes the included settings of c with a comment for each.
func (c *Config) render(include func(*key) bool, comment func(*key) string) []byte {
	var b strings.Builder
	group := ""
	for i := range keys {
		k := &keys[i]
		if k.perCommand || !include(k) {
			continue
		}
		if k.group != group {
			if group != "" {
				b.WriteByte('\n')
			}
			group = k.group
			fmt.Fprintf(&b, "# %s\n", group)
		}
		line := k.name + ": " + yamlValue(c.field(k))
		if text := comment(k); text != "" {
			line += "  # " + printable(text)
		}
		b.WriteString(line + "\n")
	}
	return []byte(b.String())
}

// plainText are strings that need no quotes and that no YAML reader takes for something else.
var plainText = regexp.MustCompile(`^[A-Za-z_./][A-Za-z0-9_./-]*$`)

func yamlValue(v reflect.Value) string {
	switch v.Kind() {
	case reflect.Float64:
		return yamlFloat(v.Float())
	case reflect.String:
		return yamlString(v.String())
	case reflect.Slice:
		var items []string
		for i := range v.Len() {
			items = append(items, yamlString(v.Index(i).String()))
		}
		return "[" + strings.Join(items, ", ") + "]"
	}
	return fmt.Sprint(v.Interface())
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
type Difference struct{ Key, A, B string }

// Diff lists the settings that a run in progress cannot change: those in which a and b differ, but for what leaves the
// results as they are (folders moved, threads, saving, logging).
func Diff(a, b *Config) []Difference {
	var differences []Difference
	for i := range keys {
		k := &keys[i]
		if k.incidental {
			continue
		}
		d := Difference{Key: k.name}
		if k.applies(a) {
			d.A = yamlValue(a.field(k))
		}
		if k.applies(b) {
			d.B = yamlValue(b.field(k))
		}
		if d.A != d.B {
			differences = append(differences, d)
		}
	}
	return differences
}
