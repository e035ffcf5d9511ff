package formula

import (
	"math/big"
	"strings"
)

// lexNumber reads a number: digits, optionally in groups of three, decimals, a repeating period, an exponent.
func (l *lexer) lexNumber() {
	from := l.at
	digits := l.takeDigits()
	l.takeGroups(&digits)
	places := ""
	point := "."
	if l.commas == decimal {
		point = ","
	}
	if rest := l.s[l.at:]; strings.HasPrefix(rest, point) && len(rest) > 1 && isDigit(rest[1]) && (point == "." || l.decimalComma(digits)) {
		l.at++
		places = l.takeDigits()
	} else if point == "." && strings.HasPrefix(rest, ".") && !strings.HasPrefix(rest, "..") {
		l.at++ // 3. is 3
	}
	if places != "" {
		for _, mark := range []string{"...", `\ldots`, `\dots`} { // 0.333… has the precision of its digits
			if strings.HasPrefix(l.s[l.at:], mark) {
				l.at += len(mark)
				break
			}
		}
	}
	if len(digits)+len(places) > maxDigits {
		l.problem = ErrTooLong
		return
	}
	value := decimalValue(digits, places)
	t := token{kind: numberToken, places: len(places), digits: len(strings.TrimLeft(digits+places, "0")), plain: places == "" && !strings.HasSuffix(l.s[from:l.at], ".")}
	if period := l.takePeriod(places != "" || strings.HasSuffix(l.s[from:l.at], ".")); period != "" {
		nines, _ := new(big.Rat).SetString(strings.Repeat("9", len(period)) + strings.Repeat("0", len(places)))
		loop, _ := new(big.Rat).SetString(period)
		value.Add(value, loop.Quo(loop, nines))
		t.places, t.digits, t.plain = 0, 0, false
	}
	if exponent, ok := l.takeExponent(); ok {
		power, _ := new(big.Rat).SetString("1e" + exponent)
		value.Mul(value, power)
		t.plain = false
	}
	t.number, t.text = value, l.s[from:l.at]
	l.tokens = append(l.tokens, t)
}

// decimalValue is the number digits.places, in decimal digits.
func decimalValue(digits, places string) *big.Rat {
	if len(digits)+len(places) < 18 {
		value, unit := int64(0), int64(1)
		for i := range len(digits) {
			value = value*10 + int64(digits[i]-'0')
		}
		for i := range len(places) {
			value, unit = value*10+int64(places[i]-'0'), unit*10
		}
		return big.NewRat(value, unit)
	}
	value, _ := new(big.Rat).SetString("0" + digits + "." + places + "0")
	return value
}

// decimalComma reports whether the comma here can be a decimal sign: not between entries in brackets, and not before a group
// of thousands.
func (l *lexer) decimalComma(digits string) bool {
	if (l.depth > 0 || l.braces > 0) && !strings.Contains(l.s, ";") {
		return false
	}
	end := l.at + 1
	for end < len(l.s) && isDigit(l.s[end]) {
		end++
	}
	return end != l.at+4 || len(digits) > 3 || strings.HasPrefix(digits, "0")
}

func (l *lexer) takeDigits() string {
	from := l.at
	for l.at < len(l.s) && isDigit(l.s[l.at]) {
		l.at++
	}
	return l.s[from:l.at]
}

// groupMarks separate groups of three digits. The comma does so only in some readings.
var groupMarks = []string{`,\!`, `{,}`, `\,`, `\!`, `, \!`, "'", `{ }`, `\ `, `~`, " ", ",", "."}

// takeGroups reads the groups after the first digits of a number.
func (l *lexer) takeGroups(digits *string) {
	if n := len(*digits); n == 0 || n > 3 || (*digits)[0] == '0' || l.at == len(l.s) || strings.IndexByte(",{\\'~ .", l.s[l.at]) < 0 {
		return
	}
	for _, mark := range groupMarks {
		switch {
		case mark == "," && (l.commas != thousands || l.depth > 0 && !l.spaced):
			continue
		case mark == "," && l.indian(digits):
			return
		}
		groups, end := "", l.at
		count := 0
		for {
			rest := l.s[end:]
			if !strings.HasPrefix(rest, mark) {
				break
			}
			rest = rest[len(mark):]
			if mark == `,\!` {
				rest = strings.TrimLeft(rest, " ")
			}
			if len(rest) < 3 || !isDigit(rest[0]) || !isDigit(rest[1]) || !isDigit(rest[2]) || len(rest) > 3 && isDigit(rest[3]) {
				break
			}
			groups += rest[:3]
			end = len(l.s) - len(rest) + 3
			count++
		}
		next := byte(0)
		if end < len(l.s) {
			next = l.s[end]
		}
		switch {
		case count == 0, mark == "." && count < 2 && (l.commas != decimal || next != ','), mark == " " && next == '/':
			continue
		}
		*digits += groups
		l.at = end
		return
	}
}

// indian reads groups of two digits and a last one of three: 12,34,567.
func (l *lexer) indian(digits *string) bool {
	rest, groups := l.s[l.at:], ""
	pairs := 0
	for len(rest) >= 4 && rest[0] == ',' && isDigit(rest[1]) && isDigit(rest[2]) && rest[3] == ',' {
		groups += rest[1:3]
		rest = rest[3:]
		pairs++
	}
	if pairs == 0 || len(*digits) > 2 || len(rest) < 4 || !isDigit(rest[1]) || !isDigit(rest[2]) || !isDigit(rest[3]) || len(rest) > 4 && (isDigit(rest[4]) || rest[4] == ',') {
		return false
	}
	*digits += groups + rest[1:4]
	l.at = len(l.s) - len(rest) + 4
	return true
}

// takePeriod reads \overline{3} and the like, which repeat forever.
func (l *lexer) takePeriod(afterPoint bool) string {
	if !afterPoint {
		return ""
	}
	for _, mark := range []string{`\overline`, `\bar`, `\dot`} {
		rest := l.s[l.at:]
		if !strings.HasPrefix(rest, mark) {
			continue
		}
		rest = strings.TrimLeft(rest[len(mark):], " ")
		if strings.HasPrefix(rest, "{") {
			if inside, after, ok := strings.Cut(rest[1:], "}"); ok && allDigits(inside) && len(inside) <= 50 {
				l.at = len(l.s) - len(after)
				return inside
			}
		} else if rest != "" && isDigit(rest[0]) {
			l.at = len(l.s) - len(rest) + 1
			return rest[:1]
		}
	}
	return ""
}

// takeExponent reads e-5 after a number.
func (l *lexer) takeExponent() (exponent string, ok bool) {
	rest := l.s[l.at:]
	if len(rest) < 2 || rest[0] != 'e' && rest[0] != 'E' {
		return "", false
	}
	end := 1
	if rest[1] == '-' || rest[1] == '+' {
		end++
	}
	from := end
	for end < len(rest) && isDigit(rest[end]) {
		end++
	}
	if end == from || end > from+2 || end < len(rest) && isLetter(rest[end]) {
		return "", false
	}
	l.at += end
	return strings.TrimPrefix(rest[1:end], "+"), true
}

func allDigits(s string) bool {
	for i := range len(s) {
		if !isDigit(s[i]) {
			return false
		}
	}
	return s != ""
}
