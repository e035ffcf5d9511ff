package reward

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/vm"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/nearest"
)

// textExpression is a compiled expression over completions.
type textExpression struct {
	program  *vm.Program
	names    map[string]bool // names that it reads
	verified bool            // it reads a name that needs a verified episode
}

// completionValues are the fields of a completion that an expression can read.
type completionValues struct {
	Correct   int    `expr:"correct"`
	Formatted int    `expr:"formatted"`
	Answer    string `expr:"answer"`
	Truth     string `expr:"truth"`
	Text      string `expr:"text"`
	Thinking  string `expr:"thinking"`
	Generated string `expr:"completion"`
	Written   string `expr:"written"`
	Prompt    string `expr:"prompt"`
	Length    int    `expr:"length"`
	Words     int    `expr:"words"`
	Lines     int    `expr:"lines"`
	Calls     int    `expr:"calls"`
	Failed    int    `expr:"failed"`
	Malformed int    `expr:"malformed"`
}

var (
	textNames        = []string{"answer", "calls", "completion", "correct", "failed", "formatted", "length", "lines", "malformed", "prompt", "text", "thinking", "truth", "words", "written"}
	verifiedNames    = []string{"answer", "correct", "formatted", "truth"}
	probabilityNames = []string{"confidence", "entropy", "probs"} // only in label rewards
	textFunctions    = []string{
		"abs", "ceil", "exp", "float", "floor", "hasPrefix", "hasSuffix", "indexOf", "int", "lastIndexOf", "len", "log", "lower", "max", "min",
		"pow", "round", "split", "sqrt", "string", "trim", "trimPrefix", "trimSuffix", "upper",
	}
)

// compileText parses and checks the expression of a text reward.
func compileText(source string) (*textExpression, error) {
	tree, err := parseExpression(source)
	if err != nil {
		return nil, err
	}
	w := &textWalk{names: map[string]bool{}}
	if err := w.check(tree.Node); err != nil {
		return nil, err
	}
	x := &textExpression{names: w.names}
	for _, name := range verifiedNames {
		x.verified = x.verified || x.names[name]
	}
	x.program, err = expr.Compile(source, append(mathFunctions, expr.Env(completionValues{}), expr.Patch(conditions{}), expr.MaxNodes(maxNodes))...)
	if err != nil {
		return nil, inColumn(err)
	}
	if t := x.program.Node().Type(); t != nil {
		switch t.Kind() {
		case reflect.Bool, reflect.Int, reflect.Float64, reflect.Interface:
		default:
			return nil, errorAt(tree.Node, "the reward must be a number or a condition, not a %s", t.Kind())
		}
	}
	return x, nil
}

// mathFunctions are the functions of label rewards that expr lacks.
var mathFunctions = []expr.Option{
	unaryFunction("exp", math.Exp), unaryFunction("log", math.Log), unaryFunction("sqrt", math.Sqrt),
	expr.Function("pow", func(args ...any) (any, error) { return math.Pow(float(args[0]), float(args[1])), nil },
		new(func(float64, float64) float64), new(func(float64, int) float64), new(func(int, float64) float64), new(func(int, int) float64)),
}

func unaryFunction(name string, f func(float64) float64) expr.Option {
	return expr.Function(name, func(args ...any) (any, error) { return f(float(args[0])), nil }, new(func(float64) float64), new(func(int) float64))
}

// float converts a number of expr; expr's checker admits nothing else.
func float(number any) float64 {
	if n, ok := number.(int); ok {
		return float64(n)
	}
	return number.(float64)
}

// textWalk checks the nodes of an expression and collects the names that it reads.
//
// There are no loops, ranges or variables, and no function makes a text longer: memory is bounded by the expression times
// the text.
type textWalk struct {
	names map[string]bool
	nodes int
}

func (w *textWalk) check(n ast.Node) error {
	if w.nodes++; w.nodes > maxNodes {
		return errTooMany(n)
	}
	switch n := n.(type) {
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.StringNode:
		return nil
	case *ast.IdentifierNode:
		return w.identifier(n)
	case *ast.UnaryNode:
		return w.all(n.Node)
	case *ast.BinaryNode:
		if n.Operator == ".." {
			return errorAt(n, "operator .. is not supported in rewards")
		}
		return w.all(n.Left, n.Right)
	case *ast.ConditionalNode:
		return w.all(n.Cond, n.Exp1, n.Exp2)
	case *ast.MemberNode:
		return w.all(n.Node, n.Property)
	case *ast.SliceNode:
		return w.all(n.Node, n.From, n.To)
	case *ast.ArrayNode:
		return w.all(n.Nodes...)
	case *ast.BuiltinNode:
		return w.call(n, n.Name, n.Arguments)
	case *ast.CallNode:
		if callee, ok := n.Callee.(*ast.IdentifierNode); ok {
			return w.call(n, callee.Value, n.Arguments)
		}
	}
	return errorAt(n, "this construct is not supported in rewards; use numbers, texts, names, operators, conditions and functions")
}

// all checks nodes; nil nodes are skipped.
func (w *textWalk) all(nodes ...ast.Node) error {
	for _, n := range nodes {
		if n == nil {
			continue
		}
		if err := w.check(n); err != nil {
			return err
		}
	}
	return nil
}

func (w *textWalk) identifier(n *ast.IdentifierNode) error {
	if slices.Contains(probabilityNames, n.Value) {
		return errorAt(n, "%s is available only in rewards of classifiers", n.Value)
	}
	if !slices.Contains(textNames, n.Value) {
		return errorAt(n, "unknown name %s%s; use %s", hintQuote(n.Value), nearest.Hint(n.Value, textNames, strconv.Quote), strings.Join(textNames, ", "))
	}
	w.names[n.Value] = true
	return nil
}

func (w *textWalk) call(n ast.Node, name string, arguments []ast.Node) error {
	if !slices.Contains(textFunctions, name) {
		return errorAt(n, "unknown function %s%s; use %s", hintQuote(name), nearest.Hint(name, textFunctions, strconv.Quote), strings.Join(textFunctions, ", "))
	}
	return w.all(arguments...)
}

// conditions turns correct and formatted, which are numbers, into conditions if one is needed.
type conditions struct{}

// Visit implements ast.Visitor.
func (conditions) Visit(n *ast.Node) {
	switch n := (*n).(type) {
	case *ast.ConditionalNode:
		asCondition(&n.Cond)
	case *ast.UnaryNode:
		if n.Operator == "not" || n.Operator == "!" {
			asCondition(&n.Node)
		}
	case *ast.BinaryNode:
		if slices.Contains([]string{"and", "&&", "or", "||"}, n.Operator) {
			asCondition(&n.Left)
			asCondition(&n.Right)
		}
	}
}

func asCondition(n *ast.Node) {
	if name, ok := (*n).(*ast.IdentifierNode); ok && (name.Value == "correct" || name.Value == "formatted") {
		ast.Patch(n, &ast.BinaryNode{Operator: "!=", Left: name, Right: &ast.IntegerNode{}})
	}
}

var errNotVerified = errors.New("correct, formatted, answer and truth are unknown: the task has no verified answer for this episode")

// score implements TextReward.Batch.
func (x *textExpression) score(ctx context.Context, completions []envs.Completion) ([]float64, []error) {
	said := newResults(len(completions))
	var machine vm.VM
	for i := range completions {
		if said.errs[i] = ctx.Err(); said.errs[i] == nil {
			said.values[i], said.errs[i] = x.value(&machine, &completions[i])
		}
	}
	return said.values, said.errs
}

func (x *textExpression) value(machine *vm.VM, c *envs.Completion) (float64, error) {
	if x.verified && c.Info == nil {
		if c.Continues {
			return 0, nil
		}
		return 0, errNotVerified
	}
	value, err := machine.Run(x.program, x.read(c))
	if err != nil {
		return 0, inColumn(err)
	}
	switch value := value.(type) {
	case bool:
		return truthValue(value), nil
	case int, float64:
		return float(value), nil
	}
	return 0, fmt.Errorf("the value must be a number or a condition, not %T", value)
}

// read copies the fields that the expression reads from a completion.
func (x *textExpression) read(c *envs.Completion) *completionValues {
	text := c.Action.Text
	v := &completionValues{Text: text, Thinking: c.Action.Thinking, Generated: cmp.Or(c.Generated, text), Written: c.Text, Calls: c.Tools.Calls, Failed: c.Tools.Failed, Malformed: c.Tools.Malformed}
	if c.Info != nil {
		v.Answer, v.Truth = c.Info.Answer, c.Info.Truth
		v.Correct, v.Formatted = int(truthValue(c.Info.Correct)), int(truthValue(c.Info.FormatOK))
	}
	if x.names["prompt"] {
		v.Prompt = prompt(c.Observation)
	}
	if x.names["length"] {
		v.Length = utf8.RuneCountInString(text)
	}
	if x.names["words"] {
		for range strings.FieldsSeq(text) {
			v.Words++
		}
	}
	if x.names["lines"] {
		v.Lines = strings.Count(text, "\n")
		if text != "" && !strings.HasSuffix(text, "\n") {
			v.Lines++
		}
	}
	return v
}
