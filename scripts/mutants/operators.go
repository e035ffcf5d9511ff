package main

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"slices"
	"strconv"
	"strings"
)

// longest is the size in bytes of the largest expression or statement that is changed.
const longest = 600

// finder collects the mutants of a file.
type finder struct {
	source
	fset  *token.FileSet
	pkg   *checked
	found []mutant
}

func (f *finder) offset(p token.Pos) int { return f.fset.Position(p).Offset }

func (f *finder) textOf(n ast.Node) string {
	return string(f.text[f.offset(n.Pos()):f.offset(n.End())])
}

// add notes a mutant of node n.
func (f *finder) add(operator string, n ast.Node, plain, schema string) {
	if start, end := f.offset(n.Pos()), f.offset(n.End()); end-start <= longest {
		f.found = append(f.found, mutant{Operator: operator, start: start, end: end, plain: plain, schema: schema})
	}
}

// choose is an expression of type kind that is changed if @ON@ is true.
func choose(kind, original, changed string) string {
	return "func() " + kind + " { if @ON@ { return " + changed + " }; return " + original + " }()"
}

// typeOf is the name of an expression's type in this file; "" if it has none or a constant is required.
func (f *finder) typeOf(e ast.Expr) string {
	t := f.pkg.info.Types[e].Type
	if basic, ok := t.(*types.Basic); t == nil || ok && basic.Info()&types.IsUntyped != 0 {
		return ""
	}
	known := true
	name := types.TypeString(t, func(p *types.Package) string {
		if p == f.pkg.types {
			return ""
		}
		for _, i := range f.tree.Imports {
			if path, _ := strconv.Unquote(i.Path.Value); path == p.Path() {
				if i.Name != nil {
					return i.Name.Name
				}
				return p.Name()
			}
		}
		known = false
		return ""
	})
	if !known {
		return ""
	}
	return name
}

func (f *finder) constant(e ast.Expr) bool { return f.pkg.info.Types[e].Value != nil }

func (f *finder) numeric(e ast.Expr) bool {
	t := f.pkg.info.Types[e].Type
	if t == nil {
		return false
	}
	basic, ok := t.Underlying().(*types.Basic)
	return ok && basic.Info()&types.IsNumeric != 0
}

// exchanged are the operators of arithmetic.
var exchanged = map[token.Token]token.Token{
	token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.QUO, token.QUO: token.MUL,
	token.ADD_ASSIGN: token.SUB_ASSIGN, token.SUB_ASSIGN: token.ADD_ASSIGN, token.MUL_ASSIGN: token.QUO_ASSIGN, token.QUO_ASSIGN: token.MUL_ASSIGN,
}

// edges are comparisons that differ for equal operands.
var edges = map[token.Token]token.Token{token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR}

func (f *finder) visit(n ast.Node, stack []ast.Node) bool {
	var parent ast.Node
	if len(stack) > 0 {
		parent = stack[len(stack)-1]
	}
	switch n := n.(type) {
	case *ast.GenDecl:
		return n.Tok != token.CONST
	case *ast.BinaryExpr:
		f.binary(n)
	case *ast.IfStmt:
		f.condition(n.Cond)
	case *ast.ForStmt:
		f.condition(n.Cond)
	case *ast.BasicLit:
		f.literal(n, parent)
	case *ast.SliceExpr:
		f.bounds(n)
	case *ast.Field:
		f.tag(n)
	case *ast.AssignStmt, *ast.IncDecStmt, *ast.ExprStmt:
		if inList(parent) {
			f.statement(n.(ast.Stmt))
		}
	case *ast.ReturnStmt:
		if inList(parent) {
			f.result(n, stack)
		}
	}
	return true
}

// inList says whether statements under parent stand one after the other.
func inList(parent ast.Node) bool {
	switch parent.(type) {
	case *ast.BlockStmt, *ast.CaseClause:
		return true
	}
	return false
}

func (f *finder) binary(n *ast.BinaryExpr) {
	x, y, changed := f.textOf(n.X), f.textOf(n.Y), token.ILLEGAL
	if f.constant(n) {
		return
	}
	boolean := func(name string) {
		original, other := x+" "+n.Op.String()+" "+y, x+" "+changed.String()+" "+y
		f.add(name, n, other, "(@ON@ && ("+other+") || !@ON@ && ("+original+"))")
	}
	switch n.Op {
	case token.LSS, token.LEQ, token.GTR, token.GEQ:
		changed = edges[n.Op]
		boolean("edge of a comparison")
	case token.LAND:
		changed = token.LOR
		boolean("and, or")
	case token.LOR:
		changed = token.LAND
		boolean("and, or")
	case token.ADD, token.SUB, token.MUL, token.QUO:
		changed = exchanged[n.Op]
		name := "plus, minus"
		if n.Op == token.MUL || n.Op == token.QUO {
			name = "times, divided by"
		}
		if kind := f.typeOf(n); kind != "" && f.numeric(n) {
			// A division by a constant 0 does not compile.
			if y := f.pkg.info.Types[n.Y].Value; changed == token.QUO && y != nil && constant.Sign(y) == 0 {
				return
			}
			other := x + " " + changed.String() + " " + y
			f.add(name, n, other, choose(kind, f.textOf(n), other))
		}
	}
}

func (f *finder) condition(e ast.Expr) {
	if e != nil && !f.constant(e) {
		f.add("negated condition", e, "!("+f.textOf(e)+")", "(@ON@ != ("+f.textOf(e)+"))")
	}
}

// literal changes a number by 1.
func (f *finder) literal(n *ast.BasicLit, parent ast.Node) {
	if e, ok := parent.(ast.Expr); ok && f.constant(e) || n.Kind != token.INT && n.Kind != token.FLOAT {
		return
	}
	kind := f.typeOf(n)
	if kind == "" {
		return
	}
	changes := []string{n.Value + " + 1"}
	if v := f.pkg.info.Types[n].Value; v != nil && constant.Compare(v, token.GEQ, constant.MakeInt64(1)) {
		changes = append(changes, n.Value+" - 1")
	}
	for _, other := range changes {
		f.add("constant", n, "("+other+")", choose(kind, n.Value, other))
	}
}

// bounds begins a slice at 0.
func (f *finder) bounds(n *ast.SliceExpr) {
	if n.Low == nil {
		return
	}
	kind := f.typeOf(n.Low)
	if v := f.pkg.info.Types[n.Low].Value; kind == "" || v != nil && constant.Sign(v) == 0 {
		return
	}
	f.add("slice from 0", n.Low, "0", choose(kind, f.textOf(n.Low), "0"))
}

// tag leaves a field out of the file.
func (f *finder) tag(n *ast.Field) {
	if n.Tag == nil {
		return
	}
	before, rest, ok := strings.Cut(n.Tag.Value, `json:"`)
	name, after, _ := strings.Cut(rest, `"`)
	if ok && name != "-" {
		f.add("field not saved", n.Tag, before+`json:"-"`+after, "")
	}
}

// statement removes an assignment or a call, or exchanges the operator of an assignment.
func (f *finder) statement(n ast.Stmt) {
	text := f.textOf(n)
	switch n := n.(type) {
	case *ast.AssignStmt:
		if n.Tok == token.DEFINE || slices.ContainsFunc(n.Lhs, func(e ast.Expr) bool { name, ok := e.(*ast.Ident); return ok && name.Name == "_" }) {
			return
		}
		if changed, ok := exchanged[n.Tok]; ok && f.numeric(n.Lhs[0]) {
			name := "plus, minus"
			if n.Tok == token.MUL_ASSIGN || n.Tok == token.QUO_ASSIGN {
				name = "times, divided by"
			}
			other := f.textOf(n.Lhs[0]) + " " + changed.String() + " " + f.textOf(n.Rhs[0])
			f.add(name, n, other, "if @ON@ { "+other+" } else { "+text+" }")
		}
	case *ast.ExprStmt:
		call, ok := n.X.(*ast.CallExpr)
		if !ok {
			return
		}
		if name, ok := call.Fun.(*ast.Ident); ok && name.Name == "panic" {
			return
		}
	}
	f.add("removed statement", n, "", "if !@ON@ { "+text+" }")
}

// result returns zero values.
func (f *finder) result(n *ast.ReturnStmt, stack []ast.Node) {
	if len(n.Results) == 0 || !slices.ContainsFunc(n.Results, func(e ast.Expr) bool { return !f.zero(e) }) {
		return
	}
	var results *ast.FieldList
	for _, outer := range slices.Backward(stack) {
		if function, ok := outer.(*ast.FuncDecl); ok {
			results = function.Type.Results
			break
		}
		if function, ok := outer.(*ast.FuncLit); ok {
			results = function.Type.Results
			break
		}
	}
	var zeros []string
	for _, field := range results.List {
		for range max(1, len(field.Names)) {
			zeros = append(zeros, "*new("+f.textOf(field.Type)+")")
		}
	}
	other := "return " + strings.Join(zeros, ", ")
	f.add("zero result", n, other, "if @ON@ { "+other+" }; "+f.textOf(n))
}

// zero says whether an expression is written as a zero value.
func (f *finder) zero(e ast.Expr) bool {
	if v := f.pkg.info.Types[e].Value; v != nil {
		switch v.Kind() {
		case constant.Bool:
			return !constant.BoolVal(v)
		case constant.String:
			return constant.StringVal(v) == ""
		}
		return constant.Sign(v) == 0
	}
	literal, ok := e.(*ast.CompositeLit)
	return ok && len(literal.Elts) == 0 || f.pkg.info.Types[e].IsNil()
}
