package formula

import (
	"math/big"
	"slices"
	"strings"
)

// Kind is the kind of a node.
type Kind int

// Kinds of nodes, with the meaning of their fields.
const (
	Number   Kind = iota // Num; with Places decimals, Digits significant digits
	Name                 // Text: a variable with index and primes
	Constant             // Text: pi, e, i, infinity, or a set of numbers: R, Z, N, Q, C, empty
	Sum                  // Args
	Product              // Args
	Quotient             // Args[0] / Args[1]
	Power                // Args[0] ^ Args[1]
	Call                 // Text: a known function of Args
	Apply                // Text: an unknown function of Args
	Big                  // Text: sum, prod, int, lim; Args: body, lower, upper
	Sign                 // Text: "+-" or "-+"; Args[0]
	Tuple                // Text: the brackets, such as "()"; Args
	Set                  // Args
	List                 // Args without brackets; Text: the word "or" or "and" between them, if any
	Matrix               // Args are rows, each a Tuple
	Relation             // Ops between Args
	Union                // Text: cup, cap, setminus; Args
	Quantity             // Args[0] with unit Text; "%" and "deg" are units
	Ratio                // Args, as 1:2
	Base                 // Num written in base Places
	Text                 // unparsed Text
)

// Node is a part of an answer.
type Node struct {
	Kind   Kind
	Text   string
	Num    *big.Rat
	Places int // decimals as written, 0 for integers and fractions
	Digits int // significant digits of a decimal
	Ops    []string
	Args   []*Node
}

// Clone copies a node, but not its children.
func (n *Node) Clone() *Node {
	c := *n
	return &c
}

// Is reports whether n has the given kind and text.
func (n *Node) Is(kind Kind, text string) bool { return n.Kind == kind && n.Text == text }

// mentions reports whether a name occurs.
func (n *Node) mentions(name string) bool {
	return n.Is(Name, name) || slices.ContainsFunc(n.Args, func(arg *Node) bool { return arg.mentions(name) })
}

// Int returns an integer node.
func Int(v int64) *Node { return &Node{Kind: Number, Num: new(big.Rat).SetInt64(v)} }

// Of returns a node with parts.
func Of(kind Kind, text string, args ...*Node) *Node {
	return &Node{Kind: kind, Text: text, Args: args}
}

// Negative returns −n.
func Negative(n *Node) *Node {
	if n.Kind == Number {
		c := n.Clone()
		c.Num = new(big.Rat).Neg(n.Num)
		return c
	}
	return Of(Product, "", Int(-1), n)
}

// String formats a node with all brackets: equal text means equal nodes.
func (n *Node) String() string {
	var b strings.Builder
	n.write(&b)
	return b.String()
}

var wraps = map[Kind][3]string{ // before, between, after
	Sum: {"(", " + ", ")"}, Product: {"(", "·", ")"}, Quotient: {"(", "/", ")"}, Power: {"(", "^", ")"},
	Set: {"{", ", ", "}"}, Ratio: {"(", ":", ")"}, Matrix: {"matrix[", "; ", "]"},
}

func (n *Node) write(b *strings.Builder) {
	if wrap, ok := wraps[n.Kind]; ok {
		n.join(b, wrap[0], wrap[1], wrap[2])
		return
	}
	switch n.Kind {
	case Number:
		b.WriteString(n.Num.RatString())
		if n.Places > 0 {
			b.WriteString("≈")
			b.WriteString(n.Num.FloatString(n.Places))
		}
	case Base:
		b.WriteString(n.Num.RatString())
		b.WriteString(" in base ")
		b.WriteString(Int(int64(n.Places)).Num.RatString())
	case Call, Apply, Big:
		n.join(b, n.Text+"(", ", ", ")")
	case Sign:
		n.join(b, map[string]string{"+-": "±", "-+": "∓"}[n.Text], "", "")
	case Tuple:
		n.join(b, n.Text[:1], ", ", n.Text[1:])
	case List:
		between := ", "
		if n.Text != "" {
			between = " " + n.Text + " "
		}
		n.join(b, "list(", between, ")")
	case Union:
		n.join(b, "(", " "+n.Text+" ", ")")
	case Quantity:
		n.Args[0].write(b)
		b.WriteString(" [" + n.Text + "]")
	case Relation:
		for i, arg := range n.Args {
			if i > 0 {
				b.WriteString(" " + n.Ops[i-1] + " ")
			}
			arg.write(b)
		}
	case Text:
		b.WriteString("“" + n.Text + "”")
	default:
		b.WriteString(n.Text)
	}
}

func (n *Node) join(b *strings.Builder, before, between, behind string) {
	b.WriteString(before)
	for i, arg := range n.Args {
		if i > 0 {
			b.WriteString(between)
		}
		if n.Kind == Matrix {
			arg.join(b, "", ", ", "")
			continue
		}
		arg.write(b)
	}
	b.WriteString(behind)
}
