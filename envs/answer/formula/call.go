package formula

import "errors"

// squareRoot reads \sqrt{2}, \sqrt2 and \sqrt[3]{2}.
func (p *parser) squareRoot() (*Node, error) {
	if !p.take(symbolToken, "[") {
		return p.root(2)
	}
	degree, err := p.sum()
	if err != nil {
		return nil, err
	}
	if !p.take(symbolToken, "]") {
		return nil, p.unexpected()
	}
	if degree.Kind == Number && degree.Num.IsInt() && degree.Num.Sign() > 0 && degree.Num.Num().IsInt64() {
		return p.root(degree.Num.Num().Int64())
	}
	of, err := p.rooted()
	if err != nil {
		return nil, err
	}
	return Of(Power, "", of, Of(Quotient, "", Int(1), degree)), nil
}

func (p *parser) root(degree int64) (*Node, error) {
	of, err := p.rooted()
	if err != nil {
		return nil, err
	}
	return Of(Power, "", of, Of(Quotient, "", Int(1), Int(degree))), nil
}

// rooted reads the argument of a root.
func (p *parser) rooted() (*Node, error) {
	t := p.peek()
	switch {
	case t.kind == symbolToken && t.text == "(":
		n, err := p.tuple()
		if err == nil && n.Kind == Tuple {
			err = errors.New("root of a tuple")
		}
		return n, err
	case t.kind == numberToken:
		if len(t.text) > 1 && !t.space && p.tokens[p.at-1].kind == commandToken { // \sqrt23
			return nil, errors.New("ambiguous argument of a root")
		}
		p.at++
		return &Node{Kind: Number, Num: t.number, Places: t.places, Digits: t.digits}, nil
	}
	return p.argument()
}

// call reads the power and the arguments of a known function.
func (p *parser) call(name string) (*Node, error) {
	var base, power *Node
	for p.symbol("_") || p.symbol("^") || p.symbol("**") {
		below := p.symbol("_")
		p.at++
		if below && base != nil || !below && power != nil {
			return nil, p.unexpected()
		}
		read := p.exponent
		if below {
			read = p.script
		}
		n, err := read()
		if err != nil {
			return nil, err
		}
		if below {
			base = n
		} else {
			power = n
		}
	}
	arguments, err := p.arguments(name)
	if err != nil {
		return nil, err
	}
	if len(arguments) > 1 && !severalArguments[name] {
		return nil, errors.New("too many arguments for " + name)
	}
	if base != nil {
		if name != "log" || len(arguments) != 1 {
			return nil, errors.New("index on " + name)
		}
		arguments = append(arguments, base)
	} else if name == "log" && len(arguments) == 2 {
		return nil, errors.New("ambiguous base of log")
	}
	n := Of(Call, name, arguments...)
	switch {
	case name == "exp":
		n = Of(Power, "", Of(Constant, "e"), arguments[0])
	case name == "cbrt":
		n = Of(Power, "", arguments[0], Of(Quotient, "", Int(1), Int(3)))
	}
	if power == nil {
		return n, nil
	}
	if inverse, ok := inverses[name]; ok && power.Kind == Number && power.Num.IsInt() && power.Num.Num().IsInt64() && power.Num.Num().Int64() == -1 {
		return Of(Call, inverse, arguments...), nil
	}
	return Of(Power, "", n, power), nil
}

var inverses = map[string]string{
	"sin": "arcsin", "cos": "arccos", "tan": "arctan", "cot": "arccot", "sec": "arcsec", "csc": "arccsc", "sinh": "arcsinh", "cosh": "arccosh", "tanh": "arctanh",
}

// arguments reads (…), {…}, or the factors after a function without brackets: \sin 2x is the sine of 2x, \sin x \cos y a
// product.
func (p *parser) arguments(name string) ([]*Node, error) {
	if p.symbol("(") || p.symbol("[") {
		n, err := p.tuple()
		if err != nil {
			return nil, err
		}
		if n.Kind == Tuple {
			return n.Args, nil
		}
		return []*Node{n}, nil
	}
	if p.symbol("{") {
		n, err := p.group()
		if err != nil {
			return nil, err
		}
		if n.Kind == List || n.Kind == Tuple {
			return n.Args, nil
		}
		return []*Node{n}, nil
	}
	if p.symbol(`\{`) && severalArguments[name] { // \max\{3, 5\}
		n, err := p.set()
		if err != nil {
			return nil, err
		}
		return n.Args, nil
	}
	if sign, found := p.sign(); found {
		if sign != "-" {
			return nil, p.unexpected()
		}
		n, err := p.factor()
		if err != nil {
			return nil, err
		}
		return []*Node{Negative(n)}, nil
	}
	var n *Node
	for n == nil || p.startsFactor() && p.simple() {
		f, err := p.factor()
		if err != nil {
			return nil, err
		}
		if n == nil {
			n = f
		} else {
			n = product(n, f)
		}
	}
	if p.symbol("/") {
		return nil, errors.New("ambiguous end of the argument of " + name + "")
	}
	return []*Node{n}, nil
}

// simple reports whether the next factor belongs to an argument without brackets.
func (p *parser) simple() bool {
	t := p.peek()
	switch t.kind {
	case wordToken:
		_, _, split := splitFunction(t.text)
		return functions[t.text] == "" && !split
	case commandToken:
		return letters[t.text] || constantNames[t.text] != "" || t.text == "frac" || t.text == "sqrt"
	}
	return false
}

// big reads sums, products, integrals and limits: the bounds, and everything up to the next sign.
func (p *parser) big(name string) (*Node, error) {
	bounds := []*Node{Of(Text, ""), Of(Text, "")}
	for p.symbol("_") || p.symbol("^") {
		which := 0
		if p.symbol("^") {
			which = 1
		}
		p.at++
		var n *Node
		var err error
		if p.symbol("{") {
			p.at++
			n, err = p.list(symbolToken, "}")
			if err == nil && !p.take(symbolToken, "}") {
				err = p.unexpected()
			}
		} else {
			n, err = p.script()
		}
		if err != nil {
			return nil, err
		}
		bounds[which] = n
	}
	body, err := p.term()
	if err != nil {
		return nil, err
	}
	return Of(Big, name, body, bounds[0], bounds[1]), nil
}
