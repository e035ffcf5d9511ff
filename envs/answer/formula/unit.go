package formula

import (
	"errors"
	"math/big"
	"strings"
)

// unitNames are the known units with all their names and signs, each mapped to its canonical name.
var unitNames = unitTable(`
	mm=millimeter,millimetre cm=centimeter,centimetre,cms m=meter,metre,mtr km=kilometer,kilometre,kms dm=decimeter,decimetre
	in=inch,inche,inches ft=foot,feet yd=yard,yds mi=mile nm=nanometer,nanometre
	mg=milligram g=gram,gramme,gm,gms kg=kilogram,kilogramme,kilo,kgs lb=pound,lbs oz=ounce t=tonne ton=tons
	l=liter,litre,L ml=milliliter,millilitre,mL gal=gallon cup=cups pint=pints quart=quarts
	s=second,sec,secs min=minute,mins h=hour,hr,hrs day=days week=weeks,wk month=months year=years,yr,yrs
	dollar=usd,buck,USD,dollars cent=cents,¢ euro=euros,eur,EUR yen=jpy rupee=rupees,rs deg=degree,degrees °C=celsius °F=fahrenheit rad=radian,radians
	km/h=kph,kmh,kmph mi/h=mph m/s=mps unit=units %=percent,pct,percentage,per-cent
	Hz=hertz N=newton,newtons J=joule kJ=kilojoule W=watt kW=kilowatt V=volt A=ampere,amp Pa=pascal K=kelvin ohm=ohms mol=mole,moles
	person=people man=men woman=women child=children`)

func unitTable(table string) map[string]string {
	names := map[string]string{}
	for _, entry := range strings.Fields(table) {
		name, others, _ := strings.Cut(entry, "=")
		names[name] = name
		for _, other := range strings.Split(others, ",") {
			names[other] = name
		}
	}
	return names
}

// scales are words that multiply the number before them.
var scales = map[string]int64{
	"dozen": 12, "dozens": 12, "score": 20, "hundred": 100, "hundreds": 100, "thousand": 1000, "thousands": 1000, "million": 1e6, "millions": 1e6, "billion": 1e9, "billions": 1e9, "trillion": 1e12,
}

// notUnits are words that are never units, because they change the answer.
var notUnits = map[string]bool{
	"if": true, "when": true, "or": true, "not": true, "and": true, "unless": true, "plus": true, "minus": true, "times": true, "over": true, "than": true, "half": true, "but": true, "except": true, "remainder": true, "mod": true, "is": true,
	"then": true, "nor": true, "no": true, "wrong": true, "least": true, "most": true, "without": true, "double": true, "twice": true, "negative": true, "between": true, "through": true, "maybe": true, "perhaps": true, "union": true, "base": true, "more": true, "less": true, "fewer": true,
	"halves": true, "thirds": true, "fourths": true, "fifths": true, "sixths": true, "sevenths": true, "eighths": true, "ninths": true, "tenths": true, "tenth": true, "hundredths": true, "hundredth": true, "thousandths": true, "thousandth": true, "millionths": true, "millionth": true,
	"january": true, "february": true, "march": true, "april": true, "may": true, "june": true, "july": true, "august": true, "september": true, "october": true, "november": true, "december": true,
}

// retractions are words of a remark that withdraws an answer.
var retractions = map[string]bool{"corrected": true, "correction": true, "correct": true, "actually": true, "rather": true, "instead": true, "should": true}

// maxUnitWords bounds a unit; longer text is prose.
const maxUnitWords = 6

// unitSigns separates the signs of a unit from its words.
var unitSigns = strings.NewReplacer("/", " / ", "(", " ( ", ")", " ) ", ",", " , ", "^", " ^ ")

// unit reads the words after a value.
func (p *parser) unit(n *Node) (*Node, error) {
	from := p.at
	var words []string
	for {
		t := p.peek()
		switch {
		case t.kind == textToken && !separates(t.text):
			words = append(words, strings.Fields(unitSigns.Replace(t.text))...)
		case t.kind == wordToken && !separates(t.text) && t.text != "U" && (t.text != "in" || len(words) > 0 || p.ahead(1).kind == endToken || p.ahead(1).kind == wordToken && (n.Kind == Number || n.Kind == Quantity)):
			words = append(words, t.text)
		case t.kind == symbolToken && (t.text == `\$` || t.text == "€" || t.text == "£" || t.text == "¥" || t.text == "¢"):
			name := moneySigns[t.text]
			if name == "" {
				name = "cent"
			}
			words = append(words, name)
		case (t.kind == symbolToken && (t.text == `\%` || t.text == "%")):
			words = append(words, "%")
		case len(words) > 0 && t.kind == symbolToken && (t.text == "/" || t.text == "-" || t.text == "." || t.text == "(" || t.text == ")" && unclosed(words) || t.text == "^" || t.text == "'"):
			words = append(words, t.text)
		case len(words) > 0 && t.kind == symbolToken && (t.text == "{" || t.text == "}") && (words[len(words)-1] == "^" || len(words) > 2 && words[len(words)-2] == "^"):
		case len(words) > 0 && (words[len(words)-1] == "^" || unclosed(words)) && t.kind == numberToken:
			words = append(words, t.text)
		case len(words) > 0 && words[len(words)-1] == "^" && t.kind == symbolToken && t.text == "-":
			words = append(words, "-")
		case len(words) > 0 && t.kind == commandToken && (t.text == "cdot" || t.text == "times"):
			words = append(words, "*")
		default:
			if p.at == from {
				return n, nil
			}
			return measure(n, words)
		}
		p.at++
	}
}

// unclosed reports whether a bracket is open among words.
func unclosed(words []string) bool {
	depth := 0
	for _, w := range words {
		switch w {
		case "(":
			depth++
		case ")":
			depth--
		}
	}
	return depth > 0
}

func separates(text string) bool {
	switch strings.ToLower(strings.Trim(text, " ,;.:")) {
	case "and", "or", "", "union":
		return true
	}
	return false
}

// measure applies the words after a value: scales multiply it, a remark in brackets is dropped, the rest is its unit.
func measure(n *Node, words []string) (*Node, error) {
	words, err := withoutRemark(words)
	if err != nil {
		return nil, err
	}
	for len(words) > 0 {
		scale, ok := scales[strings.ToLower(words[0])]
		if !ok {
			break
		}
		if n.Kind == Number {
			n = n.Clone()
			n.Num = new(big.Rat).Mul(n.Num, new(big.Rat).SetInt64(scale))
			n.Places, n.Digits = 0, 0
		} else {
			n = Of(Product, "", n, Int(scale))
		}
		words = words[1:]
		if len(words) > 0 && words[0] == "of" {
			words = words[1:]
		}
	}
	if len(words) == 0 {
		return n, nil
	}
	if len(words) > maxUnitWords+3 {
		return nil, errors.New("prose")
	}
	for i, word := range words {
		lower := strings.ToLower(word)
		_, known := unitNames[word]
		letter := len(word) == 1 && isLetter(word[0]) && !known && lower != "a"
		if notUnits[lower] && !(i == 0 && lower == "times" && countsTimes(words)) || letter || i == 0 && (lower == "squared" || lower == "cubed") {
			return nil, errors.New("the words behind the value change it")
		}
	}
	unit := canonicalUnit(words)
	if unit == "" {
		return n, nil
	}
	switch n.Kind {
	case List, Relation, Text:
		return nil, errors.New("a unit behind what has none")
	case Quantity:
		if n.Text == "dollar" && (unit == "dollar" || unit == "cent") || n.Text == unit {
			return n, nil
		}
		if moneyNames[n.Text] || n.Text == "%" {
			return n, nil // $5 tip, 5% tax
		}
		if n.Text == "deg" && (unit == "C" || unit == "F" || unit == "°C" || unit == "°F") {
			return Of(Quantity, "°"+strings.TrimPrefix(unit, "°"), n.Args[0]), nil
		}
		return nil, errors.New("two units")
	}
	return Of(Quantity, unit, n), nil
}

// countsTimes reports whether "times" is the unit: 5 times, 3 times a day.
func countsTimes(words []string) bool {
	return len(words) == 1 || words[1] == "a" || words[1] == "per" || words[1] == "each" || words[1] == "every"
}

var moneyNames = map[string]bool{"dollar": true, "euro": true, "pound sterling": true, "yen": true, "rupee": true}

// withoutRemark drops a trailing bracketed part after words: "18 apples (3 red)". A remark that withdraws or adds an answer
// is an error, as is one with a number directly after the value.
func withoutRemark(words []string) ([]string, error) {
	for i, word := range words {
		if word != "(" {
			continue
		}
		if words[len(words)-1] != ")" {
			return nil, errors.New("brackets in a unit")
		}
		for _, w := range words[i:] {
			word := strings.ToLower(strings.Trim(w, ".,;:'\""))
			if notUnits[word] || retractions[word] || i == 0 && strings.ContainsAny(w, "0123456789") {
				return nil, errors.New("a remark that changes the answer")
			}
		}
		return words[:i], nil
	}
	return words, nil
}

var joinedSigns = strings.NewReplacer(" / ", "/", "deg °", "°")

// canonicalUnit brings words into the form in which units are compared: the names of unitNames, singular, powers last,
// "" for words without meaning.
func canonicalUnit(words []string) string {
	var out []string
	power := ""
	for i := 0; i < len(words); i++ {
		word := strings.Trim(words[i], ".,;'\"")
		switch lower := strings.ToLower(word); {
		case word == "" || lower == "the" || lower == "of" || lower == "a" || lower == "an" || lower == "total" || lower == "each" || lower == "-":
			continue
		case lower == "square" || lower == "sq":
			power = "^2"
			continue
		case lower == "cubic" || lower == "cu":
			power = "^3"
			continue
		case lower == "squared":
			out = raise(out, "^2")
			continue
		case lower == "cubed":
			out = raise(out, "^3")
			continue
		case lower == "per":
			word = "/"
		case word == "^":
			exponent := ""
			for i+1 < len(words) && (allDigits(words[i+1]) || words[i+1] == "-") {
				i++
				exponent += words[i]
			}
			out = raise(out, "^"+exponent)
			continue
		default:
			word = singular(word)
		}
		if word != "/" && word != "*" {
			word += power
			power = ""
		}
		out = append(out, word)
	}
	return strings.Trim(joinedSigns.Replace(strings.Join(out, " ")), " ")
}

func raise(words []string, power string) []string {
	if len(words) > 0 {
		words[len(words)-1] += power
	}
	return words
}

func singular(word string) string {
	if name, known := unitNames[word]; known {
		return name
	}
	word = strings.ToLower(word)
	if name, known := unitNames[word]; known && len(word) > 1 {
		return name
	}
	for _, ending := range []string{"xes", "ches", "shes", "sses"} { // boxes, inches
		if strings.HasSuffix(word, ending) {
			return strings.TrimSuffix(word, "es")
		}
	}
	for _, ending := range []string{"ies", "ie"} { // berries, cookies
		if trimmed := strings.TrimSuffix(word, ending); trimmed != word && len(trimmed) > 2 {
			return trimmed + "y"
		}
	}
	if trimmed := strings.TrimSuffix(word, "s"); len(trimmed) > 2 {
		if name, known := unitNames[trimmed]; known {
			return name
		}
		return strings.TrimSuffix(trimmed, "'")
	}
	return word
}
