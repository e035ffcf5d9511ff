package equiv

import (
	"math/big"
	"regexp"
	"slices"
	"strings"

	f "github.com/rltrain/rltrain/envs/answer/formula"
)

// maxPlain bounds the digits of a number compared without parsing.
const maxPlain = 18

// plainNumbers compares two short plain decimals, the most common case.
func plainNumbers(gold, answer string) (equal, ok bool) {
	a, placesA, ok := wrappedNumber(gold)
	if !ok {
		return false, false
	}
	b, placesB, ok := wrappedNumber(answer)
	if !ok {
		return false, false
	}
	for ; placesA < placesB && a < 1e17 && a > -1e17; placesA++ {
		a *= 10
	}
	for ; placesB < placesA && b < 1e17 && b > -1e17; placesB++ {
		b *= 10
	}
	return a == b, placesA == placesB
}

// wrappedNumber is plainNumber for a wrapped number, as in $\boxed{18}$ and **18**.
func wrappedNumber(s string) (value int64, places int, ok bool) {
	if value, places, ok = plainNumber(s); ok || len(s) > 4*maxPlain {
		return value, places, ok
	}
	if s = strings.TrimSpace(s); s == "" || strings.IndexByte(`\$*`, s[0]) < 0 {
		return 0, 0, false
	}
	return plainNumber(f.Clean(s))
}

// plainNumber reads digits with a sign and a point as value·10^-places.
func plainNumber(s string) (value int64, places int, ok bool) {
	if len(s) > 4*maxPlain {
		return 0, 0, false
	}
	s = strings.TrimSpace(s)
	negative := strings.HasPrefix(s, "-")
	s = strings.TrimPrefix(s, "-")
	digits := 0
	point := false
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == ',' && !point && value > 0 && value < 1000 && digits <= 3 && groups(s[i:]):
			for ; i < len(s) && s[i] == ','; i += 4 {
				value = value*1000 + int64(s[i+1]-'0')*100 + int64(s[i+2]-'0')*10 + int64(s[i+3]-'0')
				digits += 3
			}
			i--
		case isDigit(s[i]):
			value = value*10 + int64(s[i]-'0')
			if digits++; digits > maxPlain {
				return 0, 0, false
			}
			if point {
				places++
			}
		case s[i] == '.' && !point && i+1 < len(s):
			point = true
		default:
			return 0, 0, false
		}
	}
	if negative {
		value = -value
	}
	return value, places, digits > 0
}

// groups reports whether s is groups of three digits after commas, optionally with decimals, up to fifteen digits in total.
func groups(s string) bool {
	n := 0
	for len(s) >= 4 && s[0] == ',' && isDigit(s[1]) && isDigit(s[2]) && isDigit(s[3]) {
		s = s[4:]
		n++
	}
	return n > 0 && n <= 4 && (s == "" || s[0] == '.')
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// setLetter matches (B) in another font.
var setLetter = regexp.MustCompile(`^\\(?:text|textbf|mathrm|mathbf|textrm)\{ ?(\([A-J]\)) ?\}`)

// choice returns the letter of a cleaned multiple-choice answer in upper case: B, (B), B. and (B) with the text of that
// option, or a single lower-case letter; else 0.
func choice(s string) byte {
	if len(s) > f.MaxLength {
		return 0
	}
	if strings.HasPrefix(s, `\`) {
		s = setLetter.ReplaceAllString(s, "$1")
	}
	letter, rest := byte(0), ""
	switch {
	case len(s) == 1:
		letter = s[0]
	case len(s) >= 3 && s[0] == '(' && s[2] == ')':
		letter, rest = s[1], s[3:]
	case len(s) >= 2 && (s[1] == ')' || s[1] == '.' || s[1] == ':'):
		letter, rest = s[0], s[2:]
	default:
		return 0
	}
	if rest != "" && !slices.ContainsFunc([]string{" ", `\ `, `\,`, `\;`, `\:`, `\quad`, `\text`, "~"}, func(space string) bool { return strings.HasPrefix(rest, space) }) {
		return 0
	}
	if 'a' <= letter && letter <= 'j' && rest == "" && letter != 'e' && letter != 'i' {
		letter -= 'a' - 'A'
	}
	if letter < 'A' || letter > 'J' {
		return 0
	}
	return letter
}

// bare reports whether a choice is only its letter.
func bare(s string) bool { return len(strings.Trim(s, "().: ")) == 1 }

// group is a single character in braces.
var group = regexp.MustCompile(`\{([^{}\\])\}`)

// noMeaning removes marks that do not change text.
var noMeaning = strings.NewReplacer(`\ `, " ", `\,`, " ", `\!`, "", "~", " ", "\"", "", "“", "", "”", "", `\$`, "$", `\%`, "%")

// normalText is text without what does not matter: case, layout and font commands, spaces, quotes, a trailing full stop,
// articles.
func normalText(s string) string {
	if len(s) > f.MaxLength {
		return s
	}
	s = f.Clean(s)
	for _, command := range []string{`\text`, `\textbf`, `\mathrm`, `\mbox`, `\operatorname`, `\mathbf`, `\textit`} {
		s = strings.ReplaceAll(s, command+"{", "{")
	}
	if strings.ContainsAny(s, `^_\`) { // braces delimit the operand of a power or command
		s = group.ReplaceAllString(strings.ToLower(s), "$1")
	} else {
		s = strings.NewReplacer("{", "", "}", "").Replace(strings.ToLower(s))
	}
	s = noMeaning.Replace(s)
	words := strings.Fields(s)
	if len(words) > 1 && (words[0] == "the" || words[0] == "a" || words[0] == "an") {
		words = words[1:]
	}
	return strings.Join(words, " ")
}

// sameText compares text that is not mathematics. Empty texts are never the same.
func sameText(a, b string) bool {
	x := normalText(a)
	if x == "" {
		return false
	}
	y := normalText(b)
	if x == y {
		return true
	}
	// unparsed formulas are the same if they agree without spaces
	return strings.ContainsRune(x, '\\') && strings.ReplaceAll(x, " ", "") == strings.ReplaceAll(y, " ", "")
}

// nothing are the ways to say that there is no solution.
var nothing = map[string]bool{"none": true, "no solution": true, "no solutions": true, "no real solution": true, "no real solutions": true, "empty set": true, "no such": true, "does not exist": true, "dne": true, "undefined": true, "nonexistent": true}

// numberWords are small integers in words.
var numberWords = map[string]int64{
	"zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "eleven": 11, "twelve": 12,
	"thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16, "seventeen": 17, "eighteen": 18, "nineteen": 19, "twenty": 20, "thirty": 30, "forty": 40,
	"fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90,
}

// sameTextNodes compares words with words, with the empty set, and with a letter or a small number.
func sameTextNodes(a, b *f.Node) bool {
	if a.Kind != f.Text {
		a, b = b, a
	}
	x := normalText(a.Text)
	if b.Kind == f.Text {
		y := normalText(b.Text)
		return x != "" && (x == y || nothing[x] && x != "undefined" && x != "does not exist" && x != "dne" && nothing[y] && strings.HasPrefix(y, "no") && strings.HasPrefix(x, "no"))
	}
	if b.Is(f.Constant, "empty") {
		return nothing[x] && strings.HasPrefix(x, "no") || x == "empty set"
	}
	if b.Is(f.Constant, "R") {
		return x == "all real numbers" || x == "all reals" || x == "real numbers"
	}
	if n, ok := numberWords[x]; ok && b.Kind == f.Number {
		return b.Num.Cmp(new(big.Rat).SetInt64(n)) == 0
	}
	return b.Kind == f.Name && x == strings.ToLower(b.Text) && len(x) > 1
}
