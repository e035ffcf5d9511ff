package formula

import "errors"

// bracketed reads what starts with a symbol: brackets, bars, currency signs.
func (p *parser) bracketed() (*Node, error) {
	t := p.peek()
	switch t.text {
	case "(", "[", "]":
		return p.tuple()
	case "{":
		return p.group()
	case `\{`:
		return p.set()
	case "|":
		p.at++
		p.bars++
		n, err := p.sum()
		p.bars--
		if err != nil {
			return nil, err
		}
		if !p.take(symbolToken, "|") {
			return nil, p.unexpected()
		}
		return Of(Call, "abs", n), nil
	}
	if unit, ok := moneySigns[t.text]; ok {
		p.at++
		n, err := p.factor()
		if err != nil {
			return nil, err
		}
		return Of(Quantity, unit, n), nil
	}
	return nil, p.unexpected()
}

var moneySigns = map[string]string{`\$`: "dollar", "€": "euro", "£": "pound sterling", "¥": "yen", "₹": "rupee"}

// tuple reads (…), […] and the half-open forms. A single entry in () or [] is that entry.
func (p *parser) tuple() (*Node, error) {
	open := p.peek().text
	p.at++
	bars := p.bars
	french := p.french
	p.bars, p.french = 0, open == "]"
	n, err := p.list(symbolToken, ")")
	p.bars, p.french = bars, french
	if err != nil {
		return nil, err
	}
	shut := p.peek().text
	if p.peek().kind != symbolToken || shut != ")" && shut != "]" && shut != "[" || shut == "[" && (open == "(" || n.Kind != List) {
		return nil, p.unexpected()
	}
	p.at++
	if open == "]" { // ]1,2[ is (1,2)
		open = "("
		if n.Kind != List || len(n.Args) != 2 {
			return nil, errors.New("brackets in the wrong direction")
		}
	}
	if shut == "[" {
		shut = ")"
	}
	if n.Kind == List && n.Text == "" {
		if len(n.Args) == 2 && n.Args[1].Kind == List {
			return nil, errors.New("list inside a tuple")
		}
		return Of(Tuple, open+shut, n.Args...), nil
	}
	if open+shut != "()" && open+shut != "[]" || n.Kind == List {
		return nil, errors.New("brackets that do not match")
	}
	return n, nil
}

// set reads \{…\}, also with a condition after a bar or colon: \{x | x > 3\} is x > 3.
func (p *parser) set() (*Node, error) {
	p.at++
	if p.take(symbolToken, `\}`) {
		return Of(Constant, "empty"), nil
	}
	if p.peek().kind == beginToken { // a system of equations after a brace
		n, err := p.environment()
		p.take(symbolToken, `\}`)
		if err == nil && n.Kind == Matrix {
			n, err = column(n)
		}
		return n, err
	}
	bars, colon := p.bars, p.colon
	p.bars, p.colon = 0, p.conditional(":")
	if p.conditional("|") {
		p.bars = 1
	}
	defer func() { p.bars, p.colon = bars, colon }()
	n, err := p.list(symbolToken, `\}`)
	if err != nil {
		return nil, err
	}
	if p.take(symbolToken, "|") || p.take(commandToken, "mid") || p.take(symbolToken, ":") || p.take(commandToken, "vert") {
		condition, err := p.list(symbolToken, `\}`)
		if err != nil {
			return nil, err
		}
		if n.Kind == Relation && len(n.Args) == 2 && n.Ops[0] == "in" && n.Args[1].Is(Constant, "R") {
			n = n.Args[0]
		}
		if n.Kind != Name {
			condition = Of(Apply, "such that", n, condition)
		}
		if !p.take(symbolToken, `\}`) {
			return nil, p.unexpected()
		}
		return condition, nil
	}
	if !p.take(symbolToken, `\}`) {
		return nil, p.unexpected()
	}
	if n.Kind == List {
		return Of(Set, "", n.Args...), nil
	}
	if n.Kind == Ratio {
		return nil, errors.New("set with a colon")
	}
	return Of(Set, "", n), nil
}

// conditional reports whether there is a single bar or colon before the closing brace.
func (p *parser) conditional(mark string) bool {
	count := 0
	for i := p.at; i < len(p.tokens) && !(p.tokens[i].kind == symbolToken && p.tokens[i].text == `\}`); i++ {
		if p.tokens[i].kind == symbolToken && p.tokens[i].text == mark {
			count++
		}
	}
	return count%2 == 1
}

// fenced reads what commands open and close.
func (p *parser) fenced(open string) (*Node, error) {
	bars := p.bars
	p.bars = 0
	n, err := p.list(commandToken, "")
	p.bars = bars
	if err != nil {
		return nil, err
	}
	shut := map[string]string{"lfloor": "rfloor", "lceil": "rceil", "lvert": "rvert", "lVert": "rVert", "langle": "rangle", "vert": "vert", "Vert": "Vert"}[open]
	if !p.take(commandToken, shut) {
		return nil, p.unexpected()
	}
	switch open {
	case "lfloor":
		return Of(Call, "floor", n), nil
	case "lceil":
		return Of(Call, "ceil", n), nil
	case "langle":
		if n.Kind == List {
			return Of(Tuple, "<>", n.Args...), nil
		}
		return nil, errors.New("vector with one entry")
	case "lVert", "Vert":
		return Of(Apply, "norm", n), nil
	}
	return Of(Call, "abs", n), nil
}

// environment reads matrices, cases and aligned equations.
func (p *parser) environment() (*Node, error) {
	name := p.peek().text
	p.at++
	from, depth := p.at, 1
	for ; p.at < len(p.tokens)-1; p.at++ {
		if p.peek().kind == beginToken {
			depth++
		} else if p.peek().kind == finishToken {
			if depth--; depth == 0 {
				break
			}
		}
	}
	if p.peek().kind != finishToken || p.peek().text != name {
		return nil, p.unexpected()
	}
	inside := p.tokens[from:p.at]
	p.at++
	switch name {
	case "array", "tabular":
		inside = withoutColumns(inside)
		return p.matrix(inside)
	case "matrix", "pmatrix", "bmatrix", "Bmatrix", "smallmatrix", "psmallmatrix":
		return p.matrix(inside)
	case "vmatrix":
		n, err := p.matrix(inside)
		if err != nil {
			return nil, err
		}
		return Of(Call, "det", n), nil
	case "cases", "aligned", "align", "gathered", "split", "equation", "gather", "alignedat":
		return p.lines(inside)
	}
	return nil, errors.New("unknown environment " + name)
}

// withoutColumns removes the {cc|c} of an array.
func withoutColumns(tokens []token) []token {
	if len(tokens) > 0 && tokens[0].text == "{" {
		for i, t := range tokens {
			if t.kind == symbolToken && t.text == "}" {
				return tokens[i+1:]
			}
		}
	}
	return tokens
}

// sub parses tokens separately, within the bounds of p.
func (p *parser) sub(tokens []token) (*Node, error) {
	inner := &parser{tokens: append(append([]token{}, tokens...), token{kind: endToken}), depth: p.depth, nodes: p.nodes}
	n, err := inner.list(endToken, "")
	p.nodes = inner.nodes
	if err != nil {
		return nil, err
	}
	if inner.peek().kind != endToken {
		return nil, inner.unexpected()
	}
	return n, nil
}

// pieces splits tokens at symbols outside brackets.
func pieces(tokens []token, at string) [][]token {
	var out [][]token
	from, depth := 0, 0
	for i, t := range tokens {
		switch {
		case t.kind == beginToken || t.kind == symbolToken && (t.text == "{" || t.text == "(" || t.text == `\{`):
			depth++
		case t.kind == finishToken || t.kind == symbolToken && (t.text == "}" || t.text == ")" || t.text == `\}`):
			depth--
		case t.kind == symbolToken && t.text == at && depth <= 0:
			out = append(out, tokens[from:i])
			from = i + 1
		}
	}
	return append(out, tokens[from:])
}

func (p *parser) matrix(tokens []token) (*Node, error) {
	m := Of(Matrix, "")
	rows := pieces(tokens, `\\`)
	for i, row := range rows {
		if len(row) == 0 && i == len(rows)-1 && i > 0 {
			break // \\ after the last row
		}
		r := Of(Tuple, "()")
		for _, cell := range pieces(row, "&") {
			n, err := p.sub(cell)
			if err != nil {
				return nil, err
			}
			r.Args = append(r.Args, n)
		}
		if len(m.Args) > 0 && len(r.Args) != len(m.Args[0].Args) {
			return nil, errors.New("rows of different lengths")
		}
		m.Args = append(m.Args, r)
	}
	return m, nil
}

// lines reads equations on separate lines; a line that starts with a relation continues the line above.
func (p *parser) lines(tokens []token) (*Node, error) {
	list := Of(List, "")
	var line []token
	flush := func() error {
		if len(line) == 0 {
			return nil
		}
		n, err := p.sub(line)
		line = nil
		if err == nil {
			list.Args = append(list.Args, n)
		}
		return err
	}
	for _, row := range pieces(tokens, `\\`) {
		var clean []token
		for _, t := range row {
			if t.kind != symbolToken || t.text != "&" {
				clean = append(clean, t)
			}
		}
		if len(clean) > 0 && clean[0].kind != wordToken && relations[clean[0].text] != "" && len(line) > 0 {
			line = append(line, clean...)
			continue
		}
		if err := flush(); err != nil {
			return nil, err
		}
		line = clean
	}
	if err := flush(); err != nil {
		return nil, err
	}
	switch len(list.Args) {
	case 0:
		return nil, errors.New("empty environment")
	case 1:
		return list.Args[0], nil
	}
	list.Text = "and"
	return list, nil
}

// column is the list of the rows of a one-column matrix.
func column(m *Node) (*Node, error) {
	list := Of(List, "and")
	for _, row := range m.Args {
		if len(row.Args) != 1 {
			return nil, errors.New("brace before several columns")
		}
		list.Args = append(list.Args, row.Args[0])
	}
	if len(list.Args) == 1 {
		return list.Args[0], nil
	}
	return list, nil
}
