package answer

import (
	"math/big"
	"regexp"
	"strings"
)

var (
	fractionPattern  = regexp.MustCompile(`^\\frac ?(\d|\{ ?([-+]? ?[\d.,]+) ?\}) ?(\d|\{ ?([-+]? ?[\d.,]+) ?\})`)
	slashPattern     = regexp.MustCompile(`^([\d.,]+) ?/ ?([\d.,]+)`)
	mixedPattern     = regexp.MustCompile(`^(\d[\d,]*)(?:(?: ?\+ ?| )?(\\frac.*)|(?: ?\+ ?| )(\d+ ?/ ?\d.*))$`)
	repeatingPattern = regexp.MustCompile(`^(\d*)\.(\d*)\\overline ?\{? ?(\d+) ?\}?`)
	powerPattern     = regexp.MustCompile(`^ ?\* ?10 ?\^ ?(?:\{ ?([-+]?\d{1,3}) ?\}|([-+]?\d{1,3}))`)
)

// parseQuantity reads cleaned LaTeX as a number followed by a percent sign, a unit, or nothing.
func parseQuantity(s string) (q quantity, ok bool) {
	s = strings.TrimSpace(leadsTo.ReplaceAllString(s, ""))
	negative := false
	if n := signLength(s); n > 0 {
		negative = s[0] == '-'
		s = strings.TrimLeft(s[n:], " ")
	}
	value, rest := parseValue(s)
	if value == nil {
		return quantity{}, false
	}
	if negative {
		value.Neg(value)
	}
	if exponent := powerPattern.FindStringSubmatch(rest); exponent != nil {
		power, _ := new(big.Rat).SetString("1e" + exponent[1] + exponent[2]) // the pattern guarantees a number
		value.Mul(value, power)
		rest = rest[len(exponent[0]):]
	}
	rest, percent := cutPercent(rest)
	unit, ok := parseUnit(rest)
	return quantity{value: value, percent: percent, unit: unit}, ok
}

func cutPercent(s string) (rest string, found bool) {
	trimmed := strings.TrimLeft(s, " ")
	if rest, found = strings.CutPrefix(trimmed, "%"); found {
		return rest, true
	}
	if rest, found = strings.CutPrefix(trimmed, "percent"); found && (rest == "" || rest[0] == ' ') {
		return rest, true
	}
	return s, false
}

// parseValue reads an unsigned number at the start of s.
func parseValue(s string) (value *big.Rat, rest string) {
	if m := repeatingPattern.FindStringSubmatch(s); m != nil && len(m[0]) <= maxDigits {
		return repeating(m[1], m[2], m[3]), s[len(m[0]):]
	}
	if m := mixedPattern.FindStringSubmatch(s); m != nil {
		whole := number(m[1])
		if part, rest := parseValue(m[2] + m[3]); part != nil && whole != nil && len(m[1]) <= maxDigits {
			return whole.Add(whole, part), rest
		}
	}
	if m := fractionPattern.FindStringSubmatch(s); m != nil {
		above, below := m[2], m[4]
		if above == "" {
			above = m[1]
		}
		if below == "" {
			below = m[3]
		}
		return quotient(above, below), s[len(m[0]):]
	}
	if m := slashPattern.FindStringSubmatch(s); m != nil {
		return quotient(m[1], m[2]), s[len(m[0]):]
	}
	end := scanNumber(s, 0)
	if end == 0 || signLength(s) > 0 {
		return nil, s
	}
	return number(s[:end]), s[end:]
}

func quotient(above, below string) *big.Rat {
	x, y := whole(above), whole(below)
	if x == nil || y == nil || y.Sign() == 0 {
		return nil
	}
	return x.Quo(x, y)
}

// whole reads a text that is only a number.
func whole(s string) *big.Rat {
	s = strings.ReplaceAll(s, " ", "")
	if s == "" || scanNumber(s, 0) != len(s) {
		return nil
	}
	return number(s)
}

// repeating is the value of digits.tail followed by period repeated forever.
func repeating(digits, tail, period string) *big.Rat {
	head, _ := new(big.Rat).SetString("0" + digits + "." + tail + "0")
	loop, _ := new(big.Rat).SetString(period)
	nines, _ := new(big.Rat).SetString(strings.Repeat("9", len(period)) + strings.Repeat("0", len(tail)))
	return head.Add(head, loop.Quo(loop, nines))
}

var (
	hedges    = regexp.MustCompile(`(?i)\b(?:or|nor|not|but|and)\b`) // "4 or not" is not a quantity
	unitWords = regexp.MustCompile(`^\p{L}[\p{L} .'/^()23-]*$`)
	powered   = regexp.MustCompile(`\b(square|sq\.?|cubic|cu\.?) (\p{L}+)`)
	units     = strings.Fields(`
		mm=millimeter,millimetre cm=centimeter,centimetre m=meter,metre km=kilometer,kilometre
		in=inch,inche ft=foot,feet yd=yard mi=mile mg=milligram g=gram kg=kilogram,kilo
		lb=pound oz=ounce l=liter,litre ml=milliliter,millilitre s=second,sec min=minute
		h=hour,hr dollar=usd,buck cent=¢ degree=deg c=celsius f=fahrenheit`)
	unitName = unitNames()
)

func unitNames() map[string]string {
	names := map[string]string{}
	for _, entry := range units {
		name, others, _ := strings.Cut(entry, "=")
		names[name] = name
		for _, other := range strings.Split(others, ",") {
			names[other] = name
		}
	}
	return names
}

// parseUnit normalises what follows a number: singular, symbols for common units, powers last. ok is false if it cannot be a
// unit: it contains another number, or an unknown letter or word touches the number.
func parseUnit(s string) (unit string, ok bool) {
	apart := strings.HasPrefix(s, " ")
	s = strings.TrimSpace(strings.ReplaceAll(strings.ReplaceAll(s, "{", ""), "}", ""))
	if s == "" {
		return "", true
	}
	if !unitWords.MatchString(s) || hedges.MatchString(s) {
		return "", false
	}
	for i := range len(s) {
		if isDigit(s[i]) && (i == 0 || s[i-1] != '^') {
			return "", false
		}
	}
	s = powered.ReplaceAllStringFunc(s, func(m string) string {
		kind, name, _ := strings.Cut(m, " ")
		if kind[0] == 's' {
			return name + "^2"
		}
		return name + "^3"
	})
	s = strings.ReplaceAll(s, " ^", "^")
	words := strings.Fields(s)
	for i, word := range words {
		base, power, raised := strings.Cut(strings.TrimRight(word, "."), "^")
		name, known := unitName[base]
		if !known {
			name, known = unitName[strings.TrimSuffix(base, "s")]
		}
		if i == 0 && !known && (!apart || len(base) == 1) {
			return "", false // 2x and 3ab are products
		}
		if base = strings.TrimSuffix(base, "s"); known {
			base = name
		}
		if raised {
			base += "^" + power
		}
		words[i] = base
	}
	return strings.Join(words, " "), true
}
