package formula

import (
	"errors"
	"strings"
)

// primary reads a number, a name, a function, or a bracketed expression.
func (p *parser) primary() (*Node, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer func() { p.depth-- }()
	t := p.peek()
	switch t.kind {
	case numberToken:
		return p.number()
	case wordToken:
		return p.word()
	case textToken:
		if len(t.text) == 1 && isLetter(t.text[0]) {
			p.at++
			return p.index(Of(Name, t.text))
		}
		if n := p.textOperand(t); n != nil {
			return n, nil
		}
		return nil, errors.New("text where a value should be")
	case beginToken:
		return p.environment()
	case commandToken:
		return p.command()
	case symbolToken:
		return p.bracketed()
	}
	return nil, p.unexpected()
}

// textOperand reads words on the left side of an equation: \text{Area} = 5.
func (p *parser) textOperand(t *token) *Node {
	next := p.ahead(1)
	if next.kind == symbolToken && next.text == "=" || next.kind == commandToken && relations[next.text] != "" {
		p.at++
		return Of(Name, t.text)
	}
	if p.at > 0 && (p.tokens[p.at-1].kind != numberToken && p.tokens[p.at-1].kind != symbolToken || p.tokens[p.at-1].text == "=" || p.tokens[p.at-1].text == "(" || p.tokens[p.at-1].text == "," || p.tokens[p.at-1].text == `\{` || p.tokens[p.at-1].text == ";") || p.at == 0 {
		if next.kind == endToken || next.kind == symbolToken && (next.text == "," || next.text == ")" || next.text == `\}` || next.text == ";") || next.kind == textToken {
			p.at++
			return Of(Text, t.text)
		}
	}
	return nil
}

func (p *parser) number() (*Node, error) {
	t := p.peek()
	p.at++
	if p.symbol("_") && t.plain { // a base
		p.at++
		base, err := p.script()
		if err != nil {
			return nil, err
		}
		if base.Kind != Number || !base.Num.IsInt() || !base.Num.Num().IsInt64() || base.Num.Num().Int64() < 2 || base.Num.Num().Int64() > 36 {
			return nil, errors.New("a number with an index")
		}
		return &Node{Kind: Base, Num: t.number, Places: int(base.Num.Num().Int64())}, nil
	}
	return &Node{Kind: Number, Num: t.number, Places: t.places, Digits: t.digits}, nil
}

// firstLetter takes one letter of a word and leaves the rest.
func (p *parser) firstLetter() *Node {
	t := p.peek()
	n := letter(t.text[:1])
	if rest := t.text[1:]; rest != "" {
		copied := *t
		copied.text, copied.space = rest, false
		p.tokens[p.at] = copied
	} else {
		p.at++
	}
	return n
}

func letter(name string) *Node {
	if name == "e" || name == "i" {
		return Of(Constant, name)
	}
	return Of(Name, name)
}

// word reads letters as typed: a function, a constant, or a product of variables, of which it returns the first.
func (p *parser) word() (*Node, error) {
	t := p.peek()
	if t.text == "sqrt" {
		p.at++
		return p.root(2)
	}
	if name, known := functions[t.text]; known {
		p.at++
		return p.call(name)
	}
	if name, known := constantNames[t.text]; known && len(t.text) > 1 {
		p.at++
		return Of(Constant, name), nil
	}
	if function, argument, ok := splitFunction(t.text); ok {
		p.at++
		if function == "sqrt" {
			return Of(Power, "", letter(argument), Of(Quotient, "", Int(1), Int(2))), nil
		}
		return Of(Call, functions[function], letter(argument)), nil
	}
	if !isProduct(t.text) && !p.ends(t.text) {
		next := p.ahead(1)
		if next.kind == symbolToken && next.text == "=" || next.kind == commandToken && relations[next.text] == "=" {
			p.at++
			return Of(Name, t.text), nil
		}
		return nil, errors.New("a word where a value should be")
	}
	more := len(t.text) > 1
	n := p.firstLetter()
	if more {
		return n, nil
	}
	return p.index(n)
}

// index reads the subscript of a name, and its arguments if it is a function.
func (p *parser) index(n *Node) (*Node, error) {
	if p.take(symbolToken, "_") {
		label := p.label()
		if label == "" {
			sub, err := p.script()
			if err != nil {
				return nil, err
			}
			label = sub.String()
		}
		n = Of(Name, n.Text+"_"+label)
	}
	for p.symbol("'") {
		p.at++
		n = Of(Name, n.Text+"'")
	}
	base := strings.TrimRight(n.Text, "'")
	if n.Kind == Name && applied[base] && p.inverse() {
		n = Of(Name, n.Text+"^-1")
	}
	if at := strings.IndexByte(base, '_'); at > 0 {
		base = base[:at]
	}
	if n.Kind != Name || !applied[base] || !p.symbol("(") || p.peek().space && !p.closedBy("=") {
		return n, nil
	}
	arguments, err := p.bracketed()
	if err != nil {
		return nil, err
	}
	if arguments.Kind == Tuple {
		return Of(Apply, n.Text, arguments.Args...), nil
	}
	if arguments.mentions(n.Text) { // p(p + q) is a product
		return product(n, arguments), nil
	}
	return Of(Apply, n.Text, arguments), nil
}

// inverse reads the ^{-1} of f^{-1}(x).
func (p *parser) inverse() bool {
	at := p.at
	if p.take(symbolToken, "^") {
		braces := p.take(symbolToken, "{")
		if p.take(symbolToken, "-") && p.take(numberToken, "1") && (!braces || p.take(symbolToken, "}")) && p.symbol("(") {
			return true
		}
	}
	p.at = at
	return false
}

// label reads {ABCD} or {\text{max}}, an index that is a word, not a product.
func (p *parser) label() string {
	t := p.ahead(1)
	word := t.kind == textToken || t.kind == wordToken && len(t.text) > 1 || t.kind == commandToken && functions[t.text] != ""
	if !p.symbol("{") || !word || p.ahead(2).text != "}" || p.ahead(2).kind != symbolToken {
		return ""
	}
	p.at += 3
	return t.text
}

// ends reports whether a word is the capitals of a line or figure, in braces by themselves.
func (p *parser) ends(word string) bool {
	before, behind := &p.tokens[max(p.at-1, 0)], p.ahead(1)
	return len(word) <= 4 && strings.ToUpper(word) == word && before.kind == symbolToken && before.text == "{" && behind.kind == symbolToken && behind.text == "}"
}

// closedBy reports whether a symbol follows the bracket that opens here.
func (p *parser) closedBy(text string) bool {
	depth := 0
	for i := p.at; i < len(p.tokens); i++ {
		switch t := p.tokens[i]; {
		case t.kind == symbolToken && t.text == "(":
			depth++
		case t.kind == symbolToken && t.text == ")":
			if depth--; depth == 0 {
				return i+1 < len(p.tokens) && p.tokens[i+1].text == text
			}
		}
	}
	return false
}

func (p *parser) command() (*Node, error) {
	t := p.peek()
	p.at++
	switch t.text {
	case "frac", "dfrac", "tfrac", "cfrac", "binom", "dbinom", "tbinom":
		above, err := p.argument()
		if err != nil {
			return nil, err
		}
		below, err := p.argument()
		if err != nil {
			return nil, err
		}
		if strings.HasSuffix(t.text, "binom") {
			return Of(Call, "binom", above, below), nil
		}
		if derivative(above, below) {
			return Of(Name, above.String()+"/"+below.String()), nil
		}
		return Of(Quotient, "", above, below), nil
	case "sqrt":
		return p.squareRoot()
	case "mathbb", "mathbf":
		name, err := p.argument()
		if err != nil {
			return nil, err
		}
		if (name.Kind == Name || name.Kind == Constant) && len(name.Text) == 1 && strings.Contains("RZNQC", name.Text) {
			n := Of(Constant, name.Text)
			if p.symbol("^") && p.ahead(1).text == "+" {
				p.at += 2
				n.Text += "+"
			}
			return n, nil
		}
		return name, nil
	case "lfloor", "lceil", "lvert", "lVert", "langle", "vert", "Vert":
		return p.fenced(t.text)
	case "sum", "prod", "int", "lim", "iint", "oint", "limsup", "liminf":
		return p.big(t.text)
	case "ldots", "dots", "cdots", "dotsc", "dotsb", "vdots":
		return Of(Name, "…"), nil
	case "overline", "bar":
		return p.conjugate()
	case "prime":
		return nil, p.unexpected()
	}
	if name, known := constantNames[t.text]; known {
		return Of(Constant, name), nil
	}
	if name, known := functions[t.text]; known {
		return p.call(name)
	}
	if letters[t.text] {
		return p.index(Of(Name, t.text))
	}
	if figures[t.text] {
		return p.figure(t.text)
	}
	p.at--
	return nil, errors.New("an unknown command \\" + t.text)
}

// derivative reports whether above/below is a derivative such as dy/dx, d/dx or d²y/dx², with d or \partial.
func derivative(above, below *Node) bool {
	if below.Kind != Product || !below.Args[0].Is(Name, "d") && !below.Args[0].Is(Name, "partial") {
		return false
	}
	if above.Kind == Product {
		above = above.Args[0]
	}
	if above.Kind == Power {
		above = above.Args[0]
	}
	return above.Is(Name, below.Args[0].Text)
}

// argument reads a command's argument: a group, or one digit or letter.
func (p *parser) argument() (*Node, error) {
	t := p.peek()
	switch {
	case t.kind == symbolToken && t.text == "{":
		return p.group()
	case t.kind == numberToken:
		// \frac12 has the arguments 1 and 2
		if !isDigit(t.text[0]) {
			return nil, p.unexpected()
		}
		digit := Int(int64(t.text[0] - '0'))
		if len(t.text) == 1 {
			p.at++
			return digit, nil
		}
		rest, err := lex(t.text[1:], separator)
		if err != nil || len(rest) != 2 || rest[0].kind != numberToken {
			return nil, errors.New("an argument without braces")
		}
		p.tokens[p.at] = rest[0]
		return digit, nil
	case t.kind == wordToken && len(t.text) > 1 && functions[t.text] == "":
		return p.firstLetter(), nil
	case t.kind == wordToken && len(t.text) == 1:
		p.at++
		return letter(t.text), nil
	case t.kind == commandToken, t.kind == textToken:
		return p.primary()
	}
	return nil, p.unexpected()
}

// conjugate reads \overline{z}; \overline{AB} is a figure.
func (p *parser) conjugate() (*Node, error) {
	if word := p.ahead(1); p.symbol("{") && word.kind == wordToken && len(word.text) > 1 {
		return p.figure("overline")
	}
	n, err := p.argument()
	if err != nil {
		return nil, err
	}
	if n.Kind == Name && n.Text != "z" && n.Text != "w" { // a mean, or another name
		return Of(Name, "bar "+n.Text), nil
	}
	return Of(Call, "conj", n), nil
}

// figure reads \angle ABC as a name.
func (p *parser) figure(kind string) (*Node, error) {
	name := kind
	braces := p.take(symbolToken, "{")
	for p.peek().kind == wordToken || p.peek().kind == numberToken && braces {
		name += " " + p.peek().text
		p.at++
	}
	if braces && !p.take(symbolToken, "}") || name == kind && kind != "square" && kind != "triangle" {
		return nil, p.unexpected()
	}
	return Of(Name, name), nil
}
