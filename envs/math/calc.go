package math

import (
	"errors"
	"fmt"
	"math/big"
	"strings"
)

// Limits on an expression, which a model generated.
const (
	maxExpression = 200  // bytes
	maxDepth      = 50   // nesting of brackets, signs and powers
	maxPower      = 64   // largest absolute exponent
	maxBits       = 4096 // bits of a numerator or denominator
)

// Evaluate computes an arithmetic expression exactly:
//
//	sum      product (("+" | "-") product)*
//	product  signed (("*" | "/" | "%") signed)*      a % b has the sign of b, as in Python
//	signed   ("-" | "+") signed | power
//	power    atom (("^" | "**") signed)?              whole exponents
//	atom     number "%"? | "(" sum ")"                12, 1,234.5, .5; 20% is 1/5
//
// × and x mean *, ÷ means /, − means -; $ and spaces between tokens are ignored. A % before a digit, a point or a bracket
// is a remainder, elsewhere it is percent: 100%-20% is 4/5. Anything else is an error, as are division by zero and numbers
// that are too large.
func Evaluate(expression string) (*big.Rat, error) {
	if len(expression) > maxExpression {
		return nil, fmt.Errorf("expression has %d bytes, maximum %d", len(expression), maxExpression)
	}
	p := &parser{text: calculatorMarks.Replace(expression)}
	value, err := p.sum(0)
	if err != nil {
		return nil, err
	}
	if p.peek() != 0 || p.at < len(p.text) {
		return nil, fmt.Errorf("unexpected %q in expression", p.text[p.at:])
	}
	return value, nil
}

var calculatorMarks = strings.NewReplacer("×", "*", "x", "*", "÷", "/", "−", "-", "**", "^", "$", "")

type parser struct {
	text string
	at   int
}

// peek skips spaces and returns the next byte, 0 at the end.
func (p *parser) peek() byte {
	for p.at < len(p.text) && p.text[p.at] == ' ' {
		p.at++
	}
	if p.at == len(p.text) {
		return 0
	}
	return p.text[p.at]
}

func (p *parser) sum(depth int) (*big.Rat, error) {
	left, err := p.product(depth)
	for err == nil && (p.peek() == '+' || p.peek() == '-') {
		operator := p.text[p.at]
		p.at++
		var right *big.Rat
		if right, err = p.product(depth); err != nil {
			break
		}
		if operator == '+' {
			left.Add(left, right)
		} else {
			left.Sub(left, right)
		}
		err = bounded(left)
	}
	return left, err
}

func (p *parser) product(depth int) (*big.Rat, error) {
	left, err := p.signed(depth)
	for err == nil && strings.IndexByte("*/%", p.peek()) >= 0 && p.peek() != 0 {
		operator := p.text[p.at]
		p.at++
		var right *big.Rat
		if right, err = p.signed(depth); err != nil {
			break
		}
		if operator != '*' && right.Sign() == 0 {
			return nil, errors.New("division by zero")
		}
		switch operator {
		case '*':
			left.Mul(left, right)
		case '/':
			left.Quo(left, right)
		case '%':
			left.Sub(left, right.Mul(right, floor(new(big.Rat).Quo(left, right))))
		}
		err = bounded(left)
	}
	return left, err
}

func (p *parser) signed(depth int) (*big.Rat, error) {
	if depth >= maxDepth {
		return nil, fmt.Errorf("expression is nested deeper than %d", maxDepth)
	}
	switch p.peek() {
	case '-':
		p.at++
		value, err := p.signed(depth + 1)
		if err != nil {
			return nil, err
		}
		return value.Neg(value), nil
	case '+':
		p.at++
		return p.signed(depth + 1)
	}
	return p.power(depth)
}

func (p *parser) power(depth int) (*big.Rat, error) {
	base, err := p.atom(depth)
	if err != nil || p.peek() != '^' {
		return base, err
	}
	p.at++
	exponent, err := p.signed(depth + 1)
	if err != nil {
		return nil, err
	}
	if !exponent.IsInt() || !exponent.Num().IsInt64() || exponent.Num().Int64() > maxPower || exponent.Num().Int64() < -maxPower {
		return nil, fmt.Errorf("exponent %s is not an integer from -%d to %d", exponent.RatString(), maxPower, maxPower)
	}
	n := exponent.Num().Int64()
	if n < 0 {
		if base.Sign() == 0 {
			return nil, errors.New("division by zero")
		}
		base.Inv(base)
		n = -n
	}
	result := big.NewRat(1, 1)
	for range n {
		if err := bounded(result.Mul(result, base)); err != nil {
			return nil, err
		}
	}
	return result, nil
}

func (p *parser) atom(depth int) (*big.Rat, error) {
	if p.peek() == '(' {
		p.at++
		value, err := p.sum(depth + 1)
		if err != nil {
			return nil, err
		}
		if p.peek() != ')' {
			return nil, errors.New("unclosed bracket")
		}
		p.at++
		return p.percent(value), nil
	}
	start := p.at
	for p.at < len(p.text) && (isDigit(p.text[p.at]) || p.text[p.at] == '.' || p.text[p.at] == ',') {
		p.at++
	}
	value, err := parseNumber(p.text[start:p.at])
	if err != nil {
		return nil, err
	}
	return p.percent(value), nil
}

// percent handles a % that no operand follows.
func (p *parser) percent(value *big.Rat) *big.Rat {
	if p.peek() != '%' {
		return value
	}
	if after := strings.TrimLeft(p.text[p.at+1:], " "); after != "" && (isDigit(after[0]) || after[0] == '(' || after[0] == '.') {
		return value
	}
	p.at++
	return value.Quo(value, big.NewRat(100, 1))
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// parseNumber reads digits with at most one point; commas may separate groups of three.
func parseNumber(text string) (*big.Rat, error) {
	whole, fraction, _ := strings.Cut(text, ".")
	groups := strings.Split(whole, ",")
	for i, group := range groups {
		if i > 0 && len(group) != 3 || i == 0 && len(groups) > 1 && (len(group) == 0 || len(group) > 3) {
			return nil, fmt.Errorf("%q is not a number", text)
		}
	}
	digits := strings.Join(groups, "")
	if digits+fraction == "" || strings.ContainsAny(fraction, ".,") {
		return nil, fmt.Errorf("%q is not a number", text)
	}
	value, ok := new(big.Rat).SetString("0" + digits + "." + fraction + "0")
	if !ok {
		return nil, fmt.Errorf("%q is not a number", text)
	}
	return value, nil
}

func bounded(value *big.Rat) error {
	if value.Num().BitLen() > maxBits || value.Denom().BitLen() > maxBits {
		return errors.New("number too large")
	}
	return nil
}

func floor(value *big.Rat) *big.Rat {
	quotient, _ := new(big.Int).DivMod(value.Num(), value.Denom(), new(big.Int)) // rounds down because the denominator is positive
	return new(big.Rat).SetInt(quotient)
}

// Format writes a result with at most two decimals, rounded half away from zero, without trailing zeros: 24, 0.5, 0.33,
// -1.25.
func Format(value *big.Rat) string {
	text := value.FloatString(2)
	text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	if text == "-0" || text == "" {
		return "0"
	}
	return text
}
