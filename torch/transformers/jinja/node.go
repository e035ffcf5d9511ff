package jinja

// Statements. Each runs in a scope and returns how control flow continues.
type flow uint8

const (
	flowOn flow = iota
	flowBreak
	flowContinue
)

type node interface{ run(r *run, s *scope) flow }

type (
	textNode  string
	printNode struct {
		line int
		x    expr
	}
	ifNode struct {
		line     int
		conds    []expr
		bodies   [][]node
		elseBody []node
	}
	forNode struct {
		line           int
		target         target
		iter, cond     expr
		body, elseBody []node
		recursive      bool
	}
	setNode struct {
		line    int
		targets target
		x       expr // nil for a set block
		body    []node
		filters []filterExpr
	}
	macroNode struct {
		line     int
		name     string
		params   []string
		defaults map[string]expr
		body     []node
	}
	callNode struct {
		line int
		call *callExpr
		body *macroNode
	}
	withNode struct {
		line   int
		names  []target
		values []expr
		body   []node
	}
	generationNode struct {
		line int
		body []node
	}
	filterNode struct {
		line    int
		filters []filterExpr
		body    []node
	}
	loopControl flow
)

// target is the target of an assignment: a name, an attribute of a namespace, or several of these.
type target struct {
	name, attr string
	parts      []target
}

func (r *run) all(body []node, s *scope) flow {
	r.enter()
	defer func() { r.depth-- }()
	for _, n := range body {
		r.spend(1)
		if f := n.run(r, s); f != flowOn {
			return f
		}
	}
	return flowOn
}

func (t textNode) run(r *run, _ *scope) flow {
	r.write(string(t))
	return flowOn
}

func (n *printNode) run(r *run, s *scope) flow {
	r.line = n.line
	r.write(r.str(r.eval(n.x, s)))
	return flowOn
}

func (n *ifNode) run(r *run, s *scope) flow {
	for i, cond := range n.conds {
		r.line = n.line
		if truth(r.eval(cond, s)) {
			return r.all(n.bodies[i], s)
		}
	}
	return r.all(n.elseBody, s)
}

func (r *run) assign(s *scope, t target, v Value) {
	switch {
	case t.parts != nil:
		items := r.items(v)
		if len(items) != len(t.parts) {
			r.fail("cannot unpack %d values into %d names", len(items), len(t.parts))
		}
		for i, part := range t.parts {
			r.assign(s, part, items[i])
		}
	case t.attr != "":
		x, _ := s.get(t.name)
		ns, ok := x.(*namespace)
		if !ok {
			r.fail("cannot assign attribute %q on %q, which is no namespace", t.attr, t.name)
		}
		r.setAttr(ns, t.attr, v)
	default:
		s.set(t.name, v)
	}
}

// setAttr sets an attribute; like transformers' namespaces it refuses names that start with an underscore.
func (r *run) setAttr(ns *namespace, name string, v Value) {
	if name != "" && name[0] == '_' {
		r.fail("cannot store the attribute %q, which starts with an underscore, on a namespace", name)
	}
	ns.set(name, v)
}

func (n *forNode) run(r *run, s *scope) flow {
	r.line = n.line
	r.loop(n, r.eval(n.iter, s), s, 0)
	return flowOn
}

// loop runs a for over x; depth counts nested calls of loop().
func (r *run) loop(n *forNode, x Value, s *scope, depth int) {
	items := r.items(x)
	if n.cond != nil {
		var kept []Value
		for _, item := range items {
			r.spend(1)
			c := s.child()
			r.assign(c, n.target, item)
			if truth(r.eval(n.cond, c)) {
				kept = append(kept, item)
			}
		}
		items = kept
	}
	if len(items) == 0 {
		r.noFlow(n, r.all(n.elseBody, s))
		return
	}
	l := &loopState{items: items, depth: depth}
	if n.recursive {
		l.again = func(x Value) string {
			return r.capture([]node{&againNode{n, x, depth + 1}}, s)
		}
	}
	for l.index = range items {
		c := s.child()
		c.set("loop", l)
		r.line = n.line
		r.assign(c, n.target, items[l.index])
		if r.all(n.body, c) == flowBreak {
			return
		}
	}
}

// noFlow refuses break and continue in the else of a for, which is outside the loop.
func (r *run) noFlow(n *forNode, f flow) {
	if f != flowOn {
		fail(n.line, "break or continue outside a loop")
	}
}

// againNode is a for that its body calls as loop(x).
type againNode struct {
	n     *forNode
	x     Value
	depth int
}

func (n *againNode) run(r *run, s *scope) flow {
	r.loop(n.n, n.x, s, n.depth)
	return flowOn
}

func (r *run) filtered(filters []filterExpr, v Value, s *scope) Value {
	for i := range filters {
		v = filters[i].apply(r, s, v)
	}
	return v
}

func (n *setNode) run(r *run, s *scope) flow {
	r.line = n.line
	var v Value
	if n.x != nil {
		v = r.eval(n.x, s)
	} else {
		v = r.filtered(n.filters, r.capture(n.body, s.child()), s)
	}
	r.assign(s, n.targets, v)
	return flowOn
}

func (n *macroNode) run(_ *run, s *scope) flow {
	s.set(n.name, n.macro(s))
	return flowOn
}

// macro returns n as a function that sees the variables of s.
func (n *macroNode) macro(s *scope) *function {
	return &function{name: n.name, call: func(r *run, args []Value, kw []kwarg) Value {
		c := s.child()
		if len(args) > len(n.params) {
			r.fail("macro %q takes not more than %d arguments", n.name, len(n.params))
		}
		given := map[string]bool{}
		for i, v := range args {
			c.set(n.params[i], v)
			given[n.params[i]] = true
		}
		for _, k := range kw {
			known := k.name == "caller"
			for _, p := range n.params {
				known = known || p == k.name
			}
			if !known || given[k.name] {
				r.fail("macro %q takes no keyword argument %q", n.name, k.name)
			}
			c.set(k.name, k.value)
			given[k.name] = true
		}
		for _, p := range n.params {
			if given[p] {
				continue
			}
			if d, ok := n.defaults[p]; ok {
				c.set(p, r.eval(d, c))
			} else {
				c.set(p, Undefined{"parameter '" + p + "' was not provided"})
			}
		}
		return r.capture(n.body, c)
	}}
}

func (n *callNode) run(r *run, s *scope) flow {
	r.line = n.line
	r.write(r.str(n.call.invoke(r, s, kwarg{"caller", n.body.macro(s)})))
	return flowOn
}

func (n *withNode) run(r *run, s *scope) flow {
	c := s.child()
	for i, t := range n.names {
		r.line = n.line
		r.assign(c, t, r.eval(n.values[i], s))
	}
	return r.all(n.body, c)
}

// As in transformers, a generation block has its own variables.
func (n *generationNode) run(r *run, s *scope) flow {
	start := r.out.Len()
	if r.all(n.body, s.child()) != flowOn {
		fail(n.line, "break or continue leaves a generation block")
	}
	if r.captured > 0 {
		r.unplaced = true
	} else {
		r.generated = append(r.generated, Span{start, r.out.Len()})
	}
	return flowOn
}

func (n *filterNode) run(r *run, s *scope) flow {
	text := r.capture(n.body, s.child())
	r.line = n.line
	r.write(r.str(r.filtered(n.filters, text, s)))
	return flowOn
}

func (c loopControl) run(*run, *scope) flow { return flow(c) }
