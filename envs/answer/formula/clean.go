package formula

import (
	"regexp"
	"strings"
)

var (
	// fences may wrap a complete text or formula.
	fences  = [][2]string{{"**", "**"}, {"__", "__"}, {"`", "`"}, {"$$", "$$"}, {`\[`, `\]`}, {`\(`, `\)`}, {`\boxed{`, `}`}, {`\fbox{`, `}`}, {`\text{`, `}`}, {`\mathrm{`, `}`}, {`\textbf{`, `}`}, {`\mathbf{`, `}`}, {`\mbox{`, `}`}, {`\displaystyle{`, `}`}, {`"`, `"`}}
	doubled = regexp.MustCompile(`\\\\([A-Za-z(){}\[\]])`)
	// layout changes only the appearance of a formula.
	layout = strings.NewReplacer(
		`\leftarrow`, `\leftarrow`, `\rightarrow`, `\to`, `\leftrightarrow`, `\leftrightarrow`, `\bigcup`, `\cup`, `\bigcap`, `\cap`, `\bigtriangleup`, `\triangle`, `\leftharpoonup`, `\leftharpoonup`,
		`\lefteqn`, ``, `\rightharpoonup`, `\rightharpoonup`,
		`\displaystyle`, " ", `\textstyle`, " ", `\scriptstyle`, " ", `\limits`, " ", `\nolimits`, " ", `\hline`, " ", `\allowbreak`, " ", `\nonumber`, " ",
		`\left.`, " ", `\right.`, " ", `\left`, "", `\right`, "", `\middle`, "", `\Biggl`, "", `\Biggr`, "", `\biggl`, "", `\biggr`, "", `\Bigl`, "", `\Bigr`, "", `\bigl`, "", `\bigr`, "",
		`\Bigg`, "", `\bigg`, "", `\Big`, "", `\big`, "",
		"$$", " ", `\(`, " ", `\)`, " ", `\[`, " ", `\]`, " ", "\r", " ", "\t", " ",
	)
)

var (
	ordinal = regexp.MustCompile(`(\d) ?\^ ?\{? ?\\(?:text|textrm|mathrm|rm) ?\{(st|nd|rd|th)\} ?\}?`) // 5^{\text{th}}
	typed   = regexp.MustCompile(`(\d)(st|nd|rd|th)\b`)                                                // 3rd
	// typedTimes matches 2x10^5, where x is not a variable.
	typedTimes = regexp.MustCompile(`(\d) ?[xX] ?10 ?\^`)
	comma      = regexp.MustCompile(` ?\{ ?, ?\} ?`)        // thousands separator in braces
	glued      = regexp.MustCompile(`(\\q?quad)([A-Za-z])`) // \quadx is not a command
)

// hasOrdinal reports whether two letters after a digit may be an ordinal: 1st, 2nd, 3rd, 4th.
func hasOrdinal(s string) bool {
	for i := 1; i+1 < len(s); i++ {
		if isDigit(s[i-1]) && (s[i+1] == 't' || s[i+1] == 'd' || s[i+1] == 'h') && isLetter(s[i]) {
			return true
		}
	}
	return false
}

// Clean removes what does not change an answer's meaning: wrappers, formula delimiters, sizes, trailing punctuation. A
// currency dollar sign becomes \$. A text that is too long stays unchanged.
func Clean(s string) string {
	if len(s) > maxBytes {
		return s
	}
	s = strings.TrimSpace(plainText(unescaped(s)))
	if strings.Contains(s, `\\`) && (!strings.Contains(s, `\begin`) || strings.Contains(s, `\\begin`)) && doubled.MatchString(s) {
		s = strings.ReplaceAll(s, `\\`, `\`)
	}
	s = unfence(s)
	if strings.Contains(s, "{,") || strings.Contains(s, "{ ,") {
		s = comma.ReplaceAllString(s, "{,}")
	}
	if strings.Contains(s, "^") {
		s = ordinal.ReplaceAllString(s, "$1$2")
	}
	if hasOrdinal(s) {
		s = typed.ReplaceAllString(s, `$1\text{$2}`)
	}
	if strings.ContainsAny(s, "xX") && strings.Contains(s, "^") {
		s = typedTimes.ReplaceAllString(s, `$1\times 10^`)
	}
	if strings.Contains(s, `\quad`) || strings.Contains(s, `\qquad`) {
		s = glued.ReplaceAllString(s, `$1 $2`)
	}
	if strings.ContainsAny(s, "\\$\r\t") {
		s = layout.Replace(s)
	}
	s = money(s)
	return unfence(punctuation(balanced(s)))
}

// swallowed matches commands whose backslash and first letter were decoded as an escape, as in strings of programs and JSON:
// \f in \frac, \t in \times.
var swallowed = regexp.MustCompile("[\a\x08\f\v]([a-z])|\t(ext|imes|heta|frac|riangle|au\\b|an\\b)|\r(ight|ho\\b|angle)")

func unescaped(s string) string {
	if !strings.ContainsAny(s, "\a\b\f\v\t\r") {
		return s
	}
	letters := map[byte]string{'\a': "a", '\b': "b", '\f': "f", '\v': "v", '\t': "t", '\r': "r"}
	return swallowed.ReplaceAllStringFunc(s, func(m string) string { return `\` + letters[m[0]] + m[1:] })
}

// balanced removes unmatched braces at the end.
func balanced(s string) string {
	for strings.HasSuffix(s, "}") && !strings.HasSuffix(s, `\}`) {
		depth, extra := 0, false
		for i := 0; i < len(s); i++ {
			switch s[i] {
			case '\\':
				i++
			case '{':
				depth++
			case '}':
				depth--
				extra = extra || depth < 0
			}
		}
		if !extra || depth != -1 {
			return s
		}
		s = strings.TrimSpace(s[:len(s)-1])
	}
	return s
}

// maxFences bounds nested wrappers.
const maxFences = 6

// unfence removes the wrappers.
func unfence(s string) string {
	changed := true
	for range maxFences {
		if !changed {
			break
		}
		changed = false
		s = trim(s)
		if s == "" || strings.IndexByte("*_`$\\\"", s[0]) < 0 { // no fence starts like this
			break
		}
		for _, f := range fences {
			if len(s) >= len(f[0])+len(f[1]) && strings.HasPrefix(s, f[0]) && strings.HasSuffix(s, f[1]) {
				inside := s[len(f[0]) : len(s)-len(f[1])]
				if wrapsWhole(f[0], f[1], inside) {
					s, changed = trim(inside), true
				}
			}
		}
		if len(s) >= 2 && s[0] == '$' && s[len(s)-1] == '$' && !strings.Contains(s[1:len(s)-1], "$") {
			s, changed = s[1:len(s)-1], true
		}
	}
	return s
}

// wrapsWhole reports whether a wrapper that opens before inside closes only after it.
func wrapsWhole(open, shut, inside string) bool {
	if shut != "}" {
		return inside != "" && !strings.Contains(inside, open) && !strings.Contains(inside, shut)
	}
	depth := 0
	for i := 0; i < len(inside); i++ {
		switch inside[i] {
		case '\\':
			i++
		case '{':
			depth++
		case '}':
			if depth--; depth < 0 {
				return false
			}
		}
	}
	return depth == 0
}

// punctuation removes trailing full stops, commas and the like.
func punctuation(s string) string {
	s = trim(s)
	for s != "" && strings.IndexByte(".,;:?", s[len(s)-1]) >= 0 && !strings.HasSuffix(s, "...") {
		s = trim(s[:len(s)-1])
	}
	return s
}

// trim removes spaces and spacing commands at both ends.
func trim(s string) string {
	for {
		s = strings.TrimSpace(s)
		switch n := len(s); {
		case n > 0 && s[0] == '~':
			s = s[1:]
		case n > 1 && s[0] == '\\' && strings.IndexByte(",;:!", s[1]) >= 0:
			s = s[2:]
		case n > 0 && s[n-1] == '~' && (n < 2 || s[n-2] != '\\'):
			s = s[:n-1]
		case n > 1 && s[n-2] == '\\' && strings.IndexByte(",;:!", s[n-1]) >= 0 && (n < 3 || s[n-3] != '\\'):
			s = s[:n-2]
		default:
			return s
		}
	}
}

// money keeps dollar signs next to a number that cannot be delimiters, as \$, and removes the others.
func money(s string) string {
	if !strings.Contains(s, "$") {
		return s
	}
	signs := strings.Count(s, "$") - strings.Count(s, `\$`)
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '$' || i > 0 && s[i-1] == '\\' {
			b.WriteByte(s[i])
			continue
		}
		if signs%2 == 1 && (i+1 < len(s) && (isDigit(s[i+1]) || s[i+1] == '.') || i > 0 && strings.TrimSpace(s[i+1:]) == "" && isDigit(lastByte(s[:i]))) {
			b.WriteString(`\$`)
			signs = 0
			continue
		}
		b.WriteByte(' ')
	}
	return b.String()
}

func lastByte(s string) byte {
	s = strings.TrimSpace(s)
	if s == "" {
		return 0
	}
	return s[len(s)-1]
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isLetter(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' }
