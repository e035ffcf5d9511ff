package code

import (
	"math"
	"regexp"
	"strings"
)

// longLine is the maximum line length, as in PEP 8.
const longLine = 79

// Style is the fraction of non-empty lines without a style fault: more than 79 characters, trailing spaces, a leading tab,
// several statements on one line, or a one-letter name that looks like a digit (l, O, I). It is 0 for an empty program.
func Style(program string) float64 {
	lines, good := 0, 0
	for line := range strings.Lines(program) {
		line = strings.TrimSuffix(line, "\n")
		if strings.TrimSpace(line) == "" {
			continue
		}
		lines++
		code, _, _ := strings.Cut(line, "#")
		if len([]rune(line)) <= longLine && strings.TrimRight(line, " \t") == line && !strings.HasPrefix(line, "\t") &&
			!joined.MatchString(code) && !confusing.MatchString(code) {
			good++
		}
	}
	if lines == 0 {
		return 0
	}
	return float64(good) / float64(lines)
}

var (
	joined    = regexp.MustCompile(`;\s*\S`)
	confusing = regexp.MustCompile(`\b[lOI]\s*=[^=]`)
	functions = regexp.MustCompile(`(?m)^[ \t]*(?:def |async def |function )|^\w+:\{`)
	docstring = regexp.MustCompile(`(?m)^[ \t]*(?:def|async def) [^\n]*\n(?:[ \t]+[^\n]*\n)??[ \t]*(?:"""|''')`)
	comment   = regexp.MustCompile(`(?m)^\s*(?:#|//|/ )|[^'"]\s(?:#|//) `)
	branches  = regexp.MustCompile(`\b(?:if|elif|for|while|except|and|or|case|catch)\b|&&|\|\||\?[^.]`)
)

// Documentation is the mean of two scores in [0,1]: the fraction of functions with a docstring (without functions: 1 if
// there is a comment), and the comments, which reach 1 at one per ten lines.
func Documentation(program string) float64 {
	if strings.TrimSpace(program) == "" {
		return 0
	}
	lines := strings.Count(strings.TrimSpace(program), "\n") + 1
	comments := len(comment.FindAllString(program, -1))
	described := math.Min(1, float64(comments))
	if n := len(functions.FindAllString(program, -1)); n > 0 {
		described = math.Min(1, float64(len(docstring.FindAllString(program, -1)))/float64(n))
	}
	return 0.5*described + 0.5*math.Min(1, 10*float64(comments)/float64(lines))
}

// Complexity is 1 if the functions have at most ten branches on average, and 10/branches above: McCabe's limit for the
// paths through a function.
func Complexity(program string) float64 {
	if strings.TrimSpace(program) == "" {
		return 0
	}
	n := math.Max(1, float64(len(functions.FindAllString(program, -1))))
	each := 1 + float64(len(branches.FindAllString(program, -1)))/n
	return math.Min(1, 10/each)
}
