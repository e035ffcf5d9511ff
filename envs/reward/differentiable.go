package reward

import (
	"slices"
	"strconv"
	"strings"

	"github.com/expr-lang/expr/ast"

	"github.com/rltrain/rltrain/internal/nearest"
)

// expression is a parsed and checked reward expression, ready to evaluate and differentiate. The grammar and the syntax
// errors are expr's. Names, types and derivatives are implemented here, because expr has no derivatives.
type expression struct {
	root  *node
	nodes int // node ids run from 0 to nodes-1
}

// node is one operation. Every value is a float64: conditions are 0 and 1, labels are their index.
type node struct {
	op    operation
	kind  valueKind
	reads bool // the subtree has a derivative with respect to the probabilities
	id    int
	value float64 // of a constant
	args  []*node
}

type valueKind int

const (
	number valueKind = iota
	condition
	labelName
)

func (k valueKind) String() string { return [...]string{"a number", "a condition", "a label"}[k] }

type operation int

const (
	opConstant operation = iota
	opCorrect
	opConfidence
	opEntropy
	opPredicted
	opTruth
	opProb // args[0]: index of the label
	opNegate
	opAdd
	opSubtract
	opMultiply
	opDivide
	opPower
	opMin
	opMax
	opAbs
	opExp
	opLog
	opSqrt
	opChoose // args: condition, then, else
	opNot
	opAnd
	opOr
	opIn // args: value, then the elements of the list
	opEqual
	opLess
	opLessEqual
)

var (
	expressionNames     = []string{"confidence", "correct", "entropy", "label", "predicted", "probs"}
	expressionFunctions = []string{"abs", "exp", "log", "max", "min", "pow", "sqrt"}
)

// compileDifferentiable parses and checks the expression of a label reward.
func compileDifferentiable(source string, labels []string) (*expression, error) {
	tree, err := parseExpression(source)
	if err != nil {
		return nil, err
	}
	c := &compiler{labels: labels}
	root, err := c.compile(tree.Node)
	if err != nil {
		return nil, err
	}
	if root.kind == labelName {
		return nil, errorAt(tree.Node, "the reward must be a number or a condition, not a label")
	}
	return &expression{root: root, nodes: c.nodes}, nil
}

type compiler struct {
	labels []string
	nodes  int
}

func (c *compiler) node(op operation, kind valueKind, args ...*node) *node {
	n := &node{op: op, kind: kind, id: c.nodes, args: args}
	c.nodes++
	switch op {
	case opConfidence, opEntropy, opProb:
		n.reads = true
	default:
		for _, arg := range args {
			n.reads = n.reads || arg.reads
		}
	}
	return n
}

func (c *compiler) constant(kind valueKind, value float64) *node {
	n := c.node(opConstant, kind)
	n.value = value
	return n
}

func (c *compiler) compile(n ast.Node) (*node, error) {
	if c.nodes > maxNodes {
		return nil, errTooMany(n)
	}
	switch n := n.(type) {
	case *ast.IntegerNode:
		return c.constant(number, float64(n.Value)), nil
	case *ast.FloatNode:
		return c.constant(number, n.Value), nil
	case *ast.BoolNode:
		if n.Value {
			return c.constant(condition, 1), nil
		}
		return c.constant(condition, 0), nil
	case *ast.StringNode:
		index, err := c.labelIndex(n, n.Value)
		if err != nil {
			return nil, err
		}
		return c.constant(labelName, float64(index)), nil
	case *ast.IdentifierNode:
		return c.identifier(n)
	case *ast.UnaryNode:
		return c.unary(n)
	case *ast.BinaryNode:
		return c.binary(n)
	case *ast.ConditionalNode:
		return c.conditional(n)
	case *ast.MemberNode:
		return c.member(n)
	case *ast.BuiltinNode:
		return c.call(n, n.Name, n.Arguments)
	case *ast.CallNode:
		if callee, ok := n.Callee.(*ast.IdentifierNode); ok {
			return c.call(n, callee.Value, n.Arguments)
		}
	}
	return nil, errorAt(n, "this construct is not supported; use numbers, names, operators, conditions and %s", strings.Join(expressionFunctions, ", "))
}

func (c *compiler) identifier(n *ast.IdentifierNode) (*node, error) {
	switch n.Value {
	case "correct":
		return c.node(opCorrect, number), nil
	case "confidence":
		return c.node(opConfidence, number), nil
	case "entropy":
		return c.node(opEntropy, number), nil
	case "predicted":
		return c.node(opPredicted, labelName), nil
	case "label":
		return c.node(opTruth, labelName), nil
	case "probs":
		return nil, errorAt(n, "probs is a list; write probs[0], probs[%q], probs[label], max(probs) or min(probs)", c.labels[0])
	}
	return nil, errorAt(n, "unknown name %s%s; use %s", hintQuote(n.Value), nearest.Hint(n.Value, expressionNames, strconv.Quote), strings.Join(expressionNames, ", "))
}

func (c *compiler) labelIndex(n ast.Node, name string) (int, error) {
	index := slices.Index(c.labels, name)
	if index < 0 {
		return 0, errorAt(n, "%s is not a label%s", hintQuote(name), nearest.Hint(name, c.labels, strconv.Quote))
	}
	return index, nil
}

// number compiles n, which must be a number.
func (c *compiler) number(n ast.Node) (*node, error) {
	compiled, err := c.compile(n)
	if err == nil && compiled.kind != number {
		err = errorAt(n, "got %s, want a number", compiled.kind)
	}
	return compiled, err
}

// condition compiles n, which must be a condition, or a number such as correct (true unless 0). It must not depend on the
// probabilities: the reward would jump where the condition changes.
func (c *compiler) condition(n ast.Node) (*node, error) {
	compiled, err := c.compile(n)
	switch {
	case err != nil:
		return nil, err
	case compiled.kind == labelName:
		return nil, errorAt(n, "got a label, want a condition")
	case compiled.reads:
		return nil, errorJumps(n)
	}
	return compiled, nil
}

func errorJumps(n ast.Node) error {
	return errorAt(n, "a condition on probabilities has no derivative; use max, min or abs")
}

func (c *compiler) unary(n *ast.UnaryNode) (*node, error) {
	switch n.Operator {
	case "+":
		return c.number(n.Node)
	case "-":
		arg, err := c.number(n.Node)
		if err != nil {
			return nil, err
		}
		return c.node(opNegate, number, arg), nil
	case "!", "not":
		arg, err := c.condition(n.Node)
		if err != nil {
			return nil, err
		}
		return c.node(opNot, condition, arg), nil
	}
	return nil, errorAt(n, "operator %s is not available in rewards", n.Operator)
}

var arithmetic = map[string]operation{
	"+": opAdd, "-": opSubtract, "*": opMultiply, "/": opDivide, "**": opPower, "^": opPower,
}

func (c *compiler) binary(n *ast.BinaryNode) (*node, error) {
	if op, ok := arithmetic[n.Operator]; ok {
		left, err := c.number(n.Left)
		if err != nil {
			return nil, err
		}
		right, err := c.number(n.Right)
		if err != nil {
			return nil, err
		}
		return c.node(op, number, left, right), nil
	}
	switch n.Operator {
	case "and", "&&", "or", "||":
		left, err := c.condition(n.Left)
		if err != nil {
			return nil, err
		}
		right, err := c.condition(n.Right)
		if err != nil {
			return nil, err
		}
		if n.Operator == "and" || n.Operator == "&&" {
			return c.node(opAnd, condition, left, right), nil
		}
		return c.node(opOr, condition, left, right), nil
	case "==", "!=", "<", "<=", ">", ">=":
		return c.comparison(n)
	case "in":
		return c.in(n)
	}
	return nil, errorAt(n, "operator %s is not available in rewards", n.Operator)
}

func (c *compiler) comparison(n *ast.BinaryNode) (*node, error) {
	left, err := c.compile(n.Left)
	if err != nil {
		return nil, err
	}
	right, err := c.compile(n.Right)
	if err != nil {
		return nil, err
	}
	if left.kind != right.kind {
		return nil, errorAt(n, "cannot compare %s with %s", left.kind, right.kind)
	}
	if left.reads || right.reads {
		return nil, errorJumps(n)
	}
	switch n.Operator {
	case "==":
		return c.node(opEqual, condition, left, right), nil
	case "!=":
		return c.node(opNot, condition, c.node(opEqual, condition, left, right)), nil
	}
	if left.kind != number {
		return nil, errorAt(n, "%s has no order, so %s needs numbers", left.kind, n.Operator)
	}
	switch n.Operator {
	case "<":
		return c.node(opLess, condition, left, right), nil
	case "<=":
		return c.node(opLessEqual, condition, left, right), nil
	case ">":
		return c.node(opLess, condition, right, left), nil
	default:
		return c.node(opLessEqual, condition, right, left), nil
	}
}

// in compiles membership in a list literal: label in ["law", "math"].
func (c *compiler) in(n *ast.BinaryNode) (*node, error) {
	list, ok := n.Right.(*ast.ArrayNode)
	if !ok {
		return nil, errorAt(n, `in needs a list literal: label in [%q]`, c.labels[0])
	}
	left, err := c.compile(n.Left)
	if err != nil {
		return nil, err
	}
	if left.reads {
		return nil, errorJumps(n)
	}
	args := []*node{left}
	for _, element := range list.Nodes {
		right, err := c.compile(element)
		if err != nil {
			return nil, err
		}
		if right.kind != left.kind {
			return nil, errorAt(element, "cannot compare %s with %s", left.kind, right.kind)
		}
		if right.reads {
			return nil, errorJumps(element)
		}
		args = append(args, right)
	}
	return c.node(opIn, condition, args...), nil
}

func (c *compiler) conditional(n *ast.ConditionalNode) (*node, error) {
	test, err := c.condition(n.Cond)
	if err != nil {
		return nil, err
	}
	yes, err := c.number(n.Exp1)
	if err != nil {
		return nil, err
	}
	no, err := c.number(n.Exp2)
	if err != nil {
		return nil, err
	}
	return c.node(opChoose, number, test, yes, no), nil
}

// member compiles probs[…] and probs.name.
func (c *compiler) member(n *ast.MemberNode) (*node, error) {
	list, ok := n.Node.(*ast.IdentifierNode)
	if !ok || list.Value != "probs" || n.Optional || n.Method {
		return nil, errorAt(n, "only probs has elements")
	}
	if index, ok := n.Property.(*ast.IntegerNode); ok {
		if index.Value < 0 || index.Value >= len(c.labels) {
			return nil, errorAt(index, "index %d is out of range; %d labels are numbered from 0", index.Value, len(c.labels))
		}
		return c.node(opProb, number, c.constant(number, float64(index.Value))), nil
	}
	index, err := c.compile(n.Property)
	if err != nil {
		return nil, err
	}
	if index.kind != labelName {
		return nil, errorAt(n.Property, "probs needs an integer index or a label")
	}
	return c.node(opProb, number, index), nil
}

func (c *compiler) call(n ast.Node, name string, arguments []ast.Node) (*node, error) {
	op, least, most := opConstant, 1, 1
	switch name {
	case "abs":
		op = opAbs
	case "exp":
		op = opExp
	case "log":
		op = opLog
	case "sqrt":
		op = opSqrt
	case "pow":
		op, least, most = opPower, 2, 2
	case "max":
		op, most = opMax, maxExpression
	case "min":
		op, most = opMin, maxExpression
	default:
		return nil, errorAt(n, "unknown function %s%s; use %s", hintQuote(name), nearest.Hint(name, expressionFunctions, strconv.Quote), strings.Join(expressionFunctions, ", "))
	}
	if len(arguments) < least || len(arguments) > most {
		return nil, errorAt(n, "%s does not take %d arguments", name, len(arguments))
	}
	var args []*node
	for _, argument := range arguments {
		if list, ok := argument.(*ast.IdentifierNode); ok && list.Value == "probs" && (op == opMax || op == opMin) {
			for k := range c.labels {
				args = append(args, c.node(opProb, number, c.constant(number, float64(k))))
			}
			continue
		}
		arg, err := c.number(argument)
		if err != nil {
			return nil, err
		}
		args = append(args, arg)
	}
	return c.node(op, number, args...), nil
}
