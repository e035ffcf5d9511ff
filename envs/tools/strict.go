package tools

import (
	"regexp"
	"slices"
	"strings"
)

// Exactly reports whether a message has its calls as a chat template of the format writes them: the tags, name and arguments in
// this order, and nothing after them. White space outside strings does not count.
func (f *Format) Exactly(text string) bool {
	_, calls := f.Parse(text)
	if len(calls) == 0 {
		return false
	}
	found := f.dense(text[f.begins(text, true):])
	return slices.ContainsFunc(f.written(calls), func(w string) bool { return f.dense(w) == found })
}

// mistralID is what templates of Mistral may write after the arguments.
var mistralID = regexp.MustCompile(`,"id":"[0-9A-Za-z]{9}"`)

// written are the texts of calls, one for each way in which templates of the format write them.
func (f *Format) written(calls []Call) []string {
	join := func(between string, one func(Call) string) string {
		var all []string
		for _, c := range calls {
			all = append(all, one(c))
		}
		return strings.Join(all, between)
	}
	object := func(arguments string) func(Call) string {
		return func(c Call) string {
			return `{"name": "` + c.Name + `", "` + arguments + `": ` + string(c.Arguments) + "}"
		}
	}
	named := func(between string) func(Call) string {
		return func(c Call) string { return f.Marker + c.Name + between + string(c.Arguments) }
	}
	list := "[" + join(",", object("arguments")) + "]"
	switch f {
	case Hermes:
		return []string{join("", func(c Call) string { return f.Force(c.Name) + string(c.Arguments) + f.after })}
	case Mistral:
		return []string{f.Marker + list, join("", named("")), join("", named("[ARGS]"))}
	case Gemma:
		return []string{join("", func(c Call) string { return f.Force(c.Name) + asGemma(c.Arguments) + f.after })}
	case Llama:
		text := join(";", object("parameters"))
		return []string{text, "<|python_tag|>" + text}
	}
	return []string{"```json" + join("", object("arguments")) + "```", "```json" + list + "```"}
}

// dense is a text without the white space outside strings and without Mistral's ids.
func (f *Format) dense(text string) string {
	var b strings.Builder
	if f == Gemma {
		for i, part := range strings.Split(text, gemmaQuote) {
			if i%2 == 0 {
				part = strings.Join(strings.Fields(part), "")
			}
			b.WriteString(part + gemmaQuote)
		}
		return b.String()
	}
	quoted, escaped := false, false
	for _, r := range text {
		if !quoted && strings.ContainsRune(space, r) {
			continue
		}
		b.WriteRune(r)
		switch {
		case escaped:
			escaped = false
		case quoted && r == '\\':
			escaped = true
		case r == '"':
			quoted = !quoted
		}
	}
	return mistralID.ReplaceAllString(b.String(), "")
}
