package jinja

import (
	"math"
	"slices"
	"strconv"
)

// expression is jinja2's parse_expression: the inline if binds loosest.
func (p *parser) expression() expr {
	p.nest()
	x := p.or()
	for p.is(kName, "if") {
		line := p.cur().line
		p.i++
		c := &condExpr{line: line, cond: p.or(), yes: x}
		if p.accept(kName, "else") {
			c.no = p.expression()
		}
		x = c
	}
	p.depth--
	return x
}

// tuple is one expression or several separated by commas. Without inlineIf, an if ends it, as in a for.
func (p *parser) tuple(inlineIf bool) expr {
	one := p.or
	if inlineIf {
		one = p.expression
	}
	x := one()
	if !p.is(kOp, ",") {
		return x
	}
	l := &listExpr{items: []expr{x}, tuple: true}
	for p.accept(kOp, ",") {
		if t := p.cur(); t.kind == kVarEnd || t.kind == kTagEnd || p.is(kOp, ")") {
			break
		}
		l.items = append(l.items, one())
	}
	return l
}

func (p *parser) or() expr {
	return p.chain(p.and, func() (string, bool) { return "or", p.accept(kName, "or") })
}

func (p *parser) and() expr {
	return p.chain(p.not, func() (string, bool) { return "and", p.accept(kName, "and") })
}

// chain reads operands of one precedence, left-associative.
func (p *parser) chain(operand func() expr, operator func() (string, bool)) expr {
	x := operand()
	for n := 0; ; n++ {
		line := p.cur().line
		op, ok := operator()
		if !ok {
			return x
		}
		if n > maxChain {
			p.fail("more than %d operators in a row", maxChain)
		}
		x = &binaryExpr{line, op, x, operand()}
	}
}

func (p *parser) operators(ops ...string) func() (string, bool) {
	return func() (string, bool) {
		op := p.cur().text
		return op, p.cur().kind == kOp && slices.Contains(ops, op) && p.accept(kOp, op)
	}
}

func (p *parser) not() expr {
	if p.accept(kName, "not") {
		p.nest()
		x := &notExpr{p.not()}
		p.depth--
		return x
	}
	return p.compare()
}

func (p *parser) compare() expr {
	c := &compareExpr{line: p.cur().line, first: p.sum()}
	for {
		t := p.cur()
		switch {
		case t.kind == kOp && slices.Contains([]string{"==", "!=", "<", ">", "<=", ">="}, t.text), p.is(kName, "in"):
			p.i++
		case p.is(kName, "not") && p.tokens[p.i+1].kind == kName && p.tokens[p.i+1].text == "in":
			t.text = "not in"
			p.i += 2
		case len(c.ops) == 0:
			return c.first
		default:
			return c
		}
		c.ops = append(c.ops, t.text)
		c.rest = append(c.rest, p.sum())
	}
}

func (p *parser) sum() expr     { return p.chain(p.concat, p.operators("+", "-")) }
func (p *parser) concat() expr  { return p.chain(p.product, p.operators("~")) }
func (p *parser) product() expr { return p.chain(p.power, p.operators("*", "/", "//", "%")) }
func (p *parser) power() expr   { return p.chain(p.unary, p.operators("**")) }
func (p *parser) unary() expr   { return p.filtered(p.signed()) }

func (p *parser) signed() expr {
	if t := p.cur(); t.kind == kOp && (t.text == "-" || t.text == "+") {
		p.i++
		p.nest()
		x := &signExpr{t.line, t.text == "-", p.signed()}
		p.depth--
		return x
	}
	return p.postfix(p.primary())
}

func (p *parser) primary() expr {
	t := p.cur()
	p.i++
	switch t.kind {
	case kName:
		switch t.text {
		case "true", "True":
			return literal{true}
		case "false", "False":
			return literal{false}
		case "none", "None":
			return literal{nil}
		}
		return nameExpr(t.text)
	case kString:
		for p.cur().kind == kString {
			t.text += p.cur().text
			p.i++
		}
		return literal{t.text}
	case kInt:
		n, err := strconv.ParseInt(t.text, 0, 64)
		if err != nil {
			n, err = strconv.ParseInt(t.text, 10, 64)
		}
		if err != nil {
			fail(t.line, "bad integer %.40s", t.text)
		}
		return literal{n}
	case kFloat:
		f, err := strconv.ParseFloat(t.text, 64)
		if err != nil && !math.IsInf(f, 0) {
			fail(t.line, "bad number %.40s", t.text)
		}
		return literal{f}
	case kOp:
		p.nest()
		defer func() { p.depth-- }()
		switch t.text {
		case "(":
			if p.accept(kOp, ")") {
				return &listExpr{tuple: true}
			}
			x := p.tuple(true)
			p.expect(")")
			return x
		case "[":
			l := &listExpr{}
			p.list("]", func() { l.items = append(l.items, p.expression()) })
			return l
		case "{":
			d := &dictExpr{line: t.line}
			p.list("}", func() {
				d.keys = append(d.keys, p.expression())
				p.expect(":")
				d.values = append(d.values, p.expression())
			})
			return d
		}
	}
	p.i--
	p.fail("expected an expression, found %v", t)
	return nil
}

// list reads comma-separated items up to end; a trailing comma is allowed.
func (p *parser) list(end string, item func()) {
	for first := true; !p.accept(kOp, end); first = false {
		if !first {
			p.expect(",")
			if p.accept(kOp, end) {
				return
			}
		}
		item()
	}
}

func (p *parser) arguments() (args []expr, kw []kwargExpr) {
	p.nest()
	p.expect("(")
	p.list(")", func() {
		if p.is(kOp, "*") || p.is(kOp, "**") {
			p.fail("argument unpacking is not supported in a chat template")
		}
		if p.cur().kind == kName && p.tokens[p.i+1].kind == kOp && p.tokens[p.i+1].text == "=" {
			name := p.name()
			p.i++
			kw = append(kw, kwargExpr{name, p.expression()})
			return
		}
		if len(kw) > 0 {
			p.fail("a positional argument follows a keyword argument")
		}
		args = append(args, p.expression())
	})
	p.depth--
	return args, kw
}

// postfix reads attributes, subscripts and calls.
func (p *parser) postfix(x expr) expr {
	for n := 0; ; n++ {
		if n > maxChain {
			p.fail("more than %d attributes in a row", maxChain)
		}
		line := p.cur().line
		switch {
		case p.accept(kOp, "."):
			if p.cur().kind == kInt {
				x = &itemExpr{line, x, p.primary()}
			} else {
				x = &attrExpr{line, x, p.name()}
			}
		case p.accept(kOp, "["):
			x = p.subscript(line, x)
			p.expect("]")
		case p.is(kOp, "("):
			args, kw := p.arguments()
			x = &callExpr{line, x, args, kw}
		default:
			return x
		}
	}
}

func (p *parser) subscript(line int, x expr) expr {
	p.nest()
	defer func() { p.depth-- }()
	var parts [3]expr
	colons := 0
	for {
		if p.accept(kOp, ":") {
			if colons++; colons > 2 {
				p.fail("a slice has at most two colons")
			}
			continue
		}
		if p.is(kOp, "]") || parts[colons] != nil {
			break
		}
		parts[colons] = p.expression()
	}
	if colons > 0 {
		return &sliceExpr{line, x, parts}
	}
	if parts[0] == nil {
		p.fail("expected an expression, found %v", p.cur())
	}
	return &itemExpr{line, x, parts[0]}
}

// filtered reads filters, tests and calls of their results.
func (p *parser) filtered(x expr) expr {
	for n := 0; ; n++ {
		if n > maxChain {
			p.fail("more than %d filters in a row", maxChain)
		}
		line := p.cur().line
		switch {
		case p.accept(kOp, "|"):
			f := p.filter(x)
			x = &f
		case p.accept(kName, "is"):
			x = p.test(line, x)
		case p.is(kOp, "("):
			args, kw := p.arguments()
			x = &callExpr{line, x, args, kw}
		default:
			return x
		}
	}
}

func (p *parser) test(line int, x expr) expr {
	t := &testExpr{line: line, x: x, negated: p.accept(kName, "not"), name: p.name()}
	next := p.cur()
	switch {
	case p.is(kOp, "("):
		var kw []kwargExpr
		if t.args, kw = p.arguments(); len(kw) > 0 {
			p.fail("a test takes no keyword arguments")
		}
	case p.is(kName, "is"):
		p.fail("tests cannot be chained with is")
	case p.is(kName, "else"), p.is(kName, "or"), p.is(kName, "and"):
	case next.kind == kName, next.kind == kString, next.kind == kInt, next.kind == kFloat, p.is(kOp, "["), p.is(kOp, "{"):
		t.args = []expr{p.postfix(p.primary())}
	}
	return t
}
