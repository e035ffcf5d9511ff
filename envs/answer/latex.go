package answer

import (
	"regexp"
	"strings"
)

var (
	latexMarks = strings.NewReplacer(
		`\left`, "", `\right`, "", `\displaystyle`, "", `\!`, "", `\,`, "", `\;`, "", `\:`, "",
		`\ `, " ", "~", " ", "\u00a0", " ", "\n", " ", "\t", " ",
		`\dfrac`, `\frac`, `\tfrac`, `\frac`, `\cfrac`, `\frac`,
		"{,}", ",", `\$`, "", "$", "", `\%`, "%", `\(`, "", `\)`, "", `\[`, "", `\]`, "",
		`^{\circ}`, " ", `^\circ`, " ", `\degree`, " ", "°", " ",
		`\times`, "*", `\cdot`, "*", "×", "*", "·", "*", minus, "-",
		"²", "^2", "³", "^3", "**", "",
	)
	// leadsTo matches the "x =" of an entry; a comma in it separates thousands.
	leadsTo  = regexp.MustCompile(`^(?:(?:[^,]|,\d{3})*[^!<>,])?=`)
	memberOf = regexp.MustCompile(`^[a-z] ?\\in\b`)
	// spacing is white space without meaning in mathematics.
	spacing = regexp.MustCompile(`\s+`)
	single  = regexp.MustCompile(`\{(\\[a-z]+|[^{}\\])\}`)
)

// textCommands change only the appearance of their argument.
var textCommands = []string{`\text`, `\textbf`, `\textit`, `\textrm`, `\mbox`, `\mathrm`, `\mathbf`, `\mathit`, `\operatorname`, `\boxed`, `\fbox`, `\rm`}

// cleanLaTeX removes what does not change an answer's meaning: formula delimiters, boxes, spacing, sizes, fonts, $ and °
// signs, "x \in", a trailing full stop. The result is lower case.
func cleanLaTeX(s string) string {
	s = latexMarks.Replace(strings.TrimSpace(s))
	for _, command := range textCommands {
		s = unwrap(s, command)
	}
	s = strings.ToLower(spacing.ReplaceAllString(s, " "))
	s = memberOf.ReplaceAllString(strings.TrimSpace(s), "")
	return strings.TrimSpace(strings.TrimSuffix(s, "."))
}

// unwrap replaces every \command{…} by its argument, surrounded by spaces.
func unwrap(s, command string) string {
	if !strings.Contains(s, command) {
		return s
	}
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(s, command)
		out.WriteString(before)
		if !found {
			return out.String()
		}
		if rest != "" && isLetter(rest[0]) { // a longer command
			out.WriteString(command)
			s = rest
			continue
		}
		if inside, after, ok := group(strings.TrimLeft(rest, " ")); ok {
			out.WriteByte(' ')
			s = inside + " " + after
			continue
		}
		s = rest
	}
}

func isLetter(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' }

// splitList removes the brackets of a list, tuple, interval or set, and splits it at commas. open names the brackets: "" for
// a bare list, "(]" etc., "{}" for a set. Anything else is one entry.
func splitList(s string) (open string, entries []string) {
	s = strings.TrimSpace(s)
	inside := s
	switch {
	case strings.HasPrefix(s, `\{`) && strings.HasSuffix(s, `\}`) && len(s) >= 4:
		open, inside = "{}", s[2:len(s)-2]
	case len(s) >= 2 && strings.IndexByte("([", s[0]) >= 0 && strings.IndexByte(")]", s[len(s)-1]) >= 0:
		open, inside = s[:1]+s[len(s)-1:], s[1:len(s)-1]
	}
	depth, from := 0, 0
	for i := 0; i < len(inside); i++ {
		switch inside[i] {
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			if depth--; depth < 0 { // the outer brackets are not a pair
				return "", []string{s}
			}
		case ',':
			if depth == 0 {
				entries = append(entries, strings.TrimSpace(inside[from:i]))
				from = i + 1
			}
		}
	}
	entries = append(entries, strings.TrimSpace(inside[from:]))
	if open == "()" && len(entries) == 1 {
		open = "" // only grouping
	}
	return open, entries
}

// canonical is the form in which LaTeX without a value is compared: no spaces, and no braces around a single character or
// command, so that \frac12 equals \frac{1}{2} and x^{2} equals x^2.
func canonical(s string) string {
	s = leadsTo.ReplaceAllString(s, "")
	s = strings.ReplaceAll(s, " ", "")
	for range 4 { // nested braces are removed from the inside
		s = single.ReplaceAllString(s, "$1")
	}
	return s
}
