package equiv

import (
	f "github.com/rltrain/rltrain/envs/answer/formula"
)

// simplify drops what does not change the value, such as "x \in" before a set, and computes products and sums of matrices.
func (c *comparison) simplify(n *f.Node) *f.Node {
	switch {
	case n.Kind == f.Relation && len(n.Args) == 2 && n.Ops[0] == "in" && isName(n.Args[0]):
		return c.simplify(n.Args[1])
	case n.Kind == f.Sum || n.Kind == f.Product:
		if m := matrixValue(n); m != nil {
			return m
		}
	case n.Kind == f.Set && len(n.Args) == 1 && n.Args[0].Kind == f.Relation:
		return n.Args[0]
	}
	return n
}

// maxMatrix bounds the entries of a computed matrix.
const maxMatrix = 36

// matrixValue computes a sum or product of matrices; nil if n is neither.
func matrixValue(n *f.Node) *f.Node {
	switch n.Kind {
	case f.Matrix:
		if len(n.Args)*len(n.Args[0].Args) > maxMatrix {
			return nil
		}
		return n
	case f.Sum:
		var sum *f.Node
		for _, arg := range n.Args {
			m := matrixValue(arg)
			if m == nil || sum != nil && (len(sum.Args) != len(m.Args) || len(sum.Args[0].Args) != len(m.Args[0].Args)) {
				return nil
			}
			if sum == nil {
				sum = m
				continue
			}
			sum = mapMatrix(sum, func(i, j int, entry *f.Node) *f.Node { return f.Of(f.Sum, "", entry, m.Args[i].Args[j]) })
		}
		return sum
	case f.Product:
		if len(n.Args) > 4 {
			return nil
		}
		var factor, result *f.Node
		for _, arg := range n.Args {
			switch m := matrixValue(arg); {
			case m == nil && (shaped(arg) || factor != nil):
				return nil
			case m == nil:
				factor = arg
			case result == nil:
				result = m
			default:
				if result = multiply(result, m); result == nil {
					return nil
				}
			}
		}
		if result == nil || factor == nil {
			return result
		}
		return mapMatrix(result, func(_, _ int, entry *f.Node) *f.Node { return f.Of(f.Product, "", factor, entry) })
	}
	return nil
}

func mapMatrix(m *f.Node, with func(i, j int, entry *f.Node) *f.Node) *f.Node {
	out := f.Of(f.Matrix, "")
	for i, row := range m.Args {
		r := f.Of(f.Tuple, "()")
		for j, entry := range row.Args {
			r.Args = append(r.Args, with(i, j, entry))
		}
		out.Args = append(out.Args, r)
	}
	return out
}

func multiply(a, b *f.Node) *f.Node {
	inner := len(a.Args[0].Args)
	if inner != len(b.Args) || len(a.Args)*inner*len(b.Args[0].Args) > 4*maxMatrix {
		return nil
	}
	out := f.Of(f.Matrix, "")
	for _, row := range a.Args {
		r := f.Of(f.Tuple, "()")
		for j := range b.Args[0].Args {
			entry := f.Of(f.Sum, "")
			for k := range inner {
				entry.Args = append(entry.Args, f.Of(f.Product, "", row.Args[k], b.Args[k].Args[j]))
			}
			r.Args = append(r.Args, entry)
		}
		out.Args = append(out.Args, r)
	}
	return out
}
