package formula

import (
	"errors"
	"math/big"
	"strings"
)

// sum reads terms with their signs.
func (p *parser) sum() (*Node, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer func() { p.depth-- }()
	sum := Of(Sum, "")
	for {
		sign, found := p.sign()
		if !found && len(sum.Args) > 0 {
			break
		}
		term, err := p.term()
		if err != nil {
			return nil, err
		}
		switch sign {
		case "-":
			term = Negative(term)
		case "+-", "-+":
			term = Of(Sign, sign, term)
		}
		sum.Args = append(sum.Args, term)
	}
	if len(sum.Args) == 1 {
		return sum.Args[0], nil
	}
	return sum, nil
}

// sign reads the signs before a term: "-", "+", "+-" for ± and "-+" for ∓.
func (p *parser) sign() (sign string, found bool) {
	for {
		next := ""
		switch {
		case p.symbol("+"):
			next = "+"
		case p.symbol("-"):
			next = "-"
		case p.is(commandToken, "pm"):
			next = "+-"
		case p.is(commandToken, "mp"):
			next = "-+"
		default:
			return sign, found
		}
		p.at++
		switch {
		case sign == "" || sign == "+":
			sign = next
		case sign == "-" && next == "-":
			sign = "+"
		case next == "+" || sign == "-" && next == "+":
		default:
			sign = next
		}
		found = true
	}
}

// term reads factors. An implicit product binds like an explicit one, but after a typed / the denominator is ambiguous:
// 1/2x is an error.
func (p *parser) term() (*Node, error) {
	n, err := p.factor()
	if err != nil {
		return nil, err
	}
	slash := false
	for {
		op, ok := p.multiplication()
		if !ok {
			if !p.startsFactor() {
				return n, nil
			}
			if slash && !p.peek().space {
				return nil, errors.New("ambiguous denominator")
			}
			if p.peek().kind == numberToken && !p.behindFactorial() && (n.Kind != Power && n.Kind != Product || !p.peek().space || p.tokens[p.at-1].kind == numberToken && !p.poweredBefore()) {
				return nil, errors.New("number directly after a factor")
			}
		}
		from := p.at
		f, err := p.factor()
		if err != nil {
			return nil, err
		}
		if part := unmeasured(f); !ok && part.Kind == Quotient && n.Kind == Number && p.tokens[from].kind == commandToken {
			if n, err = mixed(n, part, &p.tokens[from-1]); err != nil {
				return nil, err
			}
			if part != f { // 33\frac{1}{3}\%
				n = Of(Quantity, f.Text, n)
			}
			continue
		}
		if op == "/" {
			n = Of(Quotient, "", n, f)
			slash = true
			continue
		}
		slash = slash && !ok
		n = product(n, f)
	}
}

// poweredBefore reports whether the last token is an exponent: 2^6 3^5 is a product.
func (p *parser) poweredBefore() bool {
	return p.at >= 2 && (p.tokens[p.at-2].text == "^" || p.tokens[p.at-2].text == "**")
}

// behindFactorial reports whether the last token is a factorial: 3!4! is a product.
func (p *parser) behindFactorial() bool {
	t := p.tokens[p.at-1]
	return t.kind == symbolToken && t.text == "!"
}

// product is a·b; a number times a power of ten is a number with its own precision.
func product(a, b *Node) *Node {
	if a.Kind == Number && b.Kind == Power && b.Args[0].Kind == Number && b.Args[1].Kind == Number && b.Args[0].Num.Cmp(big.NewRat(10, 1)) == 0 && b.Args[1].Num.IsInt() {
		if e := b.Args[1].Num.Num(); e.IsInt64() && e.Int64() > -300 && e.Int64() < 300 {
			power, _ := new(big.Rat).SetString("1e" + e.String())
			c := a.Clone()
			c.Num = power.Mul(power, a.Num)
			if c.Places > 0 {
				c.Places = max(0, c.Places-int(e.Int64()))
			}
			return c
		}
	}
	if a.Kind == Product {
		a.Args = append(a.Args, b)
		return a
	}
	return Of(Product, "", a, b)
}

// unmeasured removes the mark after a value.
func unmeasured(n *Node) *Node {
	if n.Kind == Quantity {
		return n.Args[0]
	}
	return n
}

// mixed is 2\frac{1}{2}: an integer and a proper fraction; with letters it is a product.
func mixed(whole, fraction *Node, before *token) (*Node, error) {
	above, below := fraction.Args[0], fraction.Args[1]
	if above.Kind != Number || below.Kind != Number {
		return product(whole, fraction), nil
	}
	if !before.plain || !above.Num.IsInt() || !below.Num.IsInt() || above.Num.Sign() < 0 || above.Num.Cmp(below.Num) >= 0 {
		return nil, errors.New("neither a mixed number nor a product")
	}
	value := new(big.Rat).Quo(above.Num, below.Num)
	if whole.Num.Sign() < 0 {
		value.Neg(value)
	}
	return &Node{Kind: Number, Num: value.Add(value, whole.Num)}, nil
}

func (p *parser) multiplication() (op string, ok bool) {
	t := p.peek()
	switch {
	case t.kind == symbolToken && t.text == "*", t.kind == commandToken && (t.text == "cdot" || t.text == "times" || t.text == "ast" || t.text == "bullet" || t.text == "cdotp"):
		op = "*"
	case t.kind == symbolToken && t.text == "/", t.kind == commandToken && t.text == "div":
		op = "/"
	default:
		return "", false
	}
	p.at++
	return op, true
}

// startsFactor reports whether an implicit factor may follow.
func (p *parser) startsFactor() bool {
	t := p.peek()
	switch t.kind {
	case numberToken:
		return true
	case wordToken:
		return p.readable(t)
	case symbolToken:
		return t.text == "(" || t.text == "[" && !p.french || t.text == "{" || t.text == `\{` || t.text == "|" && p.bars == 0
	case commandToken:
		_, constant := constantNames[t.text]
		_, function := functions[t.text]
		return constant || function || letters[t.text] || figures[t.text] || starters[t.text]
	case beginToken:
		return true
	}
	return false
}

// starters are other commands that can start a factor.
var starters = map[string]bool{"frac": true, "dfrac": true, "tfrac": true, "cfrac": true, "sqrt": true, "binom": true, "dbinom": true, "tbinom": true, "lfloor": true, "lceil": true, "lvert": true, "lVert": true, "langle": true, "mathbb": true, "sum": true, "prod": true, "int": true, "lim": true, "overline": true, "bar": true, "choose": false}

// readable reports whether a word is mathematics here: a function, a constant, variables.
func (p *parser) readable(t *token) bool {
	word := t.text
	if p.typedUnit(t) {
		return false
	}
	if _, known := functions[word]; known || word == "sqrt" || word == "pi" || constantNames[word] != "" {
		return true
	}
	if word == "or" || word == "and" || word == "U" && p.ahead(1).text == "(" || word == "in" && t.space {
		return false
	}
	if len(word) > 1 && t.space && p.at > 0 && p.tokens[p.at-1].kind == numberToken && p.ahead(1).kind == wordToken && p.ahead(1).space {
		return false // 72 Mb per hour
	}
	if isProduct(word) {
		return true
	}
	_, _, ok := splitFunction(word)
	return ok
}

// typedUnit reports whether a word after a number is a unit: 5 cm, and 5 min but not 5 min(1, 2).
func (p *parser) typedUnit(t *token) bool {
	if _, unit := unitNames[t.text]; !unit || len(t.text) < 2 || p.at == 0 || p.tokens[p.at-1].kind != numberToken {
		return false
	}
	if productUnits[t.text] && !t.space {
		return false
	}
	_, function := functions[t.text]
	next := p.ahead(1)
	if next.kind == symbolToken && (next.text == "+" || next.text == "-") { // r^2 + 2rs + s^2
		return false
	}
	return !function || next.kind == endToken || next.kind == symbolToken && (next.text == "," || next.text == ")")
}

// productUnits are units that, directly after a number, are more likely products of variables.
var productUnits = map[string]bool{"rs": true, "hr": true, "nm": true, "gm": true, "mi": true}

// splitFunction splits sinx.
func splitFunction(word string) (function, argument string, ok bool) {
	for _, name := range []string{"arcsin", "arccos", "arctan", "sqrt", "sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp"} {
		if rest, found := strings.CutPrefix(word, name); found && len(rest) == 1 {
			return name, rest, true
		}
	}
	return "", "", false
}

// factor reads a base with its powers, factorials and marks.
func (p *parser) factor() (*Node, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer func() { p.depth-- }()
	if sign, found := p.sign(); found { // 2·-3
		f, err := p.factor()
		if err != nil || sign == "+" {
			return f, err
		}
		if sign != "-" {
			return Of(Sign, sign, f), nil
		}
		return Negative(f), nil
	}
	first := p.at
	n, err := p.primary()
	if err != nil {
		return nil, err
	}
	if n.Kind == Number && n.Num.IsInt() && p.tokens[first].plain && p.at == first+1 {
		if whole, ok := p.typedMixed(n); ok {
			n = whole
		}
	}
	return p.postfix(n)
}

// typedMixed reads 2 1/2: an integer, a space, a proper fraction.
func (p *parser) typedMixed(whole *Node) (*Node, bool) {
	above, slash, below := p.peek(), p.ahead(1), p.ahead(2)
	if above.kind != numberToken || !above.space || slash.text != "/" || slash.kind != symbolToken || below.kind != numberToken || !above.plain || !below.plain {
		return nil, false
	}
	if above.number.Cmp(below.number) >= 0 || p.ahead(3).kind == numberToken || p.ahead(3).text == "/" {
		return nil, false
	}
	p.at += 3
	return &Node{Kind: Number, Num: new(big.Rat).Add(whole.Num, new(big.Rat).Quo(above.number, below.number))}, true
}

func (p *parser) postfix(n *Node) (*Node, error) {
	for range 8 {
		switch {
		case p.symbol("!"):
			name := "factorial"
			p.at++
			if p.symbol("!") && !p.peek().space {
				p.at++
				name = "double factorial"
			}
			n = Of(Call, name, n)
		case p.symbol("^") || p.symbol("**"):
			p.at++
			if p.degree() {
				n = p.temperature(n)
				continue
			}
			exponent, err := p.exponent()
			if err != nil {
				return nil, err
			}
			n = Of(Power, "", n, exponent)
		case p.symbol("'") && (n.Kind == Name || n.Kind == Apply):
			p.at++
			n = n.Clone()
			n.Text += "'"
		case p.symbol(`\%`) || p.symbol("%"):
			p.at++
			n = Of(Quantity, "%", n)
		case p.is(commandToken, "degree") || p.is(commandToken, "circ"):
			p.at++
			n = p.temperature(n)
		default:
			return n, nil
		}
	}
	return nil, ErrTooLong
}

// temperature reads degrees, Celsius or Fahrenheit if C or F follows.
func (p *parser) temperature(n *Node) *Node {
	for _, scale := range []string{"C", "F"} {
		if (p.is(wordToken, scale) || p.is(textToken, scale)) && p.ahead(1).text != "(" {
			p.at++
			return Of(Quantity, "°"+scale, n)
		}
	}
	return Of(Quantity, "deg", n)
}

// degree reads \circ after ^, in braces or not.
func (p *parser) degree() bool {
	at := p.at
	braces := p.take(symbolToken, "{")
	if p.take(commandToken, "circ") || p.take(commandToken, "degree") {
		if !braces || p.take(symbolToken, "}") {
			return true
		}
	}
	p.at = at
	return false
}

// exponent reads what follows ^: a group, or one factor with its sign, powers and factorials.
func (p *parser) exponent() (*Node, error) {
	if p.symbol("{") {
		return p.group()
	}
	negative := p.take(symbolToken, "-")
	n, err := p.script()
	if err != nil {
		return nil, err
	}
	if p.symbol("^") || p.symbol("**") {
		p.at++
		if err := p.enter(); err != nil {
			return nil, err
		}
		above, err := p.exponent()
		p.depth--
		if err != nil {
			return nil, err
		}
		n = Of(Power, "", n, above)
	}
	for p.symbol("!") {
		p.at++
		n = Of(Call, "factorial", n)
	}
	if negative {
		n = Negative(n)
	}
	return n, nil
}

// script reads what follows _, and a bound of a sum: a group, or one value without powers, because x_1^2 is the square of
// x_1.
func (p *parser) script() (*Node, error) {
	if p.symbol("{") {
		return p.group()
	}
	if p.take(symbolToken, "-") {
		n, err := p.script()
		if err != nil {
			return nil, err
		}
		return Negative(n), nil
	}
	p.take(symbolToken, "+")
	if t := p.peek(); t.kind == wordToken && len(t.text) > 1 && functions[t.text] == "" && constantNames[t.text] == "" {
		return p.firstLetter(), nil // x^ab is x^a b
	}
	return p.primary()
}

// group reads {…}: a value that may be a list.
func (p *parser) group() (*Node, error) {
	p.at++
	bars := p.bars
	p.bars = 0
	n, err := p.list(symbolToken, "}")
	p.bars = bars
	if err != nil {
		return nil, err
	}
	if p.is(commandToken, "choose") {
		p.at++
		below, err := p.list(symbolToken, "}")
		if err != nil {
			return nil, err
		}
		n = Of(Call, "binom", n, below)
	}
	if !p.take(symbolToken, "}") {
		return nil, p.unexpected()
	}
	return n, nil
}
