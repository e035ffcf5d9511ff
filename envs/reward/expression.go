package reward

import (
	"errors"
	"fmt"
	"strings"

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/file"
	"github.com/expr-lang/expr/parser"
)

const (
	// maxExpression bounds the length in bytes, and so the depth of recursion.
	maxExpression = 4096
	// maxNodes bounds the work of an evaluation. Length alone does not: expr's tree repeats each operand of a chained
	// comparison a < b < c.
	maxNodes = 10000
)

// parseExpression reads an expression, as far as both kinds of policies share a grammar.
func parseExpression(source string) (*parser.Tree, error) {
	if len(source) > maxExpression {
		return nil, fmt.Errorf("the expression has %d bytes, maximum %d", len(source), maxExpression)
	}
	if strings.TrimSpace(source) == "" {
		return nil, errors.New("the expression is empty")
	}
	tree, err := parser.Parse(source)
	return tree, inColumn(err)
}

// inColumn rewrites an error of expr to one line with the column instead of an excerpt.
func inColumn(err error) error {
	var at *file.Error
	if errors.As(err, &at) {
		return fmt.Errorf("column %d: %s", at.From+1, strings.Join(strings.Fields(at.Message), " "))
	}
	return err
}

// errorAt reports the column of a node or its operator, in characters from 1.
func errorAt(n ast.Node, format string, args ...any) error {
	if c, ok := n.(*ast.ConditionalNode); ok {
		n = c.Cond // expr gives a conditional no position, or that of its end
	}
	return fmt.Errorf("column %d: %s", n.Location().From+1, fmt.Sprintf(format, args...))
}

// errTooMany reports an expression with more than maxNodes nodes.
func errTooMany(n ast.Node) error {
	return errorAt(n, "the expression has more than %d operations; simplify it", maxNodes)
}
