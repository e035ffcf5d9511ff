package formula

import (
	"errors"
	"strings"
)

// Parse reads an answer in the most common notation: commas between groups of three digits belong to the number, others
// separate.
func Parse(answer string) (*Node, error) {
	return parse(Clean(answer), thousands)
}

// maxBytes bounds an answer before cleaning.
const maxBytes = 2 * MaxLength

// Readings returns the possible readings of a cleaned answer (see [Clean]), that of [Parse] first. They differ in the meaning
// of a comma between digits.
func Readings(s string) ([]*Node, error) {
	first, err := parse(s, thousands)
	var readings []*Node
	if err == nil {
		readings = append(readings, first)
	}
	if commaBetweenDigits(s) {
		seen := map[string]bool{}
		for _, r := range readings {
			seen[r.String()] = true
		}
		for _, c := range []commas{separator, decimal} {
			if n, err := parse(s, c); err == nil && !seen[n.String()] {
				seen[n.String()] = true
				readings = append(readings, n)
			}
		}
	}
	if len(readings) == 0 {
		return nil, err
	}
	return readings, nil
}

func commaBetweenDigits(s string) bool {
	for i := 1; i+1 < len(s) && len(s) <= MaxLength; i++ {
		if s[i] == ',' && isDigit(s[i-1]) && isDigit(s[i+1]) {
			return true
		}
	}
	return false
}

type parser struct {
	tokens []token
	at     int
	depth  int
	bars   int // open bars |…|
	nodes  int
	french bool // inside ]…[, where [ closes
	colon  bool // a colon precedes the condition of a set
}

func parse(s string, c commas) (*Node, error) {
	if len(s) > MaxLength {
		return nil, ErrTooLong
	}
	tokens, err := lex(s, c)
	if err != nil {
		return nil, err
	}
	if len(tokens) == 1 {
		return nil, errors.New("the answer is empty")
	}
	if n := textAlone(tokens); n != nil {
		return n, nil
	}
	p := &parser{tokens: tokens}
	n, err := p.list(endToken, "")
	if err != nil {
		return nil, err
	}
	if p.peek().kind != endToken {
		return nil, p.unexpected()
	}
	return n, nil
}

// textAlone reads an answer of words as text.
func textAlone(tokens []token) *Node {
	var words []string
	long := false
	for _, t := range tokens[:len(tokens)-1] {
		switch {
		case t.kind == textToken:
			long = true
			words = append(words, t.text)
		case t.kind == wordToken:
			if _, known := functions[t.text]; known {
				return nil
			}
			if _, known := constantNames[t.text]; known {
				return nil
			}
			long = long || !isProduct(t.text) && t.text != "and" && t.text != "or"
			words = append(words, t.text)
		case t.kind == symbolToken && strings.Contains(`-'",.!?()`, t.text):
			words = append(words, t.text)
		default:
			return nil
		}
	}
	if !long || len(words) == 1 && len(words[0]) == 1 {
		return nil
	}
	return Of(Text, strings.Join(words, " "))
}

// isProduct reports whether letters typed together are a product of variables instead of a word.
func isProduct(word string) bool {
	switch len(word) {
	case 1:
		return true
	case 2:
		return !shortWords[strings.ToLower(word)]
	case 3, 4:
		for _, group := range productLetters {
			if strings.Trim(word, group) == "" {
				return true
			}
		}
	}
	return false
}

func (p *parser) peek() *token { return &p.tokens[p.at] }

func (p *parser) ahead(n int) *token { return &p.tokens[min(p.at+n, len(p.tokens)-1)] }

func (p *parser) is(kind tokenKind, text string) bool {
	t := p.peek()
	return t.kind == kind && t.text == text
}

func (p *parser) symbol(text string) bool { return p.is(symbolToken, text) }

func (p *parser) take(kind tokenKind, text string) bool {
	if p.is(kind, text) {
		p.at++
		return true
	}
	return false
}

func (p *parser) unexpected() error {
	if t := p.peek(); t.kind != endToken {
		return errors.New("unexpected " + t.text)
	}
	return errors.New("unexpected end")
}

// enter counts nesting.
func (p *parser) enter() error {
	p.nodes++
	if p.depth++; p.depth > maxDepth || p.nodes > 4*maxTokens {
		return ErrTooLong
	}
	return nil
}

// connector reads the separator of list entries and returns the word in it.
func (p *parser) connector() (word string, found bool) {
	for {
		t := p.peek()
		lower := strings.ToLower(strings.Trim(t.text, " ,;.:"))
		switch {
		case t.kind == symbolToken && (t.text == "," || t.text == ";"):
			found = true
		case t.kind == commandToken && (t.text == "vee" || t.text == "lor"), (t.kind == wordToken || t.kind == textToken) && lower == "or":
			word, found = "or", true
		case t.kind == commandToken && (t.text == "wedge" || t.text == "land"), (t.kind == wordToken || t.kind == textToken) && lower == "and", t.kind == symbolToken && t.text == `\&`:
			word, found = "and", true
		case t.kind == textToken && strings.Trim(t.text, " ,;") == "":
			found = true
		default:
			return word, found
		}
		p.at++
	}
}

// list reads entries up to a token, or up to what does not belong to it.
func (p *parser) list(kind tokenKind, shut string) (*Node, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer func() { p.depth-- }()
	list := Of(List, "")
	var strong []int // entries after "or" or a semicolon
	both := false    // both "and" and "or" occur
	for {
		item, err := p.item()
		if err != nil {
			return nil, err
		}
		list.Args = append(list.Args, item)
		from := p.at
		word, found := p.connector()
		if word == "or" || found && p.tokens[p.at-1].text == ";" {
			strong = append(strong, len(list.Args))
		}
		if p.is(kind, shut) && word == "" || !found {
			if p.is(kind, shut) && from != p.at && kind != endToken {
				p.at = from // (1,) keeps its comma
				return nil, p.unexpected()
			}
			break
		}
		if word != "" {
			both = both || list.Text != "" && list.Text != word
			list.Text = word
		}
	}
	if len(list.Args) == 1 {
		return list.Args[0], nil
	}
	if solutions := points(list.Args, strong); solutions != nil {
		return solutions, nil
	}
	if both {
		return nil, errors.New("both and and or")
	}
	return list, nil
}

// points reads x = 1, y = 2 or x = 2, y = 1 as (x, y) = (1, 2) or (x, y) = (2, 1). strong are the positions where a solution
// ends. It returns nil for anything else.
func points(items []*Node, strong []int) *Node {
	if len(strong) == 0 || len(items)%(len(strong)+1) != 0 || len(items) == len(strong)+1 {
		return nil
	}
	size := len(items) / (len(strong) + 1)
	out := Of(List, "or")
	for i, item := range items {
		if item.Kind != Relation || len(item.Ops) != 1 || item.Ops[0] != "=" || item.Args[0].Kind != Name || item.Args[0].Text != items[i%size].Args[0].Text {
			return nil
		}
		if i%size == 0 {
			if i > 0 && strong[i/size-1] != i {
				return nil
			}
			out.Args = append(out.Args, &Node{Kind: Relation, Ops: []string{"="}, Args: []*Node{Of(Tuple, "()"), Of(Tuple, "()")}})
		}
		for side, part := range out.Args[len(out.Args)-1].Args {
			part.Args = append(part.Args, item.Args[side])
		}
	}
	return out
}

// item reads a relation, or a single value with its suffix.
func (p *parser) item() (*Node, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer func() { p.depth-- }()
	p.introduction()
	first, err := p.side()
	if err != nil {
		return nil, err
	}
	relation := Of(Relation, "", first)
	for {
		op, ok := p.relation()
		if !ok {
			break
		}
		side, err := p.side()
		if err != nil {
			return nil, err
		}
		relation.Ops = append(relation.Ops, op)
		relation.Args = append(relation.Args, side)
	}
	if len(relation.Args) == 1 {
		return first, nil
	}
	return relation, nil
}

// introduction skips words without meaning: "x is", "about", "exactly".
func (p *parser) introduction() {
	for {
		t := p.peek()
		if t.kind != wordToken && t.kind != textToken || !idle[strings.ToLower(strings.Trim(t.text, " :"))] {
			return
		}
		p.at++
	}
}

var idle = map[string]bool{"exactly": true, "about": true, "approximately": true, "either": true, "therefore": true, "hence": true, "thus": true, "for": true, "all": true, "where": true, "roughly": true}

func (p *parser) relation() (op string, ok bool) {
	t := p.peek()
	if t.kind == commandToken && t.text == "not" && p.ahead(1).kind != endToken {
		if next := p.ahead(1); next.text == "=" || next.text == "in" {
			p.at += 2
			return map[string]string{"=": "!=", "in": "notin"}[next.text], true
		}
		return "", false
	}
	if t.kind != symbolToken && t.kind != commandToken && !(t.kind == wordToken && t.text == "in") && !(t.kind == textToken && t.text == "is") {
		return "", false
	}
	if t.text == "is" {
		p.at++
		return "=", true
	}
	if t.kind == symbolToken && (t.text == ":" || t.text == "&") || t.kind == commandToken && t.text == "colon" {
		return "", false
	}
	op, ok = relations[t.text]
	if ok {
		p.at++
		p.take(symbolToken, "&")
	}
	return op, ok
}

// side reads a union of sets, or a sum, and its unit.
func (p *parser) side() (*Node, error) {
	n, err := p.value()
	if err != nil {
		return nil, err
	}
	for {
		t := p.peek()
		op := ""
		switch {
		case t.kind == commandToken && (t.text == "cup" || t.text == "cap" || t.text == "setminus"):
			op = t.text
		case t.kind == commandToken && t.text == "backslash":
			op = "setminus"
		case t.kind == wordToken && (strings.EqualFold(t.text, "union") || t.text == "U" && isSet(n)):
			op = "cup"
		default:
			return n, nil
		}
		p.at++
		next, err := p.value()
		if err != nil {
			return nil, err
		}
		if n.Is(Union, op) && op == "cup" {
			n.Args = append(n.Args, next)
			continue
		}
		n = Of(Union, op, n, next)
	}
}

func isSet(n *Node) bool { return n.Kind == Tuple || n.Kind == Set || n.Kind == Union }

// value reads a sum, a ratio of sums, and a unit.
func (p *parser) value() (*Node, error) {
	n, err := p.sum()
	if err != nil {
		return nil, err
	}
	if !p.colon && (p.symbol(":") || p.is(commandToken, "colon")) && p.ahead(1).kind != endToken {
		ratio := Of(Ratio, "", n)
		for p.take(symbolToken, ":") || p.take(commandToken, "colon") {
			part, err := p.sum()
			if err != nil {
				return nil, err
			}
			ratio.Args = append(ratio.Args, part)
		}
		n = ratio
	}
	if n, err = p.modulus(n); err != nil {
		return nil, err
	}
	return p.unit(n)
}

// modulus reads \pmod{7} after a value, as its unit, and the remainder a \bmod b.
func (p *parser) modulus(n *Node) (*Node, error) {
	binary := p.take(commandToken, "bmod")
	if !binary && !p.take(commandToken, "pmod") && !p.take(commandToken, "mod") {
		return n, nil
	}
	m, err := p.argument()
	if err != nil {
		return nil, err
	}
	if binary {
		return Of(Apply, "remainder", n, m), nil
	}
	return Of(Quantity, "mod "+m.String(), n), nil
}
