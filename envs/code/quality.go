package code

import (
	"math"
	"regexp"
	"strings"
)

// longLine is where a line is too long, as in PEP 8.
const longLine = 79

// Style is the share of a program's lines that are not empty and have none of these faults: more than 79 characters,
// spaces at the end, a tab in front, several statements behind one another, a name of one letter that looks like a
// digit (l, O, I). A program without lines has 0.
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

// Documentation is half for the share of functions with a docstring (a program without functions has all of it where it
// has a comment), and half for comments: 1 from one comment in ten lines on.
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

// Complexity is 1 for a program whose functions have ten branches at most in the mean, and falls as 10 / branches: the
// limit that McCabe gives for the paths through a function.
func Complexity(program string) float64 {
	if strings.TrimSpace(program) == "" {
		return 0
	}
	n := math.Max(1, float64(len(functions.FindAllString(program, -1))))
	each := 1 + float64(len(branches.FindAllString(program, -1)))/n
	return math.Min(1, 10/each)
}
