package jinja

import (
	"slices"
	"strings"
)

// parser reads statements here and expressions in parse_expr.go; the grammar is that of jinja2.parser.
type parser struct {
	tokens []token
	i      int
	depth  int
}

func (p *parser) cur() token { return p.tokens[p.i] }

func (p *parser) fail(format string, args ...any) { fail(p.cur().line, format, args...) }

// nest limits the depth of tags and brackets; the caller decrements p.depth afterwards.
func (p *parser) nest() {
	if p.depth++; p.depth > maxNested {
		p.fail("the template nests more than %d deep", maxNested)
	}
}

func (p *parser) is(k kind, text string) bool { return p.cur().kind == k && p.cur().text == text }

func (p *parser) accept(k kind, text string) bool {
	ok := p.is(k, text)
	if ok {
		p.i++
	}
	return ok
}

func (p *parser) expect(op string) {
	if !p.accept(kOp, op) {
		p.fail("expected %q, found %v", op, p.cur())
	}
}

func (p *parser) name() string {
	if p.cur().kind != kName {
		p.fail("expected a name, found %v", p.cur())
	}
	p.i++
	return p.tokens[p.i-1].text
}

func (p *parser) end(k kind) {
	if p.cur().kind != k {
		p.fail("unexpected %v", p.cur())
	}
	p.i++
}

// body reads statements up to a tag named in ends, whose name it consumes and returns; without ends, up to the end of
// the template.
func (p *parser) body(ends ...string) ([]node, string) {
	p.nest()
	line := p.tokens[max(p.i-1, 0)].line // of the tag before
	var nodes []node
	for {
		t := p.cur()
		p.i++
		switch t.kind {
		case kText:
			nodes = append(nodes, textNode(t.text))
		case kVarBegin:
			x := p.tuple(true)
			p.end(kVarEnd)
			nodes = append(nodes, &printNode{t.line, x})
		case kTagBegin:
			name := p.name()
			if slices.Contains(ends, name) {
				p.depth--
				return nodes, name
			}
			nodes = append(nodes, p.statement(name, t.line))
		default:
			if len(ends) > 0 {
				fail(line, "the tag has no %s", strings.Join(ends, " or "))
			}
			return nodes, ""
		}
	}
}

// block reads the remainder of a tag, its body and its end tag.
func (p *parser) block(end string) []node {
	p.end(kTagEnd)
	body, _ := p.body(end)
	p.end(kTagEnd)
	return body
}

func (p *parser) statement(name string, line int) node {
	switch name {
	case "if":
		return p.ifTag(line)
	case "for":
		return p.forTag(line)
	case "set":
		return p.setTag(line)
	case "macro":
		n := &macroNode{line: line, name: p.name()}
		n.params, n.defaults = p.params()
		n.body = p.block("endmacro")
		return n
	case "call":
		return p.callTag(line)
	case "with":
		n := &withNode{line: line}
		for p.cur().kind != kTagEnd {
			if len(n.names) > 0 {
				p.expect(",")
			}
			n.names = append(n.names, p.target(false))
			p.expect("=")
			n.values = append(n.values, p.expression())
		}
		n.body = p.block("endwith")
		return n
	case "generation":
		return &generationNode{line, p.block("endgeneration")}
	case "filter":
		filters := []filterExpr{p.filter(nil)}
		filters = append(filters, p.filters()...)
		return &filterNode{line, filters, p.block("endfilter")}
	case "break":
		p.end(kTagEnd)
		return loopControl(flowBreak)
	case "continue":
		p.end(kTagEnd)
		return loopControl(flowContinue)
	case "block", "extends", "include", "import", "from", "autoescape", "do", "trans", "debug":
		fail(line, "the tag %q is not supported in a chat template", name)
	}
	fail(line, "unknown tag %q", name)
	return nil
}

func (p *parser) ifTag(line int) node {
	n := &ifNode{line: line}
	for {
		n.conds = append(n.conds, p.tuple(false))
		p.end(kTagEnd)
		body, end := p.body("elif", "else", "endif")
		n.bodies = append(n.bodies, body)
		switch end {
		case "elif":
			continue
		case "else":
			p.end(kTagEnd)
			n.elseBody, _ = p.body("endif")
		}
		p.end(kTagEnd)
		return n
	}
}

func (p *parser) forTag(line int) node {
	n := &forNode{line: line, target: p.targets(false)}
	if !p.accept(kName, "in") {
		p.fail("expected 'in', found %v", p.cur())
	}
	n.iter = p.tuple(false)
	if p.accept(kName, "if") {
		n.cond = p.expression()
	}
	n.recursive = p.accept(kName, "recursive")
	p.end(kTagEnd)
	body, end := p.body("endfor", "else")
	n.body = body
	if end == "else" {
		p.end(kTagEnd)
		n.elseBody, _ = p.body("endfor")
	}
	p.end(kTagEnd)
	return n
}

func (p *parser) setTag(line int) node {
	n := &setNode{line: line, targets: p.targets(true)}
	if p.accept(kOp, "=") {
		n.x = p.tuple(true)
		p.end(kTagEnd)
		return n
	}
	n.filters = p.filters()
	n.body = p.block("endset")
	return n
}

func (p *parser) callTag(line int) node {
	n := &callNode{line: line, body: &macroNode{line: line, name: "caller"}}
	if p.is(kOp, "(") {
		n.body.params, n.body.defaults = p.params()
	}
	call, ok := p.expression().(*callExpr)
	if !ok {
		fail(line, "the tag call needs a call")
	}
	n.call = call
	n.body.body = p.block("endcall")
	return n
}

func (p *parser) params() (names []string, defaults map[string]expr) {
	p.expect("(")
	defaults = map[string]expr{}
	for !p.accept(kOp, ")") {
		if len(names) > 0 {
			p.expect(",")
		}
		name := p.name()
		if slices.Contains(names, name) {
			p.fail("two parameters are called %q", name)
		}
		names = append(names, name)
		if p.accept(kOp, "=") {
			defaults[name] = p.expression()
		} else if len(defaults) > 0 {
			p.fail("parameter %q without a default follows one with", name)
		}
	}
	return names, defaults
}

var reserved = []string{"true", "false", "none", "True", "False", "None", "and", "or", "not", "in", "is", "if", "else"}

// target reads a name, (a, b) or, if attrs is set, ns.name.
func (p *parser) target(attrs bool) target {
	if p.accept(kOp, "(") {
		p.nest()
		t := p.targets(false)
		p.depth--
		p.expect(")")
		return t
	}
	name := p.name()
	if slices.Contains(reserved, name) {
		p.fail("cannot assign to %q", name)
	}
	if attrs && p.accept(kOp, ".") {
		return target{name: name, attr: p.name()}
	}
	return target{name: name}
}

// targets reads one target or several separated by commas.
func (p *parser) targets(attrs bool) target {
	first := p.target(attrs)
	if !p.is(kOp, ",") {
		return first
	}
	t := target{parts: []target{first}}
	for p.accept(kOp, ",") {
		if p.cur().kind != kName && !p.is(kOp, "(") || p.is(kName, "in") {
			break
		}
		t.parts = append(t.parts, p.target(attrs))
	}
	return t
}

func (p *parser) filters() []filterExpr {
	var all []filterExpr
	for p.accept(kOp, "|") {
		all = append(all, p.filter(nil))
	}
	return all
}

// filter reads a filter's name and arguments.
func (p *parser) filter(x expr) filterExpr {
	f := filterExpr{line: p.cur().line, x: x, name: p.name()}
	if p.is(kOp, "(") {
		f.args, f.kw = p.arguments()
	}
	return f
}
