package options

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A condition is a list of alternatives, each of tests that must all hold.
type condition [][]test

// test compares the value of an option.
type test struct {
	name   string   // of the option; one with the prefix of the dependent option comes first
	op     string   // "" (true, or not empty), "!", "=", "!=", ">"
	values []string // of = and !=
	limit  float64  // of >
}

var testSyntax = regexp.MustCompile(`^(!?)([a-z][a-z0-9_]*)(?:(=|!=|>)(.+))?$`)

func parseNeeds(text string) (all []condition, err error) {
	if text == "" {
		return nil, nil
	}
	for _, part := range strings.Split(text, ",") {
		var c condition
		for _, alternative := range strings.Split(part, " or ") {
			var tests []test
			for _, one := range strings.Split(alternative, " and ") {
				m := testSyntax.FindStringSubmatch(strings.TrimSpace(one))
				if m == nil || m[1] != "" && m[3] != "" {
					return nil, fmt.Errorf("needs %q: %q is no condition", text, one)
				}
				t := test{name: m[2], op: m[1] + m[3], values: strings.Split(m[4], "|")}
				if t.op == ">" {
					if t.limit, err = strconv.ParseFloat(m[4], 64); err != nil {
						return nil, fmt.Errorf("needs %q: %q is no number", text, m[4])
					}
				}
				tests = append(tests, t)
			}
			c = append(c, tests)
		}
		all = append(all, c)
	}
	return all, nil
}

// Missing returns the unmet condition of the option, as text that completes "applies only"; "" if it applies.
func (s *Set) Missing(o *Option) string {
	for _, c := range slices.Concat(o.outer, o.needs) {
		first := ""
		for i, tests := range c {
			missing := s.missingOf(o.prefix, tests)
			if missing == "" {
				first = ""
				break
			}
			if i == 0 {
				first = missing
			}
		}
		if first != "" {
			return first
		}
	}
	return ""
}

func (s *Set) missingOf(prefix string, tests []test) string {
	for _, t := range tests {
		if missing := s.missing(prefix, t); missing != "" {
			return missing
		}
	}
	return ""
}

// missing returns the unmet part of a test. An option that does not apply itself satisfies no condition.
func (s *Set) missing(prefix string, t test) string {
	o := s.byName[prefix+t.name]
	if o == nil {
		o = s.byName[t.name]
	}
	if missing, ok := s.facts[t.name]; o == nil && ok {
		return missing
	}
	if o == nil {
		if s.keep || t.op == "!" || t.op == "!=" {
			return ""
		}
		return "with " + Flag(t.name)
	}
	if t.op == "" || t.op == "=" || t.op == ">" {
		if missing := s.Missing(o); missing != "" {
			return missing
		}
	}
	text, values := fmt.Sprint(o.Get()), slices.Clone(t.values)
	for i, value := range values {
		if name, ok := strings.CutPrefix(value, "@"); ok && s.byName[name] != nil {
			values[i] = fmt.Sprint(s.byName[name].Get())
		}
	}
	holds := slices.Contains(values, text)
	if list, ok := o.Get().([]string); ok && t.op == "=" {
		holds = slices.ContainsFunc(list, func(one string) bool { return slices.Contains(values, one) })
	}
	empty := o.value.IsZero() || o.Kind == reflect.Slice && o.value.Len() == 0
	switch {
	case t.op == "" && empty && o.Kind == reflect.Bool:
		return "with " + Flag(o.Name)
	case t.op == "" && empty:
		return "with " + Flag(o.Name) + " " + o.Arg
	case t.op == "!" && !empty && o.Kind == reflect.Bool:
		return "with " + Flag(o.Name) + "=false"
	case t.op == "!" && !empty:
		return "without " + Flag(o.Name)
	case t.op == "=" && !holds:
		return "with " + Flag(o.Name) + " " + strings.Join(values, " or ")
	case t.op == "!=" && slices.Contains(values, text):
		return "with another " + Flag(o.Name) + " than " + text
	case t.op == ">" && !(number(o.value) > t.limit):
		return fmt.Sprintf("with %s above %v", Flag(o.Name), t.limit)
	}
	return ""
}

func number(v reflect.Value) float64 {
	switch v.Kind() {
	case reflect.Int:
		return float64(v.Int())
	case reflect.Uint64:
		return float64(v.Uint())
	case reflect.Float64:
		return v.Float()
	}
	return 0
}

// Excludes reports whether the option has no effect if the option name has that value, whatever the others.
func (o *Option) Excludes(name, value string) bool {
	differs := func(t test) bool { return t.name == name && t.op == "=" && !slices.Contains(t.values, value) }
	return slices.ContainsFunc(slices.Concat(o.outer, o.needs), func(c condition) bool {
		return !slices.ContainsFunc(c, func(tests []test) bool { return !slices.ContainsFunc(tests, differs) })
	})
}

// Applies reports whether the option has an effect, given the values of the others.
func (s *Set) Applies(o *Option) bool { return s.Missing(o) == "" }
