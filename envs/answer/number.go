package answer

import (
	"math/big"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxDigits bounds the digits of a number: longer runs are not answers, and converting them takes more than linear time.
const maxDigits = 400

// scanNumber returns the end of the number that starts at s[i], or i if there is none:
//
//	[sign] [$] (digits | d{1,3} (,ddd)+) [.digits] [e[sign]d{1,3}]
//
// The sign is -, + or U+2212, directly before the number. Digits are ASCII. A comma belongs to the number only if every
// group after it has three digits.
func scanNumber(s string, i int) int {
	at := i + signLength(s[i:])
	if strings.HasPrefix(s[at:], "$") {
		at++
	}
	end := scanDigits(s, at)
	digits := end - at
	for digits <= 3 || s[end-4] == ',' {
		group := end + 1
		if end >= len(s) || s[end] != ',' || digits == 0 || scanDigits(s, group) != group+3 {
			break
		}
		end, digits = group+3, digits+3
	}
	if point := end; point < len(s) && s[point] == '.' {
		if fraction := scanDigits(s, point+1); fraction > point+1 {
			digits += fraction - point - 1
			end = fraction
		}
	}
	if digits == 0 || digits > maxDigits {
		return i
	}
	return scanExponent(s, end)
}

func scanExponent(s string, end int) int {
	if end == len(s) || s[end] != 'e' && s[end] != 'E' {
		return end
	}
	from := end + 1
	from += signLength(s[from:])
	to := scanDigits(s, from)
	if to == from || to > from+3 {
		return end
	}
	if r, _ := utf8.DecodeRuneInString(s[to:]); unicode.IsLetter(r) {
		return end
	}
	return to
}

func scanDigits(s string, i int) int {
	for i < len(s) && isDigit(s[i]) {
		i++
	}
	return i
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// minus is the mathematical minus sign, U+2212.
const minus = "−"

func signLength(s string) int {
	switch {
	case strings.HasPrefix(s, "-"), strings.HasPrefix(s, "+"):
		return 1
	case strings.HasPrefix(s, minus):
		return len(minus)
	}
	return 0
}

var numberMarks = strings.NewReplacer(",", "", "$", "", minus, "-")

// number converts the result of scanNumber.
func number(text string) *big.Rat {
	value, ok := new(big.Rat).SetString(numberMarks.Replace(text))
	if !ok {
		return nil
	}
	return value
}

// lastNumber finds the last number of s. A sign directly after a letter, a digit, a closing bracket or another sign is a
// hyphen or an operator, not part of the number.
func lastNumber(s string) (text string, found bool) {
	previous := ' '
	for i := 0; i < len(s); {
		joined := unicode.IsLetter(previous) || unicode.IsDigit(previous) || strings.ContainsRune(")]}-+"+minus, previous)
		if signLength(s[i:]) == 0 || !joined {
			if end := scanNumber(s, i); end > i {
				text, found = s[i:end], true
				i, previous = end, '0'
				continue
			}
		}
		if end := scanDigits(s, i); end > i { // too long for a number
			i, previous = end, '0'
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		previous = r
		i += size
	}
	return text, found
}
