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
	// maxExpression bounds the length of an expression in bytes, and with it the depth
	// of the recursion over it.
	maxExpression = 4096
	// maxNodes bounds the work of an evaluation. Length alone does not: each link of a
	// chained comparison a < b < c stands twice in expr's tree.
	maxNodes = 10000
)

// parseExpression reads an expression of either kind of policy, as far as both have one
// language.
func parseExpression(source string) (*parser.Tree, error) {
	if len(source) > maxExpression {
		return nil, fmt.Errorf("the expression has %d bytes: write at most %d", len(source), maxExpression)
	}
	if strings.TrimSpace(source) == "" {
		return nil, errors.New("the expression is empty")
	}
	tree, err := parser.Parse(source)
	return tree, inColumn(err)
}

// inColumn puts an error of expr on one line, with the column in place of an excerpt.
func inColumn(err error) error {
	var at *file.Error
	if errors.As(err, &at) {
		return fmt.Errorf("column %d: %s", at.From+1, strings.Join(strings.Fields(at.Message), " "))
	}
	return err
}

// errorAt names the column, counted in characters from 1, where a node begins or has
// its operator.
func errorAt(n ast.Node, format string, args ...any) error {
	if c, ok := n.(*ast.ConditionalNode); ok {
		n = c.Cond // expr gives a conditional no place, or that of its end
	}
	return fmt.Errorf("column %d: %s", n.Location().From+1, fmt.Sprintf(format, args...))
}

// errTooMany refuses an expression past maxNodes.
func errTooMany(n ast.Node) error {
	return errorAt(n, "the expression has more than %d operations: make it simpler", maxNodes)
}
